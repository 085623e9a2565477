"""The behaviour that all drivers share."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.storage import OTHER, UPPER, MiB, make_driver, wait_until

from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.storage.driver import Driver, UpperDriver

LIMIT = 64 * MiB
NOBODY = 65534


def test_upper_and_work_belong_to_the_sandboxs_root(driver: Driver) -> None:
    upper = driver.create(UPPER, LIMIT)
    assert upper == driver.path(UPPER)
    for name in ("upper", "work"):
        found = os.lstat(upper / name)
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o755, 0, 0)
        assert os.listdir(upper / name) == []


def test_upper_and_work_serve_an_overlay(driver: Driver, tmp_path: Path) -> None:
    upper = driver.create(UPPER, LIMIT)
    lower, merged = tmp_path / "lower", tmp_path / "merged"
    lower.mkdir()
    merged.mkdir()
    (lower / "gone").write_text("x")
    options = f"lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work"
    subprocess.run(["mount", "-t", "overlay", "skerry-test", "-o", options, str(merged)], check=True)
    try:
        (merged / "gone").unlink()
        (merged / "new").write_text("y")
        os.setxattr(merged / "new", "user.note", b"z")
        assert os.listdir(merged) == ["new"]
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert stat.S_ISCHR(os.lstat(upper / "upper/gone").st_mode), "a whiteout"


def test_only_sandbox_ids_become_paths(driver: Driver) -> None:
    hostile = ["", ".", "..", "/etc", "../sb-aaaaaaaaaa", "sb-aaaaaaaaaa/..", "sb-aaaaaaaaa", "sb-aaaaaaaaaaa"]
    hostile += ["SB-AAAAAAAAAA", "sb-aaaaaaaaaa\n", "sb-aaaaaaaaa\0", "sb-aaaaaaaa11", "x" * 300]
    for upper in hostile:
        with pytest.raises(InvalidRequest):
            driver.create(upper, LIMIT)
        with pytest.raises(InvalidRequest):
            driver.path(upper)
        with pytest.raises(InvalidRequest):
            driver.delete(upper)


def test_an_existing_upper_is_not_created_again(driver: UpperDriver) -> None:
    file = driver.create(UPPER, LIMIT) / "upper/kept"
    file.write_text("x")
    with pytest.raises(Conflict):
        driver.create(UPPER, LIMIT)
    assert file.read_text() == "x"
    assert os.listdir(driver.home / "t") == []


def test_a_missing_upper_is_not_found_and_deleted_silently(driver: Driver) -> None:
    with pytest.raises(NotFound):
        driver.path(UPPER)
    with pytest.raises(NotFound):
        driver.usage(UPPER)
    driver.delete(UPPER)


def test_a_deleted_upper_is_gone_at_once_and_leaves_nothing(driver: UpperDriver) -> None:
    upper = driver.create(UPPER, LIMIT)
    driver.create(OTHER, LIMIT)
    (upper / "upper/some").mkdir()
    (upper / "upper/some/file").write_bytes(b"x" * MiB)
    driver.delete(UPPER)
    driver.delete(UPPER)
    assert driver.uppers() == {OTHER}
    assert (os.listdir(driver.home / "u"), os.listdir(driver.home / "t")) == ([OTHER], [])


def test_half_made_uppers_are_swept(driver: UpperDriver) -> None:
    driver.create(UPPER, LIMIT)
    driver.make(driver.home / "t" / "halfway", LIMIT)
    (driver.home / "t" / "nothing-yet").mkdir()
    assert driver.uppers() == {UPPER}
    assert os.listdir(driver.home / "t") == []


def test_a_sweep_skips_uppers_that_other_threads_make(driver: UpperDriver) -> None:
    ids = [f"sb-cccccccc{a}{b}" for a in "abc" for b in "defgh"]
    with ThreadPoolExecutor(4) as pool:
        makers = [pool.submit(driver.create, upper, LIMIT) for upper in ids]
        while not all(maker.done() for maker in makers):
            driver.uppers()
        for maker in makers:
            maker.result()
        assert driver.uppers() == set(ids)
        list(pool.map(driver.delete, ids))
    assert driver.uppers() == set()


def test_no_upper_is_created_below_the_hosts_minimum_free_space(driver: UpperDriver) -> None:
    driver.min_free = 1 << 60
    with pytest.raises(QuotaExceeded, match="reserve") as caught:
        driver.create(UPPER, LIMIT)
    assert caught.value.hint is not None
    assert str(driver.state_dir) in caught.value.hint
    assert driver.uppers() == set()


def test_usage_grows_with_written_data(driver: Driver) -> None:
    upper = driver.create(UPPER, LIMIT)
    empty = driver.usage(UPPER)
    (upper / "upper/file").write_bytes(os.urandom(8 * MiB))
    os.sync()
    wait_until(lambda: driver.usage(UPPER) >= empty + 8 * MiB, "the usage shows 8 MiB more")
    assert driver.usage(UPPER) < empty + 10 * MiB


def test_an_unprivileged_host_user_reaches_no_upper(driver: Driver, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if os.stat(parent).st_mode & 0o001 == 0:
            parent.chmod(0o711)
    shell = driver.create(UPPER, LIMIT) / "upper/shell"
    shell.write_bytes(Path("/bin/true").read_bytes())
    shell.chmod(0o6755)
    for argv in (["ls", str(shell.parent)], ["cat", str(shell)], [str(shell)]):
        try:
            done = subprocess.run(argv, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
        except PermissionError:
            continue
        assert done.returncode != 0
        assert b"Permission denied" in done.stderr


def test_a_tree_nested_beyond_any_path_is_deleted_too(driver: UpperDriver) -> None:
    place = os.open(driver.create(UPPER, LIMIT) / "upper", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=place)
        below = os.open("deeper", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    driver.delete(UPPER)
    assert (driver.uppers(), os.listdir(driver.home / "t")) == (set(), [])


def test_deleting_follows_no_link(driver: Driver, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("kept")
    upper = driver.create(UPPER, LIMIT) / "upper"
    (upper / "directory").symlink_to(treasure)
    (upper / "file").symlink_to(treasure / "file")
    os.mkfifo(upper / "fifo")
    driver.delete(UPPER)
    assert (treasure / "file").read_text() == "kept"


def test_uppers_outlive_their_driver(driver: UpperDriver) -> None:
    (driver.create(UPPER, LIMIT) / "upper/file").write_text("kept")
    driver.close()
    again = make_driver(driver.name, driver.state_dir)
    again.prepare()
    assert again.uppers() == {UPPER}
    assert (again.path(UPPER) / "upper/file").read_text() == "kept"


def test_an_upper_in_use_survives_driver_restarts(driver: UpperDriver) -> None:
    with open(driver.create(UPPER, LIMIT) / "upper/file", "w+") as file:
        driver.close()
        again = make_driver(driver.name, driver.state_dir)
        again.prepare()
        again.close()
        again.prepare()
        file.write("written meanwhile")
        file.flush()
        assert (again.path(UPPER) / "upper/file").read_text() == "written meanwhile"
