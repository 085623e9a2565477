"""An upper cannot grow beyond its limit, fails like a full disk, and stays usable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage import OTHER, UPPER, MiB, close_and_count, fill, make_driver

from skerry.errors import Conflict, HostUnsupported, QuotaExceeded
from skerry.storage import kernel
from skerry.storage.driver import UpperDriver

LIMIT = 32 * MiB


@pytest.fixture(params=["btrfs", "loop"])
def limiting(request: pytest.FixtureRequest, state_dir: Path) -> Iterator[UpperDriver]:
    made = make_driver(request.param, state_dir)
    made.prepare()
    yield made
    for upper in made.uppers():
        made.delete(upper)
    close_and_count(made)


def test_writes_stop_at_the_limit_until_files_are_deleted(limiting: UpperDriver) -> None:
    upper = limiting.create(UPPER, LIMIT) / "upper"
    written, number = fill(upper, 2 * LIMIT)
    assert number in (errno.EDQUOT, errno.ENOSPC)
    assert LIMIT // 2 < written <= LIMIT
    for name in os.listdir(upper):
        (upper / name).unlink()
    os.sync()
    assert fill(upper, 8 * MiB) == (8 * MiB, None)


def test_a_full_upper_does_not_affect_another(limiting: UpperDriver) -> None:
    full, other = limiting.create(UPPER, LIMIT), limiting.create(OTHER, LIMIT)
    assert fill(full / "upper", 2 * LIMIT)[1] is not None
    assert fill(other / "upper", 8 * MiB) == (8 * MiB, None)


def test_empty_files_and_directories_count_too(limiting: UpperDriver) -> None:
    upper = limiting.create(UPPER, 8 * MiB) / "upper"

    def make_many() -> None:
        for number in range(1_000_000):
            (upper / f"{number:0200}").mkdir()

    with pytest.raises(OSError, match=r"quota|space") as caught:
        make_many()
    assert caught.value.errno in (errno.EDQUOT, errno.ENOSPC)


def test_a_higher_limit_applies_at_once_or_is_rejected(limiting: UpperDriver) -> None:
    upper = limiting.create(UPPER, LIMIT) / "upper"
    before, number = fill(upper, 4 * LIMIT)
    assert number is not None
    if limiting.name == "loop" and not kernel.has_capability(kernel.CAP_SYS_RESOURCE):
        with pytest.raises(HostUnsupported, match="CAP_SYS_RESOURCE"):
            limiting.resize(UPPER, 2 * LIMIT)
        return
    limiting.resize(UPPER, 2 * LIMIT)
    more = upper / "more"
    more.mkdir()
    after, number = fill(more, 4 * LIMIT)
    assert number is not None
    assert LIMIT < before + after <= 2 * LIMIT


def test_a_limit_below_the_usage_is_rejected(limiting: UpperDriver) -> None:
    upper = limiting.create(UPPER, LIMIT) / "upper"
    fill(upper, 16 * MiB)
    os.sync()
    with pytest.raises(Conflict, match="uses"):
        limiting.resize(UPPER, 4 * MiB)
    assert fill(upper, 4 * MiB)[1] is None


def test_no_limit_is_raised_below_the_hosts_minimum_free_space(limiting: UpperDriver) -> None:
    limiting.create(UPPER, LIMIT)
    limiting.min_free = 1 << 60
    with pytest.raises(QuotaExceeded):
        limiting.resize(UPPER, 2 * LIMIT)


def test_the_plain_driver_reports_that_it_enforces_nothing(state_dir: Path) -> None:
    assert not make_driver("plain", state_dir).enforces_limit
