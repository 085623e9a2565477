"""What only a snapshot still holds does not count against a unit; what its own tree holds does."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.storing import OTHER, UNIT, MiB, close_and_count, fill, make_driver, wait_until

from skerry.errors import Conflict
from skerry.storage.allowance import Account
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.subvolumes import Measure

LIMIT = 100 * MiB
NAME = "0" * 32


def roomy(state_dir: Path) -> BtrfsDriver:
    """What these tests write between two looks of the pool at its room must leave some for btrfs's own tables."""
    made = make_driver("btrfs", state_dir, headroom=384 * MiB)
    assert isinstance(made, BtrfsDriver)
    return made


@pytest.fixture
def pool(state_dir: Path) -> Iterator[BtrfsDriver]:
    made = roomy(state_dir)
    made.prepare()
    yield made
    made.prepare()
    for unit in made.units():
        made.delete(unit)
    close_and_count(made)


def snapshot(pool: BtrfsDriver, name: str = NAME, unit: str = UNIT) -> None:
    pool.sync(unit)
    pool.keep(pool.capture(unit), name)


def empty(directory: Path) -> None:
    for name in os.listdir(directory):
        (directory / name).unlink()


def test_what_only_a_snapshot_holds_does_not_count(pool: BtrfsDriver) -> None:
    """Limit 100, write 80, snapshot, delete, write 80: at once, and again, and after another server came."""
    upper = pool.create(UNIT, LIMIT) / "upper"
    for turn in range(2):
        assert fill(upper, 80 * MiB) == (80 * MiB, None), f"in turn {turn}"
        snapshot(pool, f"{turn:032}")
        empty(upper)
    pool.close()
    again = roomy(pool.state_dir)
    again.prepare()
    wait_until(lambda: again.usage(UNIT) < 10 * MiB, "the new server has measured")
    assert fill(upper, 80 * MiB) == (80 * MiB, None)
    again.close()


def test_a_tree_that_grows_beyond_its_limit_after_a_snapshot_is_stopped_and_goes_on_after_deleting(
    pool: BtrfsDriver,
) -> None:
    upper = pool.create(UNIT, LIMIT) / "upper"
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
        pool.resize(UNIT, 50 * MiB)
    empty(more)
    pool.sync(UNIT)
    wait_until(lambda: fill(more, 8 * MiB)[1] is None, "it can write again")
    pool.drop_snapshot(NAME)


def test_a_fork_begins_at_nothing_and_its_origin_is_not_charged_for_it(pool: BtrfsDriver) -> None:
    upper = pool.create(UNIT, LIMIT) / "upper"
    fill(upper, 80 * MiB)
    snapshot(pool)
    fork = pool.create(OTHER, LIMIT, origin=NAME) / "upper"
    pool.drop_snapshot(NAME)
    empty(upper)
    assert pool.usage(OTHER) < MiB
    (fork / "more").mkdir()
    assert fill(fork / "more", 80 * MiB) == (80 * MiB, None), "what it inherited does not count"
    assert fill(upper, 80 * MiB) == (80 * MiB, None), "what only the fork holds does not count"


def test_holes_punched_into_a_captured_file_make_no_room_that_is_not_there(pool: BtrfsDriver) -> None:
    """A part of an extent keeps all of it: who counted the files' sizes would grant it again and again."""
    upper = pool.create(UNIT, LIMIT) / "upper"
    (upper / "first").touch()
    snapshot(pool)
    for number in range(15):
        file = upper / str(number)
        with contextlib.suppress(OSError):
            file.write_bytes(os.urandom(8 * MiB))
        pool.sync(UNIT)
        with contextlib.suppress(OSError):
            os.truncate(file, 4096)
        pool.books.reconcile()
    # The pool's own looks come at any moment: what was written in the midst of one is granted ahead, once.
    assert pool.books.billed(pool.path(UNIT)) <= LIMIT + 8 * MiB + (LIMIT >> 4) + MiB
    pool.drop_snapshot(NAME)


def test_what_is_deleted_while_it_is_measured_is_not_granted_again_and_again() -> None:
    """It is billed when the measurement begins and found nowhere when it ends, as what snapshots hold is."""
    account, largest = Account(LIMIT), 0
    account.capture(1, 80 * MiB)
    for _ in range(10):
        billed = account.allowed  # written full, then all of it deleted in the middle of the measurement
        account.settle(Measure(live=0, shared=0, young=0, seconds=0.1), billed, now=0.0)
        largest = max(largest, billed)
    assert largest <= 2 * LIMIT


def test_a_limit_can_be_set_to_what_the_tree_takes_and_not_to_less(pool: BtrfsDriver) -> None:
    upper = pool.create(UNIT, LIMIT) / "upper"
    fill(upper, 80 * MiB)
    snapshot(pool)
    empty(upper)
    fill(upper, 20 * MiB)
    pool.resize(UNIT, 40 * MiB)
    (upper / "more").mkdir()
    written, number = fill(upper / "more", LIMIT)
    assert number == errno.EDQUOT
    assert 10 * MiB < written < 25 * MiB
    pool.drop_snapshot(NAME)


def test_the_grant_ahead_is_a_step_at_a_time_and_ends_at_the_limit() -> None:
    account = Account(limit=10 << 30)
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
