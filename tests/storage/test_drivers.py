"""What every driver does alike."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from storage.storing import OTHER, UNIT, MiB, make_driver, wait_until

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage.driver import Driver, UnitDriver

LIMIT = 64 * MiB
NOBODY = 65534


def test_a_unit_has_an_upper_and_a_work_that_belong_to_the_root_of_the_inside(driver: Driver) -> None:
    unit = driver.create(UNIT, LIMIT)
    assert unit == driver.path(UNIT)
    for name in ("upper", "work"):
        found = os.lstat(unit / name)
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o755, 0, 0)
        assert os.listdir(unit / name) == []


def test_upper_and_work_serve_an_overlay(driver: Driver, tmp_path: Path) -> None:
    unit = driver.create(UNIT, LIMIT)
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    lower.mkdir()
    merged.mkdir()
    (lower / "gone").write_text("x")
    options = f"lowerdir={lower},upperdir={unit}/upper,workdir={unit}/work"
    subprocess.run(["mount", "-t", "overlay", "skerry-test", "-o", options, str(merged)], check=True)
    try:
        (merged / "gone").unlink()
        (merged / "new").write_text("y")
        os.setxattr(merged / "new", "user.note", b"z")
        assert os.listdir(merged) == ["new"]
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert stat.S_ISCHR(os.lstat(unit / "upper/gone").st_mode), "a whiteout"


def test_what_is_not_a_sandbox_id_never_becomes_a_path(driver: Driver) -> None:
    hostile = ["", ".", "..", "/etc", "../sb-aaaaaaaaaa", "sb-aaaaaaaaaa/..", "sb-aaaaaaaaa", "sb-aaaaaaaaaaa"]
    hostile += ["SB-AAAAAAAAAA", "sb-aaaaaaaaaa\n", "sb-aaaaaaaaa\0", "sb-aaaaaaaa11", "x" * 300]
    for unit in hostile:
        with pytest.raises(InvalidRequest):
            driver.create(unit, LIMIT)
        with pytest.raises(InvalidRequest):
            driver.path(unit)
        with pytest.raises(InvalidRequest):
            driver.delete(unit)


def test_a_unit_that_exists_is_not_made_again(driver: UnitDriver) -> None:
    file = driver.create(UNIT, LIMIT) / "upper/kept"
    file.write_text("x")
    with pytest.raises(Conflict):
        driver.create(UNIT, LIMIT)
    assert file.read_text() == "x"
    assert os.listdir(driver.home / "t") == []


def test_a_unit_that_does_not_exist_is_said_to_be_missing_and_deleted_without_complaint(driver: Driver) -> None:
    with pytest.raises(NotFound):
        driver.path(UNIT)
    with pytest.raises(NotFound):
        driver.usage(UNIT)
    driver.delete(UNIT)


def test_a_deleted_unit_is_gone_at_once_and_leaves_nothing(driver: UnitDriver) -> None:
    unit = driver.create(UNIT, LIMIT)
    driver.create(OTHER, LIMIT)
    (unit / "upper/some").mkdir()
    (unit / "upper/some/file").write_bytes(b"x" * MiB)
    driver.delete(UNIT)
    driver.delete(UNIT)
    assert driver.units() == {OTHER}
    assert (os.listdir(driver.home / "u"), os.listdir(driver.home / "t")) == ([OTHER], [])


def test_what_a_crash_left_half_made_is_swept(driver: UnitDriver) -> None:
    driver.create(UNIT, LIMIT)
    driver.make(driver.home / "t" / "halfway", LIMIT)
    (driver.home / "t" / "nothing-yet").mkdir()
    assert driver.units() == {UNIT}
    assert os.listdir(driver.home / "t") == []


def test_a_sweep_leaves_alone_what_other_threads_are_making(driver: UnitDriver) -> None:
    ids = [f"sb-cccccccc{a}{b}" for a in "abc" for b in "defgh"]
    with ThreadPoolExecutor(4) as pool:
        makers = [pool.submit(driver.create, unit, LIMIT) for unit in ids]
        while not all(maker.done() for maker in makers):
            driver.units()
        for maker in makers:
            maker.result()
        assert driver.units() == set(ids)
        list(pool.map(driver.delete, ids))
    assert driver.units() == set()


def test_no_unit_is_made_when_the_hosts_disk_has_less_than_its_reserve(driver: UnitDriver) -> None:
    driver.reserve = 1 << 60
    with pytest.raises(QuotaExceeded, match="reserve") as caught:
        driver.create(UNIT, LIMIT)
    assert caught.value.hint is not None
    assert str(driver.state_dir) in caught.value.hint
    assert driver.units() == set()


def test_usage_grows_with_what_is_written(driver: Driver) -> None:
    unit = driver.create(UNIT, LIMIT)
    empty = driver.usage(UNIT)
    (unit / "upper/file").write_bytes(os.urandom(8 * MiB))
    os.sync()
    wait_until(lambda: driver.usage(UNIT) >= empty + 8 * MiB, "the usage shows 8 MiB more")
    assert driver.usage(UNIT) < empty + 10 * MiB


def test_an_unprivileged_user_of_the_host_reaches_no_unit(driver: Driver, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if os.stat(parent).st_mode & 0o001 == 0:
            parent.chmod(0o711)
    shell = driver.create(UNIT, LIMIT) / "upper/shell"
    shell.write_bytes(Path("/bin/true").read_bytes())
    shell.chmod(0o6755)
    for argv in (["ls", str(shell.parent)], ["cat", str(shell)], [str(shell)]):
        try:
            done = subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
        except PermissionError:
            continue
        assert done.returncode != 0
        assert b"Permission denied" in done.stderr


def test_a_tree_nested_beyond_any_path_is_deleted_too(driver: UnitDriver) -> None:
    place = os.open(driver.create(UNIT, LIMIT) / "upper", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=place)
        below = os.open("deeper", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    driver.delete(UNIT)
    assert (driver.units(), os.listdir(driver.home / "t")) == (set(), [])


def test_deleting_follows_no_link(driver: Driver, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("kept")
    upper = driver.create(UNIT, LIMIT) / "upper"
    (upper / "directory").symlink_to(treasure)
    (upper / "file").symlink_to(treasure / "file")
    os.mkfifo(upper / "fifo")
    driver.delete(UNIT)
    assert (treasure / "file").read_text() == "kept"


def test_units_outlive_the_driver_that_made_them(driver: UnitDriver) -> None:
    (driver.create(UNIT, LIMIT) / "upper/file").write_text("kept")
    driver.close()
    again = make_driver(driver.name, driver.state_dir)
    again.prepare()
    assert again.units() == {UNIT}
    assert (again.path(UNIT) / "upper/file").read_text() == "kept"


def test_a_unit_in_use_survives_a_driver_that_comes_and_goes(driver: UnitDriver) -> None:
    with open(driver.create(UNIT, LIMIT) / "upper/file", "w+") as file:
        driver.close()
        again = make_driver(driver.name, driver.state_dir)
        again.prepare()
        again.close()
        again.prepare()
        file.write("written meanwhile")
        file.flush()
        assert (again.path(UNIT) / "upper/file").read_text() == "written meanwhile"
