"""The host's disk filled up by others, under a pool that sandboxes use."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage import OTHER, UPPER, MiB, close_and_count, fill, make_driver, wait_until

from skerry.errors import QuotaExceeded
from skerry.storage import kernel
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.mounts import mounts_below


@pytest.fixture
def small_host(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 MiB that stands for the host's disk."""
    disk, mounted = tmp_path / "disk", tmp_path / "host"
    mounted.mkdir()
    disk.touch()
    os.truncate(disk, 512 * MiB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)  # another test's mount namespace may have a copy


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


@pytest.fixture
def pool(small_host: Path) -> Iterator[BtrfsDriver]:
    made = make_driver("btrfs", small_host / "state", min_free=32 * MiB)
    assert isinstance(made, BtrfsDriver)
    made.prepare()
    yield made
    close_and_count(made)


def size_of(pool: BtrfsDriver) -> int:
    """The bytes that the pool may write; each is backed by the host's disk."""
    found = os.stat(pool.image)
    assert found.st_blocks * 512 >= found.st_size
    inside = os.statvfs(pool.home)
    assert inside.f_blocks * inside.f_frsize <= found.st_size
    return found.st_size


def test_a_full_host_rejects_new_sandboxes_and_fails_writes_safely(small_host: Path, pool: BtrfsDriver) -> None:
    busy, quiet = pool.create(UPPER, 400 * MiB), pool.create(OTHER, 400 * MiB)
    (quiet / "upper/file").write_text("kept")
    hog = fill_host(small_host)

    with pytest.raises(QuotaExceeded, match="reserve"):
        pool.create("sb-cccccccccc", MiB)
    assert fill(busy / "upper", 600 * MiB)[1] == errno.ENOSPC, "and never an I/O error"
    for number in range(20):  # snapshots on the full disk: each is made whole, or not at all
        with contextlib.suppress(QuotaExceeded, OSError):
            pool.keep(pool.capture(OTHER), f"{number:032}")
            (quiet / f"upper/{number}").write_bytes(os.urandom(64 << 10))
    pool.sweep()
    for name in pool.snapshots():
        assert (pool.snapshot_path(name) / "file").read_text() == "kept"
        pool.drop_snapshot(name)
    kernel.syncfs(pool.home)
    assert not any("ro" in mount.super_options for mount in mounts_below(pool.home))
    assert (quiet / "upper/file").read_text() == "kept"
    pool.delete(UPPER)  # on the disk that is full still
    wait_until(lambda: fill(quiet / "upper", 64 * MiB)[1] is None, "the others write where the deleted one had")

    hog.unlink()
    pool.create("sb-cccccccccc", 16 * MiB)
    for upper in pool.uppers():
        pool.delete(upper)


def test_a_pool_grows_ahead_of_writes_and_stops_at_the_minimum_free_space(pool: BtrfsDriver) -> None:
    before = size_of(pool)
    assert before < 300 * MiB
    upper = pool.create(UPPER, 1024 * MiB) / "upper"
    for number in range(5):
        (upper / str(number)).write_bytes(os.urandom(32 * MiB))
        kernel.syncfs(pool.home)
        wait_until(lambda: pool.backing.room().free >= pool.backing.preallocate, "there is room again")
    assert size_of(pool) > before

    def host_free() -> int:
        found = os.statvfs(pool.state_dir)
        return found.f_bavail * found.f_frsize

    wait_until(
        lambda: fill(upper, 1024 * MiB)[1] == errno.ENOSPC and host_free() < 96 * MiB, "all but the reserve is taken"
    )
    assert host_free() > 24 * MiB, "the host keeps its reserve"
    pool.delete(UPPER)


def test_a_pool_stops_at_its_maximum_size(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    assert isinstance(driver, BtrfsDriver)
    driver.backing.most, driver.backing.preallocate = 288 * MiB, 64 * MiB
    driver.prepare()
    upper = driver.create(UPPER, 1024 * MiB) / "upper"
    assert fill(upper, 320 * MiB)[1] == errno.ENOSPC
    wait_until(lambda: size_of(driver) == 288 * MiB and fill(upper, 320 * MiB)[1] is not None, "the pool is full")
    wait_until(lambda: driver.backing.free < 8 * MiB, "the next round has noticed it")
    with pytest.raises(QuotaExceeded, match="pool of 288M is full"):
        driver.create(OTHER, MiB)
    driver.backing.most = 512 * MiB
    wait_until(lambda: fill(upper, 320 * MiB)[1] is None, "a higher number counts at once")
    assert 320 * MiB < size_of(driver) <= 512 * MiB
    driver.delete(UPPER)
    close_and_count(driver)


def test_an_old_sparse_pool_is_backed_and_shrunk(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    assert isinstance(driver, BtrfsDriver)
    os.makedirs(state_dir)
    driver.image.touch()
    os.truncate(driver.image, 8 << 30)
    subprocess.run(["mkfs.btrfs", "-q", "-d", "single", "-m", "single", str(driver.image)], check=True)
    driver.prepare()
    assert size_of(driver) < 2 << 30
    close_and_count(driver)


def test_free_space_at_the_end_of_a_pool_returns_to_the_host(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    assert isinstance(driver, BtrfsDriver)
    driver.backing.preallocate = 1024 * MiB
    driver.prepare()
    (driver.create(UPPER, 256 * MiB) / "upper/file").write_text("kept")
    full = size_of(driver)
    driver.backing.preallocate = 128 * MiB
    driver.backing.tend()
    assert size_of(driver) < full // 2
    assert (driver.path(UPPER) / "upper/file").read_text() == "kept"
    driver.delete(UPPER)
    close_and_count(driver)
