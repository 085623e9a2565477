"""An upper at one moment: kept, used as a start, stacked, removed. On every driver."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.storage import OTHER, UPPER, MiB, close_and_count, make_driver, wait_until

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage import LayerStore, kernel, new_snap, snap_name, subvolumes, tree
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import Driver, UpperDriver

LIMIT = 64 * MiB
NAME, SECOND = "0" * 31 + "1", "0" * 31 + "2"


def furnish(upper: Path) -> None:
    """One of everything that an upper can hold."""
    (upper / "file").write_text("as it was")
    (upper / "file").chmod(0o4711)
    os.chown(upper / "file", 1000, 1001)
    (upper / "file").chmod(0o4711)
    os.setxattr(upper / "file", "user.note", b"kept")
    os.link(upper / "file", upper / "twin")
    (upper / "link").symlink_to("/etc/passwd")
    os.mknod(upper / "gone", stat.S_IFCHR, os.makedev(0, 0))
    os.mkfifo(upper / "fifo")
    (upper / "dir").mkdir(mode=0o1777)
    os.setxattr(upper / "dir", "trusted.overlay.opaque", b"y")
    with open(upper / "dir/holes", "wb") as file:
        file.truncate(4 * MiB)
        file.seek(2 * MiB)
        file.write(b"in the middle")
    for path in (upper / "file", upper / "dir"):
        os.utime(path, (1_000_000, 2_000_000))


def snapshot(driver: Driver, upper: str = UPPER, name: str = NAME) -> Path:
    driver.sync(upper)
    driver.keep(driver.capture(upper), name)
    return driver.snapshot_path(name)


def test_a_snapshot_holds_the_upper_at_its_moment(driver: UpperDriver) -> None:
    upper = driver.create(UPPER, LIMIT) / "upper"
    furnish(upper)
    before = tree.digest(upper)
    kept = snapshot(driver)
    (upper / "file").write_text("changed")
    (upper / "link").unlink()
    (upper / "new").touch()
    assert tree.digest(kept) == before != tree.digest(upper)
    assert os.stat(kept / "dir").st_mtime == os.stat(kept / "file").st_mtime == 2_000_000
    assert os.stat(kept / "dir/holes").st_blocks * 512 < MiB
    assert driver.snapshots() == {NAME}
    assert os.listdir(kept.parent) == ["upper"], "no work directory"
    assert os.listdir(driver.home / "t") == []
    assert driver.snapshot_size(NAME) < 2 * MiB


def test_btrfs_snapshots_are_read_only_even_for_root(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    driver.prepare()
    driver.create(UPPER, LIMIT)
    with pytest.raises(OSError, match="Read-only"):
        (snapshot(driver) / "file").touch()
    driver.keep(driver.capture(UPPER), SECOND, durable=False)
    assert isinstance(driver, BtrfsDriver)
    wait_until(lambda: subvolumes.is_read_only(driver.home / "s" / SECOND), "it is sealed soon")
    close_and_count(driver)


def test_an_upper_started_from_a_snapshot_is_independent(driver: UpperDriver) -> None:
    furnish(driver.create(UPPER, LIMIT) / "upper")
    kept = snapshot(driver)
    before = tree.digest(kept)
    upper = driver.create(OTHER, LIMIT, origin=NAME)
    assert tree.digest(upper / "upper") == before
    assert stat.S_IMODE(os.stat(upper / "work").st_mode) == 0o755
    (upper / "upper/file").write_text("of the copy")
    assert tree.digest(kept) == before == tree.digest(driver.path(UPPER) / "upper")
    driver.delete(UPPER)
    driver.drop_snapshot(NAME)
    assert (driver.path(OTHER) / "upper/file").read_text() == "of the copy"
    assert (driver.path(OTHER) / "upper/twin").read_text() == "of the copy", "one file, two names"


def test_clone_of_an_upper_is_separate(driver: UpperDriver) -> None:
    volume, copy = "vl-aaaaaaaaaa", "vl-bbbbbbbbbb"
    upper = driver.create(volume, 64 * MiB) / "upper"
    (upper / "var/lib/skerry").mkdir(parents=True)
    (upper / "file").write_text("first")
    driver.clone(volume, copy, 64 * MiB)
    clone = driver.path(copy) / "upper"
    (upper / "file").write_text("second")
    assert (clone / "file").read_text() == "first"
    assert (clone / "var/lib/skerry").is_dir()
    with pytest.raises(Conflict):
        driver.clone(volume, copy, 64 * MiB)
    driver.delete(volume)
    assert (clone / "file").read_text() == "first"
    assert (driver.volumes(), driver.uppers()) == ({copy}, set())
    driver.delete(copy)
    assert driver.volumes() == set()


def test_an_upper_may_consume_its_snapshot(driver: UpperDriver) -> None:
    furnish(driver.create(UPPER, LIMIT) / "upper")
    before = tree.digest(driver.path(UPPER) / "upper")
    driver.keep(driver.capture(UPPER), NAME, durable=False)
    upper = driver.create(OTHER, LIMIT, origin=NAME, consume=True)
    driver.drop_snapshot(NAME)
    assert tree.digest(upper / "upper") == before
    assert stat.S_IMODE(os.stat(upper / "work").st_mode) == 0o755
    (upper / "upper/file").write_text("of the copy")
    assert tree.digest(driver.path(UPPER) / "upper") == before
    assert (driver.snapshots(), os.listdir(driver.home / "t")) == (set(), [])
    if driver.enforces_limit:
        with pytest.raises(OSError, match=r"quota|space"):
            (upper / "upper/large").write_bytes(os.urandom(2 * LIMIT))


def test_btrfs_snapshot_that_is_not_sealed_becomes_the_upper_itself(state_dir: Path) -> None:
    """A sealed one is copied: it is read-only."""
    driver = make_driver("btrfs", state_dir)
    assert isinstance(driver, BtrfsDriver)
    UpperDriver.prepare(driver)  # without the thread that seals snapshots
    (driver.create(UPPER, LIMIT) / "upper/file").write_text("kept")
    for name, durable in ((NAME, False), (SECOND, True)):
        driver.keep(driver.capture(UPPER), name, durable=durable)
        inode = (driver.home / "s" / name).stat().st_ino, (driver.home / "s" / name).stat().st_dev
        upper = driver.create(OTHER, LIMIT, origin=name, consume=True)
        assert ((upper.stat().st_ino, upper.stat().st_dev) == inode) is not durable
        assert driver.snapshots() == ({name} if durable else set())
        (upper / "upper/file").write_text("changed")
        driver.delete(OTHER)
    close_and_count(driver)


def test_a_snapshot_outlives_its_upper_and_driver(driver: UpperDriver) -> None:
    (driver.create(UPPER, LIMIT) / "upper/file").write_text("kept")
    snapshot(driver)
    driver.delete(UPPER)
    driver.close()
    driver.prepare()
    assert (driver.snapshot_path(NAME) / "file").read_text() == "kept"
    driver.drop_snapshot(NAME)
    driver.drop_snapshot(NAME)
    assert driver.snapshots() == set()
    with pytest.raises(NotFound):
        driver.snapshot_path(NAME)
    with pytest.raises(NotFound):
        driver.create(UPPER, LIMIT, origin=NAME)


def test_snapshots_exclude_the_keepers_files(driver: UpperDriver, tmp_path: Path) -> None:
    upper = driver.create(UPPER, LIMIT) / "upper"
    (upper / "var/lib/skerry/journal").mkdir(parents=True)
    (upper / "var/lib/skerry/journal/out").write_text("a password")
    (upper / "var/lib/apt").mkdir()
    kept = snapshot(driver)
    assert os.listdir(kept / "var/lib") == ["apt"]
    assert (upper / "var/lib/skerry/journal/out").exists(), "the sandbox itself goes on with it"


@pytest.mark.parametrize("link", ["var", "var/lib", "var/lib/skerry"])
def test_forget_keeper_follows_no_link_to_the_host(driver: UpperDriver, tmp_path: Path, link: str) -> None:
    treasure = tmp_path / "treasure"
    for name in ("lib/skerry", "skerry"):
        (treasure / name).mkdir(parents=True)
        (treasure / name / "file").write_text("kept")
    (treasure / "file").write_text("kept")
    upper = driver.create(UPPER, LIMIT) / "upper"
    (upper / link).parent.mkdir(parents=True, exist_ok=True)
    (upper / link).symlink_to(treasure)
    snapshot(driver)
    assert all((treasure / name).exists() for name in ("lib/skerry/file", "skerry/file", "file"))


def test_a_captured_upper_survives_a_sweep_until_discarded(driver: UpperDriver) -> None:
    driver.create(UPPER, LIMIT)
    token = driver.capture(UPPER)
    assert driver.uppers() == {UPPER}
    assert os.listdir(driver.home / "t") == [token]
    driver.discard(token)
    driver.discard(token)
    assert (os.listdir(driver.home / "t"), driver.snapshots()) == ([], set())


def test_a_snapshot_name_is_unique_and_never_a_path(driver: UpperDriver) -> None:
    (driver.create(UPPER, LIMIT) / "upper/file").write_text("first")
    snapshot(driver)
    token = driver.capture(UPPER)
    with pytest.raises(Conflict):
        driver.keep(token, NAME)
    driver.discard(token)
    assert (driver.snapshot_path(NAME) / "file").read_text() == "first"
    for hostile in ("", "..", "../" + "0" * 29, "/" + "0" * 31, "A" * 32, NAME + "\n"):
        with pytest.raises(InvalidRequest):
            driver.snapshot_path(hostile)
        with pytest.raises(InvalidRequest):
            driver.drop_snapshot(hostile)


def test_a_damaged_snapshot_is_found_named_and_not_served(driver: UpperDriver, tmp_path: Path) -> None:
    """btrfs's own checksums see a bit that fell over on the disk below; elsewhere the digest does."""
    store, ref = LayerStore(tmp_path / "layers", driver), new_snap()
    content = os.urandom(8192)
    (driver.create(UPPER, LIMIT) / "upper/file").write_bytes(content)
    driver.sync(UPPER)
    driver.keep(driver.capture(UPPER), snap_name(ref))
    if not isinstance(driver, BtrfsDriver):
        assert store.verify(ref)
        store.path(ref).joinpath("file").write_bytes(content[:-1])
    else:
        driver.close()
        with open(driver.image, "r+b") as file, mmap.mmap(file.fileno(), 0) as disk:
            at = disk.find(content)
            disk[at] ^= 1
        driver.prepare()
    assert not store.verify(ref)
    with pytest.raises(Conflict, match=f"{ref} is damaged"):
        store.check(ref)
    store.remove(ref)
    assert os.listdir(store.root) == []


