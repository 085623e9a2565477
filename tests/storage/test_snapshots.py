"""A unit's upper as it was at one moment: kept, begun from, stacked, removed. On every driver."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
from pathlib import Path

import pytest
from storage.storing import OTHER, UNIT, MiB, close_and_count, make_driver, wait_until

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage import LayerStore, kernel, new_snap, snap_name, subvolumes, tree
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import Driver, UnitDriver

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


def snapshot(driver: Driver, unit: str = UNIT, name: str = NAME) -> Path:
    driver.sync(unit)
    driver.keep(driver.capture(unit), name)
    return driver.snapshot_path(name)


def test_a_snapshot_holds_all_that_the_upper_held_and_nothing_that_came_after(driver: UnitDriver) -> None:
    upper = driver.create(UNIT, LIMIT) / "upper"
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


def test_not_even_root_writes_to_a_snapshot_that_btrfs_keeps(state_dir: Path) -> None:
    driver = make_driver("btrfs", state_dir)
    driver.prepare()
    driver.create(UNIT, LIMIT)
    with pytest.raises(OSError, match="Read-only"):
        (snapshot(driver) / "file").touch()
    driver.keep(driver.capture(UNIT), SECOND, durable=False)
    assert isinstance(driver, BtrfsDriver)
    wait_until(lambda: subvolumes.is_read_only(driver.home / "s" / SECOND), "it is sealed soon")
    close_and_count(driver)


def test_a_unit_that_begins_as_a_snapshot_is_its_own(driver: UnitDriver) -> None:
    furnish(driver.create(UNIT, LIMIT) / "upper")
    kept = snapshot(driver)
    before = tree.digest(kept)
    unit = driver.create(OTHER, LIMIT, origin=NAME)
    assert tree.digest(unit / "upper") == before
    assert stat.S_IMODE(os.stat(unit / "work").st_mode) == 0o755
    (unit / "upper/file").write_text("of the copy")
    assert tree.digest(kept) == before == tree.digest(driver.path(UNIT) / "upper")
    driver.delete(UNIT)
    driver.drop_snapshot(NAME)
    assert (driver.path(OTHER) / "upper/file").read_text() == "of the copy"
    assert (driver.path(OTHER) / "upper/twin").read_text() == "of the copy", "one file, two names"


def test_a_snapshot_outlives_its_unit_and_the_driver(driver: UnitDriver) -> None:
    (driver.create(UNIT, LIMIT) / "upper/file").write_text("kept")
    snapshot(driver)
    driver.delete(UNIT)
    driver.close()
    driver.prepare()
    assert (driver.snapshot_path(NAME) / "file").read_text() == "kept"
    driver.drop_snapshot(NAME)
    driver.drop_snapshot(NAME)
    assert driver.snapshots() == set()
    with pytest.raises(NotFound):
        driver.snapshot_path(NAME)
    with pytest.raises(NotFound):
        driver.create(UNIT, LIMIT, origin=NAME)


def test_what_the_keeper_wrote_is_in_no_snapshot(driver: UnitDriver, tmp_path: Path) -> None:
    upper = driver.create(UNIT, LIMIT) / "upper"
    (upper / "var/lib/skerry/journal").mkdir(parents=True)
    (upper / "var/lib/skerry/journal/out").write_text("a password")
    (upper / "var/lib/apt").mkdir()
    kept = snapshot(driver)
    assert os.listdir(kept / "var/lib") == ["apt"]
    assert (upper / "var/lib/skerry/journal/out").exists(), "the sandbox itself goes on with it"


@pytest.mark.parametrize("link", ["var", "var/lib", "var/lib/skerry"])
def test_forgetting_the_keeper_follows_no_link_to_the_host(driver: UnitDriver, tmp_path: Path, link: str) -> None:
    treasure = tmp_path / "treasure"
    for name in ("lib/skerry", "skerry"):
        (treasure / name).mkdir(parents=True)
        (treasure / name / "file").write_text("kept")
    (treasure / "file").write_text("kept")
    upper = driver.create(UNIT, LIMIT) / "upper"
    (upper / link).parent.mkdir(parents=True, exist_ok=True)
    (upper / link).symlink_to(treasure)
    snapshot(driver)
    assert all((treasure / name).exists() for name in ("lib/skerry/file", "skerry/file", "file"))


def test_a_captured_unit_survives_a_sweep_until_it_is_discarded(driver: UnitDriver) -> None:
    driver.create(UNIT, LIMIT)
    token = driver.capture(UNIT)
    assert driver.units() == {UNIT}
    assert os.listdir(driver.home / "t") == [token]
    driver.discard(token)
    driver.discard(token)
    assert (os.listdir(driver.home / "t"), driver.snapshots()) == ([], set())


def test_a_snapshots_name_is_taken_once_and_never_a_path(driver: UnitDriver) -> None:
    (driver.create(UNIT, LIMIT) / "upper/file").write_text("first")
    snapshot(driver)
    token = driver.capture(UNIT)
    with pytest.raises(Conflict):
        driver.keep(token, NAME)
    driver.discard(token)
    assert (driver.snapshot_path(NAME) / "file").read_text() == "first"
    for hostile in ("", "..", "../" + "0" * 29, "/" + "0" * 31, "A" * 32, NAME + "\n"):
        with pytest.raises(InvalidRequest):
            driver.snapshot_path(hostile)
        with pytest.raises(InvalidRequest):
            driver.drop_snapshot(hostile)


def test_a_damaged_snapshot_is_found_named_and_not_served(driver: UnitDriver, tmp_path: Path) -> None:
    """btrfs's own checksums see a bit that fell over on the disk below; elsewhere the digest does."""
    store, ref = LayerStore(tmp_path / "layers", driver), new_snap()
    content = os.urandom(8192)
    (driver.create(UNIT, LIMIT) / "upper/file").write_bytes(content)
    driver.sync(UNIT)
    driver.keep(driver.capture(UNIT), snap_name(ref))
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
    driver: UnitDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone inside can make such a file; reading eight exbibytes of nothing would never end."""
    monkeypatch.setattr("skerry.storage.layers._READ_MOST", 8 * MiB)
    store, ref = LayerStore(tmp_path / "layers", driver), new_snap()
    os.truncate(_file(driver.create(UNIT, LIMIT) / "upper/holes"), 15 << 40)
    driver.keep(driver.capture(UNIT), snap_name(ref))
    assert store.verify(ref)
    assert store.check(ref).joinpath("holes").stat().st_size == 15 << 40


def _file(path: Path) -> Path:
    path.touch()
    return path


def test_a_snapshot_that_is_a_copy_leaves_the_hosts_reserve_alone(
    driver: UnitDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver.create(UNIT, LIMIT) / "upper/file").touch()
    monkeypatch.setattr(driver, "usage", lambda unit: 1 << 50)
    if isinstance(driver, BtrfsDriver):  # which shares every block
        driver.discard(driver.capture(UNIT))
        return
    with pytest.raises(QuotaExceeded, match="less than the reserve"):
        driver.capture(UNIT)
    monkeypatch.undo()
    snapshot(driver)
    monkeypatch.setattr(driver, "cost", lambda origin: 1 << 50)
    with pytest.raises(QuotaExceeded, match="less than the reserve"):
        driver.create(OTHER, LIMIT, NAME)
    assert driver.units() == {UNIT}
    assert os.listdir(driver.home / "t") == []


def test_snapshots_stack_as_layers(driver: UnitDriver, tmp_path: Path) -> None:
    """The kernel sees whiteouts and opaque directories of a snapshot below as it did of the upper."""
    store = LayerStore(tmp_path / "layers", driver)
    ref = new_snap()
    upper = driver.create(UNIT, LIMIT) / "upper"
    os.mknod(upper / "gone", stat.S_IFCHR, os.makedev(0, 0))
    (upper / "new").write_text("of the snapshot")
    driver.keep(driver.capture(UNIT), snap_name(ref))
    base, merged = tmp_path / "base", tmp_path / "merged"
    for path in (base, merged):
        path.mkdir()
    (base / "gone").touch()
    unit = driver.create(OTHER, LIMIT)
    lower = f"{store.check(ref)}:{base}"
    options = f"lowerdir={lower},upperdir={unit}/upper,workdir={unit}/work"
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
