"""Files from inside land in one directory and nowhere else, whatever names they bear."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.client import landing
from skerry.client.landing import Landing, Refused, SingleFile, changed
from skerry.errors import InvalidRequest
from skerry.types import FileInfo, FileType

HOSTILE = ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", ".", "..", "", "a/", "a\0b", "a\nb", "a\x1b[2Jb",
           "\u202egnp.exe", "a\\..\\b", "x" * 256, "/".join(["d"] * 80)]  # fmt: skip


def info(name: str = "f", kind: FileType = "file", mode: int = 0o644, size: int = 1, mtime: float = 1.0) -> FileInfo:
    return FileInfo(name=name, path=f"/workspace/{name}", type=kind, size=size, mode=mode, uid=0, gid=0, mtime=mtime)


def land(place: Landing, name: str, data: bytes = b"x", **how: int) -> None:
    with place.file(name, info(**how)) as file:  # type: ignore[arg-type]
        file.write(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_writes_nothing_anywhere(name: str, tmp_path: Path) -> None:
    with Landing(tmp_path / "out") as place, pytest.raises(Refused):
        land(place, name)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["out"]


def test_a_plain_name_lands_with_its_directories(tmp_path: Path) -> None:
    with Landing(tmp_path / "deep" / "out") as place:
        land(place, "a/b/c.txt", b"hello")
        land(place, "tool", mode=0o6755)
    out = tmp_path / "deep" / "out"
    assert (out / "a/b/c.txt").read_bytes() == b"hello"
    assert os.access(out / "tool", os.X_OK)
    assert (out / "tool").stat().st_mode & 0o7000 == 0, "setuid must not cross"
    assert not (out / "a/b/c.txt").stat().st_mode & 0o111


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Landing(tmp_path / "out") as place:
        (tmp_path / "out" / "sub").symlink_to(elsewhere)
        (tmp_path / "out" / "file").symlink_to(elsewhere / "made")
        for name in ("sub/x", "file"):
            with pytest.raises(Refused):
                land(place, name)
    assert list(elsewhere.iterdir()) == []


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    with Landing(tmp_path) as place:
        land(place, "a", b"first")
        with pytest.raises(Refused, match="already"):
            land(place, "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_a_directory_with_something_in_it_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(InvalidRequest, match="not empty"):
        Landing(tmp_path)


def test_what_is_no_directory_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="out: "):
        Landing(tmp_path / "file")


def test_a_file_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def break_off(place: Landing) -> None:
        with place.file("a", info()) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with Landing(tmp_path) as place, pytest.raises(ZeroDivisionError):
        break_off(place)
    assert list(tmp_path.iterdir()) == []


def test_a_file_longer_than_it_said_is_cut_off_at_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "MOST_BYTES", 100)
    with Landing(tmp_path) as place, pytest.raises(Refused, match="all together"):
        land(place, "big", b"x" * 101)
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "MOST_FILES", 2)
    with Landing(tmp_path) as place:
        land(place, "a")
        land(place, "b")
        with pytest.raises(Refused, match="more than 2 files"):
            land(place, "c")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Landing(tmp_path / "out") as place:
        land(place, "a/b/c")
        for name in HOSTILE:
            with pytest.raises(Refused):
                land(place, name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_new_and_changed_files_are_told_from_old_ones() -> None:
    before = {"old": info("old"), "grown": info("grown"), "touched": info("touched"), "gone": info("gone")}
    after = {
        "old": info("old"), "grown": info("grown", size=2), "touched": info("touched", mtime=2.0), "new": info("new"),
        "dir": info("dir", "directory"), "link": info("link", "link"), "pipe": info("pipe", "fifo"),
    }  # fmt: skip
    assert changed(before, after) == ["grown", "new", "touched"]


@pytest.mark.parametrize("name", ["\u6f22" * 85, os.fsdecode(b"caf\xe9.txt")])
def test_one_file_lands_under_the_longest_name_and_one_that_is_not_utf8(tmp_path: Path, name: str) -> None:
    with SingleFile(tmp_path / name) as file:
        file.write(b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"content"
