"""kill -9 between any two steps: afterwards a unit is whole or gone, and nothing else is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from storage.storing import OTHER, UNIT, MiB, close_and_count, leftovers, loop_devices, make_driver, wait_until

from skerry.storage import kernel
from skerry.storage.driver import UnitDriver

LIMIT = 16 * MiB
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}
STEPS |= {"fcntl.ioctl", "fcntl.flock", "subprocess.Popen"}


def die_at_step(driver: UnitDriver, step: int) -> bool:
    """Runs a driver's whole life in a process that kills itself at its n-th effect. False: there are not so many."""
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

            sys.addaudithook(hook)
            driver.prepare()
            driver.create(UNIT, LIMIT)
            driver.create(OTHER, LIMIT)
            driver.delete(OTHER)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("name", ["btrfs", "loop", "plain"])
def test_a_driver_killed_at_any_step_leaves_whole_units_only(name: str, tmp_path: Path) -> None:
    step, died = 0, True
    while died:
        step += 1
        state_dir = tmp_path / str(step)
        died = die_at_step(make_driver(name, state_dir), step)
        driver = make_driver(name, state_dir)
        driver.prepare()
        left = driver.units()
        assert left <= {UNIT, OTHER}
        for unit in left:
            assert {"upper", "work"} <= set(os.listdir(driver.path(unit)))
            driver.delete(unit)
        (driver.create(UNIT, LIMIT) / "upper/file").write_text("x")
        driver.delete(UNIT)
        assert os.listdir(driver.home / "u") == os.listdir(driver.home / "t") == []
        close_and_count(driver)
        shutil.rmtree(state_dir)
    assert step > 15, "the steps were not seen"


def test_a_pool_mounted_by_a_dead_server_is_adopted(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    assert not die_at_step(driver, 0)
    before = leftovers(state_dir)
    assert len(before) == 2, "one mount, one loop device"
    driver.prepare()
    assert leftovers(state_dir) == before
    assert driver.units() == {UNIT}
    close_and_count(driver)


def test_a_pool_that_only_sandboxes_still_hold_is_mounted_from_the_same_device(state_dir: Path) -> None:
    """Two devices on one file would be two caches of one disk. An open file of a lazily unmounted pool stands for
    the mounts that sandboxes have of it."""
    driver = make_driver("btrfs", state_dir)
    driver.prepare()
    with open(driver.create(UNIT, LIMIT) / "upper/file", "w") as file:
        devices = loop_devices(state_dir)
        kernel.unmount(driver.home, kernel.MNT_DETACH)
        driver.prepare()
        assert loop_devices(state_dir) == devices
        file.write("seen")
        file.flush()
        assert (driver.path(UNIT) / "upper/file").read_text() == "seen"
    close_and_count(driver)


def test_two_state_directories_do_not_meet(tmp_path: Path) -> None:
    drivers = [make_driver("btrfs", tmp_path / name) for name in ("one", "two")]
    for driver in drivers:
        driver.prepare()
    (drivers[0].create(UNIT, LIMIT) / "upper/file").write_text("one")
    assert drivers[1].units() == set()
    (drivers[1].create(UNIT, LIMIT) / "upper/file").write_text("two")
    close_and_count(drivers[0])
    assert (drivers[1].path(UNIT) / "upper/file").read_text() == "two"
    drivers[0].prepare()
    assert (drivers[0].path(UNIT) / "upper/file").read_text() == "one"
    for driver in drivers:
        close_and_count(driver)


@pytest.mark.soak
def test_space_that_a_unit_frees_goes_back_to_the_host(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    driver.prepare()
    unit = driver.create(UNIT, 256 * MiB)
    (unit / "upper/file").write_bytes(os.urandom(128 * MiB))
    kernel.syncfs(driver.home)
    full = os.stat(driver.image).st_blocks
    driver.delete(UNIT)
    kernel.syncfs(driver.home)
    wait_until(lambda: os.stat(driver.image).st_blocks < full // 2, "the pool's file has shrunk", seconds=90)
    close_and_count(driver)


def test_a_pool_grows_with_the_operators_wish(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    driver.pool_size = 512 * MiB
    driver.prepare()
    (driver.create(UNIT, LIMIT) / "upper/file").write_text("kept")
    driver.pool_size = 1024 * MiB
    driver.prepare()
    found = os.statvfs(driver.home)
    assert found.f_blocks * found.f_frsize > 900 * MiB
    assert (driver.path(UNIT) / "upper/file").read_text() == "kept"
    close_and_count(driver)


def test_a_pool_never_promises_more_than_the_hosts_disk_has(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    driver.pool_size = 1 << 60
    driver.prepare()
    host, pool = os.statvfs(state_dir), os.statvfs(driver.home)
    assert pool.f_blocks * pool.f_frsize <= host.f_bfree * host.f_frsize + os.stat(driver.image).st_blocks * 512
    close_and_count(driver)
