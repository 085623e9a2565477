"""Bytes that only a snapshot holds do not count against an upper; bytes of its own tree do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage import OTHER, UPPER, MiB, close_and_count, fill, make_driver, wait_until

from skerry.errors import Conflict
from skerry.storage.accounts import UpperAccount
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.subvolumes import Measure

LIMIT = 100 * MiB
NAME = "0" * 32


def roomy(state_dir: Path) -> BtrfsDriver:
    """Data written between two maintenance rounds of the pool must leave space for btrfs's metadata."""
    made = make_driver("btrfs", state_dir, preallocate=384 * MiB)
    assert isinstance(made, BtrfsDriver)
    return made


@pytest.fixture
def pool(state_dir: Path) -> Iterator[BtrfsDriver]:
    made = roomy(state_dir)
    made.prepare()
    yield made
    made.prepare()
    for upper in made.uppers():
        made.delete(upper)
    close_and_count(made)


def snapshot(pool: BtrfsDriver, name: str = NAME, upper: str = UPPER) -> None:
    pool.sync(upper)
    pool.keep(pool.capture(upper), name)


def empty(directory: Path) -> None:
    for name in os.listdir(directory):
        (directory / name).unlink()


def test_bytes_held_only_by_a_snapshot_do_not_count(pool: BtrfsDriver) -> None:
    """Limit 100, write 80, snapshot, delete, write 80: at once, and again, and after another server came."""
    upper = pool.create(UPPER, LIMIT) / "upper"
    for turn in range(2):
        assert fill(upper, 80 * MiB) == (80 * MiB, None), f"in turn {turn}"
        snapshot(pool, f"{turn:032}")
        empty(upper)
    pool.close()
    again = roomy(pool.state_dir)
    again.prepare()
    wait_until(lambda: again.usage(UPPER) < 10 * MiB, "the new server has measured")
    assert fill(upper, 80 * MiB) == (80 * MiB, None)
    again.close()


def test_a_tree_above_its_limit_after_a_snapshot_stops_until_files_are_deleted(
    pool: BtrfsDriver,
) -> None:
    upper = pool.create(UPPER, LIMIT) / "upper"
    assert fill(upper, 60 * MiB)[1] is None
    snapshot(pool)
    more = upper / "more"
    more.mkdir()
    written, number = fill(more, 4 * LIMIT)
    assert number == errno.EDQUOT
    assert 30 * MiB < written < 150 * MiB
    pool.books.reconcile()
    with pytest.raises(OSError, match="quota"):
        (more / "again").write_bytes(bytes(MiB))
    with pytest.raises(Conflict, match="uses"):
        pool.resize(UPPER, 50 * MiB)
    empty(more)
    pool.sync(UPPER)
    wait_until(lambda: fill(more, 8 * MiB)[1] is None, "it can write again")
    pool.drop_snapshot(NAME)


def test_a_fork_starts_at_zero_and_its_origin_is_not_charged(pool: BtrfsDriver) -> None:
    upper = pool.create(UPPER, LIMIT) / "upper"
    fill(upper, 80 * MiB)
    snapshot(pool)
    fork = pool.create(OTHER, LIMIT, origin=NAME) / "upper"
    pool.drop_snapshot(NAME)
    empty(upper)
    assert pool.usage(OTHER) < MiB
    (fork / "more").mkdir()
    assert fill(fork / "more", 80 * MiB) == (80 * MiB, None), "what it inherited does not count"
    assert fill(upper, 80 * MiB) == (80 * MiB, None), "what only the fork holds does not count"


def test_holes_in_a_captured_file_free_no_space(pool: BtrfsDriver) -> None:
    """A part of an extent keeps all of it: counting file sizes would grant it again and again."""
    upper = pool.create(UPPER, LIMIT) / "upper"
    (upper / "first").touch()
    snapshot(pool)
    for number in range(15):
        file = upper / str(number)
        with contextlib.suppress(OSError):
            file.write_bytes(os.urandom(8 * MiB))
        pool.sync(UPPER)
        with contextlib.suppress(OSError):
            os.truncate(file, 4096)
        pool.books.reconcile()
    # Maintenance rounds of the pool come at any moment: data written during one is granted in advance, once.
    assert pool.books.billed(pool.path(UPPER)) <= LIMIT + 8 * MiB + (LIMIT >> 4) + MiB
    pool.drop_snapshot(NAME)


def test_bytes_deleted_during_a_measurement_are_granted_once() -> None:
    """It is billed when the measurement begins and found nowhere when it ends, like data held by snapshots."""
    account, largest = UpperAccount(LIMIT), 0
    account.capture(1, 80 * MiB)
    for _ in range(10):
        billed = account.allowed  # written full, then all of it deleted in the middle of the measurement
        account.settle(Measure(live=0, shared=0, young=0, seconds=0.1), billed, now=0.0)
        largest = max(largest, billed)
    assert largest <= 2 * LIMIT


def test_the_smallest_limit_is_the_size_of_the_tree(pool: BtrfsDriver) -> None:
    upper = pool.create(UPPER, LIMIT) / "upper"
    fill(upper, 80 * MiB)
    snapshot(pool)
    empty(upper)
    fill(upper, 20 * MiB)
    pool.resize(UPPER, 40 * MiB)
    (upper / "more").mkdir()
    written, number = fill(upper / "more", LIMIT)
    assert number == errno.EDQUOT
    assert 10 * MiB < written < 25 * MiB
    pool.drop_snapshot(NAME)


def test_the_advance_is_one_step_and_ends_at_the_limit() -> None:
    account = UpperAccount(limit=10 << 30)
    account.capture(7, billed=8 << 30)
    assert account.allowed == (10 << 30) + (10 << 30 >> 3)
    account.look(8 << 30)
    assert not account.wants_measure(now=0)
    assert 1 < account.look_due < 2, "no disk is written faster"
    account.look(11 << 30)
    assert account.wants_measure(now=0)
    account.settle(Measure(live=3 << 30, shared=1 << 20, young=0, seconds=1), billed=11 << 30, now=0)
    assert account.held == 8 << 30
    assert account.allowed == (18 << 30) + (1 << 20)
    account.look(18 << 30)
    assert not account.wants_measure(now=19), "a measurement of a second is not made again within twenty"
    account.settle(Measure(live=10 << 30, shared=5 << 30, young=0, seconds=0), billed=18 << 30, now=20)
    assert account.allowed == 18 << 30, "the tree is full"
    account.look(12 << 30)
    assert account.held == 2 << 30, "a snapshot was dropped: what it held is billed no more"
