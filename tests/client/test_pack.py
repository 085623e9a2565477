"""A directory of the host becomes an archive, with any content and with concurrent changes."""

from __future__ import annotations

import gc
import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from skerry.client.host.pack import Packer
from skerry.errors import InvalidRequest
from skerry.types import Progress, TransferResult

NOTHING = TransferResult(files=0, directories=0, links=0, bytes=0)


def packed(directory: Path, **how: object) -> tuple[dict[str, tarfile.TarInfo], dict[str, str]]:
    packer = Packer(directory, **how)  # type: ignore[arg-type]
    with tarfile.open(fileobj=io.BytesIO(b"".join(packer))) as tar:
        return {one.name: one for one in tar}, {one.path: one.reason for one in packer.with_skipped(NOTHING).skipped}


def test_modes_times_and_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    (tmp_path / "d/a").write_bytes(b"hello")
    (tmp_path / "d/a").chmod(0o4751)
    os.utime(tmp_path / "d/a", (1_234_567_890, 1_234_567_890.9))
    (tmp_path / "d/l").symlink_to("../nowhere")
    os.link(tmp_path / "d/a", tmp_path / "h")
    (tmp_path / "empty").mkdir()
    (tmp_path / os.fsdecode(b"odd\xff\n")).write_bytes(b"")
    found, skipped = packed(tmp_path)
    assert set(found) == {"d", "d/a", "d/l", "h", "empty", "odd\udcff\n"}
    assert (found["d"].mode, found["d"].isdir()) == (0o750, True)
    first, second = sorted((found["d/a"], found["h"]), key=tarfile.TarInfo.islnk)
    assert (first.mode, first.mtime, first.size) == (0o751, 1_234_567_890, 5)
    assert (second.linkname, second.islnk()) == (first.name, True)
    assert found["d/l"].linkname == "../nowhere"
    assert skipped == {}


def test_unsupported_entries_are_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        (tmp_path / "f").touch()
        found, skipped = packed(tmp_path)
    assert set(found) == {"f"}
    assert set(skipped) == {"pipe", "sock"}


def test_a_link_to_a_directory_is_sent_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/etc").symlink_to("/etc")
    found, _ = packed(tmp_path / "in")
    assert set(found) == {"etc"}
    (tmp_path / "way").symlink_to(tmp_path / "in")
    assert set(packed(tmp_path / "way")[0]) == {"etc"}, "the directory itself may be named by a link"


def test_thousand_nested_directories_use_few_descriptors(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    (tmp_path / "d/second").mkdir()
    (tmp_path / "d/second/f").touch()
    gc.collect()
    before, most = len(os.listdir("/proc/self/fd")), 0
    packer = Packer(tmp_path)
    out = bytearray()
    for piece in packer:
        out += piece
        most = max(most, len(os.listdir("/proc/self/fd")))
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # pytest itself can't
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        names = tar.getnames()
    assert len(names) == 1003
    assert {"/".join(["d"] * 1000) + "/bottom", "d/second/f"} <= set(names)
    assert most - before < 80
    assert len(os.listdir("/proc/self/fd")) <= before
    assert packer.with_skipped(NOTHING).skipped == ()


def test_patterns_exclude_files(tmp_path: Path) -> None:
    for name in ("a/x.py", "a/x.pyc", "a/c/y", "b/z", "c.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(packed(tmp_path, exclude=["*.pyc", "a/c", "b/"])[0]) == {"a", "a/x.py"}


def test_shrinking_large_file_ends_the_archive(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 3_000_000)
    pieces = iter(Packer(tmp_path))
    next(pieces)
    os.truncate(tmp_path / "log", 1000)
    with pytest.raises(InvalidRequest, match="log: it became shorter"):
        list(pieces)


def test_files_removed_meanwhile_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    packer = Packer(tmp_path)
    pieces = iter(packer)
    next(pieces)
    (tmp_path / "a").rmdir()
    list(pieces)
    assert [(one.path, one.reason) for one in packer.with_skipped(NOTHING).skipped] == [
        ("a", "it was removed meanwhile")
    ]


def test_directory_swapped_for_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/big").write_bytes(b"x" * 1_000_000)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/s").touch()
    packer = Packer(tmp_path / "in")
    pieces = iter(packer)
    first = next(pieces)
    (tmp_path / "in/a").rmdir()
    (tmp_path / "in/a").symlink_to(tmp_path / "secret")
    with tarfile.open(fileobj=io.BytesIO(first + b"".join(pieces))) as tar:
        assert tar.getnames() == ["big"]
    assert [one.path for one in packer.with_skipped(NOTHING).skipped] == ["a"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * 300_000)
    seen: list[Progress] = []
    list(Packer(tmp_path, progress=seen.append))
    assert [one.total for one in seen] == [900_000] * len(seen)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert seen[-1].done == 900_000


def test_path_that_is_not_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Packer(tmp_path / "none")
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError):
        Packer(tmp_path / "f")


def test_unread_archive_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    Packer(tmp_path).close()
    pieces = iter(Packer(tmp_path))
    next(pieces)
    del pieces
    assert len(os.listdir("/proc/self/fd")) <= before
