"""The host's disk filled up by others, under a pool that sandboxes use."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.storing import OTHER, UNIT, MiB, close_and_count, fill, make_driver

from skerry.errors import QuotaExceeded
from skerry.storage import kernel


@pytest.fixture
def small_host(tmp_path: Path) -> Iterator[Path]:
    """A file system of 700 MiB that stands for the host's disk."""
    disk, mounted = tmp_path / "disk", tmp_path / "host"
    mounted.mkdir()
    disk.touch()
    os.truncate(disk, 700 * MiB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def take_steps(fd: int, step: int) -> None:
    for offset in itertools.count(os.fstat(fd).st_size, step):
        os.posix_fallocate(fd, offset, step)


def fill_host(host: Path) -> Path:
    """Takes the last block, as a log file or a download would."""
    file = host / "fill"
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    for step in (16 * MiB, MiB, 4096):
        with pytest.raises(OSError, match="space"):
            take_steps(fd, step)
    os.close(fd)
    return file


def test_a_full_host_refuses_new_sandboxes_fails_writes_and_loses_nothing(small_host: Path) -> None:
    driver = make_driver("btrfs", small_host / "state", reserve=32 * MiB)
    driver.prepare()
    busy, quiet = driver.create(UNIT, 400 * MiB), driver.create(OTHER, 400 * MiB)
    (quiet / "upper/file").write_text("kept")
    kernel.syncfs(driver.home)

    hog = fill_host(small_host)
    with pytest.raises(QuotaExceeded, match="reserve"):
        driver.create("sb-cccccccccc", MiB)
    assert fill(busy / "upper", 300 * MiB)[1] in (errno.ENOSPC, errno.EIO, errno.EROFS)
    assert (quiet / "upper/file").read_text() == "kept"

    hog.unlink()
    driver = make_driver("btrfs", small_host / "state", reserve=32 * MiB)
    driver.prepare()
    assert driver.units() == {UNIT, OTHER}
    assert (driver.path(OTHER) / "upper/file").read_text() == "kept"
    driver.create("sb-cccccccccc", 16 * MiB)
    assert fill(driver.path("sb-cccccccccc") / "upper", 4 * MiB) == (4 * MiB, None)
    close_and_count(driver)
