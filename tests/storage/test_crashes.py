"""kill -9 between any two steps: afterwards an upper or snapshot is complete or gone, and nothing else is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.storage import OTHER, UPPER, MiB, close_and_count, leftovers, loop_devices, make_driver

from skerry.storage import kernel
from skerry.storage.driver import UpperDriver

LIMIT = 16 * MiB
NAME = "0" * 32
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}
STEPS |= {"fcntl.ioctl", "fcntl.flock", "subprocess.Popen"}


def live(driver: UpperDriver) -> None:
    """Everything that a driver does to units and snapshots."""
    driver.create(UPPER, LIMIT)
    driver.keep(driver.capture(UPPER), NAME)
    driver.create(OTHER, LIMIT, origin=NAME)
    driver.delete(OTHER)
    driver.drop_snapshot(NAME)


def die_at_step(step: int, work: Callable[[], None], before: Callable[[], None] = lambda: None) -> bool:
    """Does the work in a process that kills itself at its n-th effect. False: there are not so many."""
    child = os.fork()
    if child == 0:
        try:
            count = 0

            def hook(event: str, arguments: tuple[Any, ...]) -> None:
                nonlocal count
                if event in STEPS:
                    count += 1
                    if count == step:
                        os.kill(os.getpid(), signal.SIGKILL)

            before()
            sys.addaudithook(hook)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def check_and_clear(driver: UpperDriver) -> None:
    """Check that everything is complete and nothing else is left."""
    driver.prepare()
    assert driver.uppers() <= {UPPER, OTHER}
    assert driver.snapshots() <= {NAME}
    for upper in driver.uppers():
        assert {"upper", "work"} <= set(os.listdir(driver.path(upper)))
        driver.delete(upper)
    for snapshot in driver.snapshots():
        assert os.listdir(driver.snapshot_path(snapshot).parent) == ["upper"]
        driver.drop_snapshot(snapshot)
    assert all(os.listdir(driver.home / folder) == [] for folder in ("u", "s", "t"))


@pytest.mark.parametrize("name", ["btrfs", "loop", "plain"])
def test_a_driver_killed_during_prepare_can_prepare_again(name: str, tmp_path: Path) -> None:
    step, died = 0, True
    while died:
        step += 1
        driver = make_driver(name, tmp_path / str(step))
        died = die_at_step(step, driver.prepare)
        check_and_clear(driver)
        driver.create(UPPER, LIMIT)
        driver.delete(UPPER)
        close_and_count(driver)
        shutil.rmtree(driver.state_dir)
    assert step > 3, "the steps were not seen"


@pytest.mark.parametrize("name", ["btrfs", "loop", "plain"])
def test_a_driver_killed_at_any_step_leaves_only_complete_uppers_and_snapshots(name: str, state_dir: Path) -> None:
    driver = make_driver(name, state_dir)
    step, died = 0, True
    while died:
        step += 1
        dying = make_driver(name, state_dir)
        died = die_at_step(step, partial(live, dying), dying.prepare)
        check_and_clear(driver)
    assert step > 15, "the steps were not seen"
    (driver.create(UPPER, LIMIT) / "upper/file").write_text("x")
    driver.delete(UPPER)
    close_and_count(driver)


def test_a_pool_mounted_by_a_dead_server_is_adopted(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    assert not die_at_step(0, partial(driver.create, UPPER, LIMIT), driver.prepare)
    before = leftovers(state_dir)
    assert len(before) == 2, "one mount, one loop device"
    driver.prepare()
    assert leftovers(state_dir) == before
    assert driver.uppers() == {UPPER}
    close_and_count(driver)


def test_a_pool_that_only_sandboxes_still_hold_is_mounted_from_the_same_device(state_dir: Path) -> None:
    """Two devices on one file would be two caches of one disk. An open file of a lazily unmounted pool stands for
    the mounts that sandboxes have of it."""
    driver = make_driver("btrfs", state_dir)
    driver.prepare()
    with open(driver.create(UPPER, LIMIT) / "upper/file", "w") as file:
        devices = loop_devices(state_dir)
        kernel.unmount(driver.home, kernel.MNT_DETACH)
        driver.prepare()
        assert loop_devices(state_dir) == devices
        file.write("seen")
        file.flush()
        assert (driver.path(UPPER) / "upper/file").read_text() == "seen"
    close_and_count(driver)


def test_two_state_directories_are_independent(tmp_path: Path) -> None:
    drivers = [make_driver("btrfs", tmp_path / name) for name in ("one", "two")]
    for driver in drivers:
        driver.prepare()
    (drivers[0].create(UPPER, LIMIT) / "upper/file").write_text("one")
    assert drivers[1].uppers() == set()
    (drivers[1].create(UPPER, LIMIT) / "upper/file").write_text("two")
    close_and_count(drivers[0])
    assert (drivers[1].path(UPPER) / "upper/file").read_text() == "two"
    drivers[0].prepare()
    assert (drivers[0].path(UPPER) / "upper/file").read_text() == "one"
    for driver in drivers:
        close_and_count(driver)
