"""A unit can't grow beyond its limit, says so like any full disk, and stays usable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.storing import OTHER, UNIT, MiB, close_and_count, fill, make_driver

from skerry.errors import Conflict, HostUnsupported, QuotaExceeded
from skerry.storage import kernel
from skerry.storage.driver import UnitDriver

LIMIT = 32 * MiB


@pytest.fixture(params=["btrfs", "loop"])
def limiting(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[UnitDriver]:
    made = make_driver(request.param, state_dir)
    made.prepare()
    yield made
    for unit in made.units():
        made.delete(unit)
    close_and_count(made)


def test_writing_ends_at_the_limit_and_goes_on_after_deleting(limiting: UnitDriver) -> None:
    upper = limiting.create(UNIT, LIMIT) / "upper"
    written, number = fill(upper, 2 * LIMIT)
    assert number in (errno.EDQUOT, errno.ENOSPC)
    assert LIMIT // 2 < written <= LIMIT
    for name in os.listdir(upper):
        (upper / name).unlink()
    os.sync()
    assert fill(upper, 8 * MiB) == (8 * MiB, None)


def test_a_full_unit_does_not_trouble_another(limiting: UnitDriver) -> None:
    full, other = limiting.create(UNIT, LIMIT), limiting.create(OTHER, LIMIT)
    assert fill(full / "upper", 2 * LIMIT)[1] is not None
    assert fill(other / "upper", 8 * MiB) == (8 * MiB, None)


def test_empty_files_and_directories_count_too(limiting: UnitDriver) -> None:
    upper = limiting.create(UNIT, 8 * MiB) / "upper"

    def make_many() -> None:
        for number in range(1_000_000):
            (upper / f"{number:0200}").mkdir()

    with pytest.raises(OSError, match=r"quota|space") as caught:
        make_many()
    assert caught.value.errno in (errno.EDQUOT, errno.ENOSPC)


def test_a_higher_limit_holds_at_once_or_is_refused_where_the_kernel_does_not_allow_it(limiting: UnitDriver) -> None:
    upper = limiting.create(UNIT, LIMIT) / "upper"
    before, number = fill(upper, 4 * LIMIT)
    assert number is not None
    if limiting.name == "loop" and not kernel.has_capability(kernel.CAP_SYS_RESOURCE):
        with pytest.raises(HostUnsupported, match="CAP_SYS_RESOURCE"):
            limiting.resize(UNIT, 2 * LIMIT)
        return
    limiting.resize(UNIT, 2 * LIMIT)
    more = upper / "more"
    more.mkdir()
    after, number = fill(more, 4 * LIMIT)
    assert number is not None
    assert LIMIT < before + after <= 2 * LIMIT


def test_a_limit_below_what_is_used_is_refused(limiting: UnitDriver) -> None:
    upper = limiting.create(UNIT, LIMIT) / "upper"
    fill(upper, 16 * MiB)
    os.sync()
    with pytest.raises(Conflict, match="uses"):
        limiting.resize(UNIT, 4 * MiB)
    assert fill(upper, 4 * MiB)[1] is None


def test_no_limit_is_raised_when_the_hosts_disk_has_less_than_its_reserve(limiting: UnitDriver) -> None:
    limiting.create(UNIT, LIMIT)
    limiting.reserve = 1 << 60
    with pytest.raises(QuotaExceeded):
        limiting.resize(UNIT, 2 * LIMIT)


def test_plain_directories_say_that_they_enforce_nothing(state_dir: Path) -> None:
    assert not make_driver("plain", state_dir).enforces_limit