def test_a_snapshot_of_endless_holes_is_verified_in_finite_time(
    driver: UpperDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone inside can make such a file; reading eight exbibytes of nothing would never end."""
    monkeypatch.setattr("skerry.storage.layers._MAX_READ", 8 * MiB)
    store, ref = LayerStore(tmp_path / "layers", driver), new_snap()
    os.truncate(_file(driver.create(UPPER, LIMIT) / "upper/holes"), 15 << 40)
    driver.keep(driver.capture(UPPER), snap_name(ref))
    assert store.verify(ref)
    assert store.check(ref).joinpath("holes").stat().st_size == 15 << 40


def _file(path: Path) -> Path:
    path.touch()
    return path


def test_a_copied_snapshot_keeps_the_hosts_minimum_free_space(
    driver: UpperDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver.create(UPPER, LIMIT) / "upper/file").touch()
    monkeypatch.setattr(driver, "usage", lambda upper: 1 << 50)
    if isinstance(driver, BtrfsDriver):  # which shares every block
        driver.discard(driver.capture(UPPER))
        return
    with pytest.raises(QuotaExceeded, match="less than the reserve"):
        driver.capture(UPPER)
    monkeypatch.undo()
    snapshot(driver)
    monkeypatch.setattr(driver, "cost", lambda origin: 1 << 50)
    with pytest.raises(QuotaExceeded, match="less than the reserve"):
        driver.create(OTHER, LIMIT, NAME)
    assert driver.uppers() == {UPPER}
    assert os.listdir(driver.home / "t") == []


def test_snapshots_stack_as_layers(driver: UpperDriver, tmp_path: Path) -> None:
    """The kernel sees whiteouts and opaque directories of a snapshot below as it did of the upper."""
    store = LayerStore(tmp_path / "layers", driver)
    ref = new_snap()
    upper = driver.create(UPPER, LIMIT) / "upper"
    os.mknod(upper / "gone", stat.S_IFCHR, os.makedev(0, 0))
    (upper / "new").write_text("of the snapshot")
    driver.keep(driver.capture(UPPER), snap_name(ref))
    base, merged = tmp_path / "base", tmp_path / "merged"
    for path in (base, merged):
        path.mkdir()
    (base / "gone").touch()
    upper = driver.create(OTHER, LIMIT)
    lower = f"{store.check(ref)}:{base}"
    options = f"lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work"
    subprocess.run(["mount", "-t", "overlay", "skerry-test", "-o", options, str(merged)], check=True)
    try:
        assert os.listdir(merged) == ["new"]
        (merged / "new").write_text("of the sandbox")
    finally:
        kernel.unmount(merged)
    assert (store.path(ref) / "new").read_text() == "of the snapshot"
    assert store.digests() == [ref]
    assert store.verify(ref)
    assert store.size(ref) < MiB
    store.remove(ref)
    assert not store.has(ref)
    assert os.listdir(store.root) == []
    with pytest.raises(NotFound, match=ref):
        store.check(ref)
