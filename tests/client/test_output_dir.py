"""Files from inside are written to one directory and nowhere else, under any name."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from skerry.client.host import output_dir
from skerry.client.host.output_dir import FileRejected, OutputDir, SingleFile, TransferLimit, changed
from skerry.errors import InvalidRequest
from skerry.types import FileInfo, FileType

HOSTILE = ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", ".", "..", "", "a/", "a\0b", "a\nb", "a\x1b[2Jb",
           "\u202egnp.exe", "a\\..\\b", "x" * 256, "/".join(["d"] * 80)]  # fmt: skip


def info(name: str = "f", kind: FileType = "file", mode: int = 0o644, size: int = 1, mtime: float = 1.0) -> FileInfo:
    return FileInfo(name=name, path=f"/workspace/{name}", type=kind, size=size, mode=mode, uid=0, gid=0, mtime=mtime)


def land(place: OutputDir, name: str, data: bytes = b"x", limit: TransferLimit | None = None, **how: int) -> None:
    with place.file(name, limit or TransferLimit(1 << 30), info(**how)) as file:  # type: ignore[arg-type]
        file.write(data)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_writes_nothing(name: str, tmp_path: Path) -> None:
    with OutputDir(tmp_path / "out") as place, pytest.raises(FileRejected):
        land(place, name)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["out"]


def test_plain_name_is_written_with_its_directories(tmp_path: Path) -> None:
    with OutputDir(tmp_path / "deep" / "out") as place:
        land(place, "a/b/c.txt", b"hello")
        land(place, "tool", mode=0o6755)
    out = tmp_path / "deep" / "out"
    assert (out / "a/b/c.txt").read_bytes() == b"hello"
    assert os.access(out / "tool", os.X_OK)
    assert (out / "tool").stat().st_mode & 0o7000 == 0, "setuid must not cross"
    assert not (out / "a/b/c.txt").stat().st_mode & 0o111


def test_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with OutputDir(tmp_path / "out") as place:
        (tmp_path / "out" / "sub").symlink_to(elsewhere)
        (tmp_path / "out" / "file").symlink_to(elsewhere / "made")
        for name in ("sub/x", "file"):
            with pytest.raises(FileRejected):
                land(place, name)
    assert list(elsewhere.iterdir()) == []


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    with OutputDir(tmp_path) as place:
        land(place, "a", b"first")
        with pytest.raises(FileRejected, match="already"):
            land(place, "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_overwrite_replaces_files_completely_and_follows_no_links(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = tmp_path / "out"
    (out / "kept").mkdir(parents=True)
    (out / "a").write_text("old and longer")
    os.link(out / "a", elsewhere / "other name")
    (elsewhere / "target").write_text("safe")
    (out / "link").symlink_to(elsewhere / "target")
    (out / "sub").symlink_to(elsewhere)
    with OutputDir(out, overwrite=True) as place:
        land(place, "a", b"new")
        land(place, "link", b"file now")
        for name in ("sub/x", "kept", ".git/hooks/pre-commit", "a/.GIT/config"):
            with pytest.raises(FileRejected):
                land(place, name)
        with pytest.raises(FileRejected, match="exceeds"):
            land(place, "a", b"too much", TransferLimit(1 << 30, 3))
    assert (out / "a").read_bytes() == b"new"
    assert (out / "link").read_bytes() == b"file now"
    assert not (out / "link").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == ["a", "kept", "link", "sub"]
    assert (elsewhere / "other name").read_text() == "old and longer"
    assert (elsewhere / "target").read_text() == "safe"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["other name", "target"]


def test_non_empty_directory_is_rejected_first(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(InvalidRequest, match="not empty"):
        OutputDir(tmp_path)


def test_invalid_output_directory_is_rejected_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="out: "):
        OutputDir(tmp_path / "file")


def test_truncated_file_leaves_nothing(tmp_path: Path) -> None:
    def break_off(place: OutputDir) -> None:
        with place.file("a", TransferLimit(1 << 30), info()) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with OutputDir(tmp_path) as place, pytest.raises(ZeroDivisionError):
        break_off(place)
    assert list(tmp_path.iterdir()) == []


def test_file_longer_than_announced_is_cut_at_the_bound(tmp_path: Path) -> None:
    limit = TransferLimit(1 << 30, 100)
    with OutputDir(tmp_path) as place, pytest.raises(FileRejected, match="exceeds 100 bytes"):
        land(place, "big", b"x" * 101, limit)
    assert list(tmp_path.iterdir()) == []


def test_sparse_file_keeps_its_holes(tmp_path: Path) -> None:
    content = bytes(1 << 20) + b"data" + bytes((1 << 20) - 4) + b"x" * 5000 + bytes(3 << 20)
    with SingleFile(tmp_path / "sparse") as file:
        for at in range(0, len(content), 10_007):  # pieces that no block of the file matches
            file.write(content[at : at + 10_007])
    with OutputDir(tmp_path / "out") as place:
        land(place, "sparse", content)
    for path in (tmp_path / "sparse", tmp_path / "out/sparse"):
        assert path.read_bytes() == content
        assert path.stat().st_blocks * 512 <= 6 * 4096


def test_data_is_bounded_by_the_disk_limit_and_holes_by_the_total(tmp_path: Path) -> None:
    limit = TransferLimit(1 << 20)
    with OutputDir(tmp_path) as place:
        land(place, "hole", bytes(8 << 20), limit)
        land(place, "half", b"x" * (1 << 19), limit)
        with pytest.raises(FileRejected, match="exceeds the sandbox's disk limit of 1048576 bytes"):
            land(place, "over", b"x" * ((1 << 19) + 1), limit)
        with pytest.raises(InvalidRequest, match=f"exceeds {8 << 30} bytes"):
            limit.expect(8 << 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "hole"]


def test_single_bytes_between_holes_count_as_blocks(tmp_path: Path) -> None:
    """However the pieces are cut, 300 scattered bytes take 300 blocks of this host."""
    limit = TransferLimit(1 << 20)

    def scatter(place: OutputDir) -> None:
        with place.file("f", limit) as file:
            for _ in range(300):
                file.write(b"x")
                file.write(bytes(4095))

    with OutputDir(tmp_path) as place, pytest.raises(FileRejected, match="disk limit"):
        scatter(place)
    assert list(tmp_path.iterdir()) == []


def test_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_dir, "MAX_FILES", 2)
    with OutputDir(tmp_path) as place:
        land(place, "a")
        land(place, "b")
        with pytest.raises(FileRejected, match="more than 2 files"):
            land(place, "c")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    gc.collect()  # objects of other tests may have descriptors
    before = len(os.listdir("/proc/self/fd"))
    with OutputDir(tmp_path / "out") as place:
        land(place, "a/b/c")
        for name in HOSTILE:
            with pytest.raises(FileRejected):
                land(place, name)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_new_and_changed_files_are_distinguished_from_old_ones() -> None:
    before = {"old": info("old"), "grown": info("grown"), "touched": info("touched"), "gone": info("gone")}
    after = {
        "old": info("old"), "grown": info("grown", size=2), "touched": info("touched", mtime=2.0), "new": info("new"),
        "dir": info("dir", "directory"), "link": info("link", "link"), "pipe": info("pipe", "fifo"),
    }  # fmt: skip
    assert changed(before, after) == ["grown", "new", "touched"]


@pytest.mark.parametrize("name", ["\u6f22" * 85, os.fsdecode(b"caf\xe9.txt")])
def test_file_is_written_under_the_longest_name_and_a_non_utf8_name(tmp_path: Path, name: str) -> None:
    with SingleFile(tmp_path / name) as file:
        file.write(b"content")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"content"
