"""Helpers for storage tests: drivers on temporary directories, and checks for leftovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import PlainDriver, UpperDriver
from skerry.storage.loop import LoopDriver
from skerry.storage.mounts import mounts_below

MiB = 1 << 20
UPPER, OTHER = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"
KINDS: dict[str, type[BtrfsDriver] | type[LoopDriver] | type[PlainDriver]] = {
    "btrfs": BtrfsDriver,
    "loop": LoopDriver,
    "plain": PlainDriver,
}


def make_driver(
    name: str, state_dir: Path, min_free: int = MiB, preallocate: int = 128 * MiB
) -> BtrfsDriver | LoopDriver | PlainDriver:
    missing = KINDS[name].missing_feature()
    if missing is not None:
        pytest.skip(f"the driver {name} does not work here: {missing.reason}")
    if name == "btrfs":
        return BtrfsDriver(state_dir, min_free, pool_size=2048 * MiB, preallocate=preallocate)
    return KINDS[name](state_dir, min_free)


def loop_devices(state_dir: Path) -> list[str]:
    """The loop devices on files of this state directory, deleted files included."""
    found = []
    for name in os.listdir("/sys/block"):
        try:
            backing = Path(f"/sys/block/{name}/loop/backing_file").read_text()
        except OSError:
            continue
        if backing.startswith(f"{state_dir}/"):
            found.append(name)
    return found


def leftovers(state_dir: Path) -> list[str]:
    return [str(mount.point) for mount in mounts_below(state_dir)] + loop_devices(state_dir)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not after {seconds} s: {what}"
        time.sleep(0.02)


def held_by_others(device: str) -> bool:
    """Whether a mount namespace that another test made meanwhile, with a copy of every mount, keeps a device."""
    own = os.readlink("/proc/self/ns/mnt")
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            held = f"/dev/{device} " in Path(f"/proc/{process}/mountinfo").read_text()
            if held and os.readlink(f"/proc/{process}/ns/mnt") != own:
                return True
    return False


def close_and_count(driver: UpperDriver) -> None:
    driver.close()
    # The kernel lets go of a loop device a moment after the unmount.
    wait_until(
        lambda: all(held_by_others(left) for left in leftovers(driver.state_dir)),
        f"no mount and no loop device of {driver.state_dir}",
    )


def fill(directory: Path, most: int) -> tuple[int, int | None]:
    """Writes until it fails; how many bytes went in, and with which errno it ended."""
    written = 0
    block = os.urandom(256 * 1024)
    for number in itertools.count():
        try:
            with open(directory / f"fill-{number}", "wb", buffering=0) as file:
                for _ in range(16):
                    if written >= most:
                        return written, None
                    written += file.write(block)
                os.fsync(file.fileno())
        except OSError as error:
            return written, error.errno
    return written, None
