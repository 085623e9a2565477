"""An archive from inside is unpacked in one directory and nowhere else. Each attack is a test."""

from __future__ import annotations

import gc
import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.client.host import unpack as unpacking
from skerry.client.host.output_dir import TransferLimit, stays_inside
from skerry.client.host.unpack import DirectoryUnpacker
from skerry.codecs import tar
from skerry.codecs.tar import END, Entry, Malformed, header, padding
from skerry.errors import InvalidRequest
from skerry.types import TransferResult

NOTHING = TransferResult(files=0, directories=0, links=0, bytes=0)
Thing = Entry | tuple[Entry, bytes]


class Ground:
    """A target, and next to it files that must not change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path / "target"
        self.outside = path / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_text("precious")
        self.target.mkdir()

    def untouched(self) -> bool:
        return (
            sorted(os.listdir(self.path)) == ["outside", "target"]
            and os.listdir(self.outside) == ["precious"]
            and (self.outside / "precious").read_text() == "precious"
            and (self.outside / "precious").stat().st_nlink == 1
        )

    def names(self) -> list[str]:
        return sorted(str(p.relative_to(self.target)) for p in self.target.rglob("*"))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ground = Ground(tmp_path)
    yield ground
    assert ground.untouched()
    assert len(os.listdir("/proc/self/fd")) <= before


def archive(*archiver: Thing) -> bytes:
    parts = []
    for one in archiver:
        entry, data = one if isinstance(one, tuple) else (one, b"x" * one.size)
        parts.append(header(entry) + data + padding(len(data)))
    return b"".join(parts) + END


def file(name: bytes, data: bytes = b"evil", mode: int = 0o644) -> Thing:
    return Entry(name, "file", mode, len(data), 1_000_000_000), data


def link(name: bytes, target: bytes) -> Entry:
    return Entry(name, "link", 0o777, 0, 0, target)


def hard(name: bytes, target: bytes) -> Entry:
    return Entry(name, "hard link", 0o644, 0, 0, target)


def directory(name: bytes, mode: int = 0o755) -> Entry:
    return Entry(name, "directory", mode, 0, 1_000_000_000)


def unpack(
    ground: Ground, *archiver: Thing, raw: bytes | None = None, size: int = 1 << 20, **how: object
) -> dict[str, str]:
    """Skipped entries with their reasons."""
    data = archive(*archiver) if raw is None else raw
    unpacker = DirectoryUnpacker(ground.target, **how)  # type: ignore[arg-type]
    try:
        for start in range(0, len(data), size):
            unpacker.feed(data[start : start + size])
        return {one.path: one.reason for one in unpacker.finish(NOTHING).skipped}
    finally:
        unpacker.close()


def with_name(name: bytes, kind: bytes = b"0", target: bytes = b"") -> bytes:
    """A header that our own writer would not write."""
    block = bytearray(header(Entry(b"f", "file")))
    block[:100] = name[:100].ljust(100, b"\0")
    block[156:157] = kind
    block[157:257] = target.ljust(100, b"\0")
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + END


@pytest.mark.parametrize("size", [1 << 20, 600, 1])
def test_valid_archive_is_unpacked_completely(ground: Ground, size: int) -> None:
    skipped = unpack(
        ground, directory(b"d", 0o750), file(b"d/a", b"hello", 0o640), link(b"d/l", b"a"), hard(b"d/h", b"d/a"),
        directory(b"ro", 0o500), file(b"ro/f", b"1", 0o400), file(b"deep/er/x", b"2"), file(b"empty", b""),
        file(b"odd\xff\n'\"", b"3"), file(b"-rf", b"4"), size=size,
    )  # fmt: skip
    assert skipped == {}
    target = ground.target
    assert (target / "d/a").read_text() == "hello"
    assert (target / "d/h").samefile(target / "d/a")
    assert (target / "d/l").readlink() == Path("a")
    assert (target / "deep/er/x").read_text() == "2"
    assert [stat.S_IMODE((target / name).stat().st_mode) for name in ("d", "d/a", "ro", "ro/f")] == [
        0o750, 0o640, 0o500, 0o400,
    ]  # fmt: skip
    assert {(target / name).stat().st_mtime for name in ("d", "d/a", "ro/f", "ro")} == {1_000_000_000}
    assert os.path.exists(os.fsencode(target) + b"/odd\xff\n'\"")


@pytest.mark.parametrize(
    "name", [b"../outside/precious", b"/etc/skerry-test", b"a/../../outside/x", b"..", b"./../x", b"a/..", b"/"]
)
@pytest.mark.parametrize("kind", [b"0", b"5", b"2", b"1"])
def test_names_that_lead_outside_end_the_unpacking(ground: Ground, name: bytes, kind: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(ground, raw=with_name(name, kind, b"x"))
    assert ground.names() == []


def test_nothing_is_written_through_a_link_of_the_archive(ground: Ground) -> None:
    hostile = (
        link(b"out", b"../outside"), file(b"out/precious"), file(b"out/new"), directory(b"out/dir"),
        link(b"out/link", b"x"), directory(b"out"), hard(b"stolen", b"out/precious"),
    )  # fmt: skip
    assert set(unpack(ground, *hostile)) == {"out"}
    assert not (ground.target / "out").is_symlink(), "the link was left out, and a directory is there"
    subprocess.run(["rm", "-r", ground.target / "out", ground.target / "stolen"], check=True)
    skipped = unpack(ground, *hostile, outside_links=True)
    assert set(skipped) == {"out/precious", "out/new", "out/dir", "out/link", "out", "stolen"}
    assert ground.names() == ["out"]


def test_nothing_is_written_through_an_existing_link(ground: Ground) -> None:
    (ground.target / "way").symlink_to(ground.outside)
    (ground.target / "precious").symlink_to(ground.outside / "precious")
    skipped = unpack(ground, file(b"way/precious"), file(b"way/deep/x"), directory(b"way"), file(b"precious", b"mine"))
    assert set(skipped) == {"way/precious", "way/deep/x", "way"}
    assert not (ground.target / "precious").is_symlink(), "the link is replaced, not followed"
    assert (ground.target / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        (b"l", b"a", True), (b"l", b"./a/b", True), (b"d/l", b"../a", True), (b"d/e/l", b"../../a", True),
        (b"d/l", b"..", True), (b"l", b"..", False), (b"l", b"/etc", False), (b"d/l", b"../..", False),
        (b"d/l", b"../../etc", False), (b"l", b"a/../../b", False), (b"d/l", b"x/../..", False), (b"l", b"a/..", False),
        (b"l", b"//etc", False), (b"l", b".", True), (b"l", b"a//b", True),
    ],
)  # fmt: skip
def test_links_that_lead_outside_are_detected(name: bytes, target: bytes, inside: bool) -> None:
    assert stays_inside(name, target) is inside


def test_chain_of_harmless_links_does_not_lead_outside(ground: Ground) -> None:
    """`a/..` is the parent of the target of `a`: with `a` → `deep/er`, `a/../../..` would be outside."""
    skipped = unpack(
        ground, directory(b"deep"), directory(b"deep/er"), link(b"deep/er/up", b"../.."),
        link(b"here", b"deep/er/up"), link(b"out", b"here/../outside/precious"), file(b"f", b"1"),
    )  # fmt: skip
    assert set(skipped) == {"out"}
    assert (ground.target / "here").resolve() == ground.target


def test_outside_links_are_skipped_and_reported_or_kept_on_request(ground: Ground) -> None:
    assert unpack(ground, link(b"l", b"/etc/passwd"), link(b"in", b"f")) == {
        "l": "it is a link out of the directory, to '/etc/passwd'"
    }
    assert ground.names() == ["in"]
    assert unpack(ground, link(b"l", b"/etc/passwd"), outside_links=True) == {}
    assert (ground.target / "l").readlink() == Path("/etc/passwd")


def test_hard_link_cannot_name_an_existing_file(ground: Ground) -> None:
    (ground.target / "mine").write_text("mine")
    skipped = unpack(ground, hard(b"theirs", b"mine"), file(b"f", b"1"), hard(b"g", b"f"))
    assert set(skipped) == {"theirs"}
    assert (ground.target / "mine").stat().st_nlink == 1
    assert (ground.target / "g").samefile(ground.target / "f")


def test_hard_link_to_a_replaced_file_is_rejected(ground: Ground) -> None:
    data = archive(file(b"f", b"1"), hard(b"g", b"f"))
    unpacker = DirectoryUnpacker(ground.target)
    unpacker.feed(data[:1024])
    (ground.target / "f").unlink()
    (ground.target / "f").symlink_to(ground.outside / "precious")
    unpacker.feed(data[1024:])
    assert [one.path for one in unpacker.finish(NOTHING).skipped] == ["g"]
    unpacker.close()
    assert ground.names() == ["f"]


def test_devices_and_fifos_are_never_created(ground: Ground) -> None:
    for kind in (b"3", b"4", b"6"):
        assert unpack(ground, raw=with_name(b"dev", kind)) == {"dev": "it is a device or a FIFO"}
    assert ground.names() == []


def test_set_id_bits_are_dropped_and_the_umask_applies(ground: Ground) -> None:
    old = os.umask(0o027)
    try:
        unpack(ground, file(b"f", mode=0o6777), directory(b"d", 0o7777))
    finally:
        os.umask(old)
    assert stat.S_IMODE((ground.target / "f").stat().st_mode) == 0o750
    assert stat.S_IMODE((ground.target / "d").stat().st_mode) == 0o750


def test_clashes_are_reported_and_the_rest_is_unpacked(ground: Ground) -> None:
    (ground.target / "d").mkdir()
    (ground.target / "d/kept").touch()
    (ground.target / "f").touch()
    skipped = unpack(ground, file(b"d"), link(b"d", b"x"), file(b"f/x"), directory(b"f"), file(b"d/new"), file(b"last"))
    assert set(skipped) == {"d", "f/x", "f"}
    assert ground.names() == ["d", "d/kept", "d/new", "f", "last"]


def test_existing_file_is_replaced_atomically(ground: Ground) -> None:
    old = ground.target / "f"
    old.write_text("old")
    os.link(old, ground.target / "second-name")
    data = archive(file(b"f", b"n" * 2000))
    unpacker = DirectoryUnpacker(ground.target)
    unpacker.feed(data[:1500])
    assert old.read_text() == "old"
    unpacker.feed(data[1500:])
    unpacker.finish(NOTHING)
    unpacker.close()
    assert old.read_bytes() == b"n" * 2000
    assert (ground.target / "second-name").read_text() == "old", "never through another name of it"


def test_interrupted_archive_leaves_complete_files_only(ground: Ground) -> None:
    data = archive(file(b"whole", b"1"), directory(b"ro", 0o555), file(b"ro/half", b"x" * 5000))
    unpacker = DirectoryUnpacker(ground.target)
    unpacker.feed(data[:4000])
    with pytest.raises(Malformed, match="ends early"):
        unpacker.finish(NOTHING)
    unpacker.close()
    assert ground.names() == ["ro", "whole"]


def test_last_entry_of_a_duplicate_name_wins(ground: Ground) -> None:
    unpack(ground, file(b"f", b"1"), link(b"f", b"x"), file(b"f", b"2"))
    assert (ground.target / "f").read_text() == "2"


def test_thousand_levels_and_long_paths_are_unpacked_with_few_descriptors(ground: Ground) -> None:
    deep = b"/".join([b"d"] * 1000)
    wide = b"/".join([b"n" * 200] * 100)
    before = len(os.listdir("/proc/self/fd"))
    unpacker = DirectoryUnpacker(ground.target)
    unpacker.feed(archive(*(directory(deep[: 2 * n + 1]) for n in range(1000)), file(deep + b"/f"), file(wide + b"/f")))
    assert len(os.listdir("/proc/self/fd")) - before < 10
    moved = unpacker.finish(NOTHING)
    unpacker.close()
    found = subprocess.run(["find", ".", "-type", "f"], cwd=ground.target, capture_output=True, check=True).stdout
    subprocess.run(["rm", "-r", ground.target / "d", ground.target / ("n" * 200)], check=True)  # pytest itself can't
    assert (moved.files, moved.directories, moved.skipped) == (2, 1100, ())
    assert set(found.split()) == {b"./" + deep + b"/f", b"./" + wide + b"/f"}


def test_data_beyond_the_limit_is_rejected_regardless_of_the_announced_size(ground: Ground) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        unpack(ground, file(b"a", b"x" * 600), file(b"b", b"x" * 600), limit=TransferLimit(1 << 30, 1000))
    assert ground.names() == ["a"]


@pytest.mark.parametrize("size", [1 << 20, 1000])
def test_sparse_file_is_unpacked_with_its_holes(ground: Ground, size: int) -> None:
    content = bytes(1 << 20) + b"data" + bytes(1 << 20)
    unpack(ground, file(b"sparse", content), file(b"after"), size=size, limit=TransferLimit(1 << 20))
    assert (ground.target / "sparse").read_bytes() == content
    assert (ground.target / "sparse").stat().st_blocks * 512 <= 2 * 4096
    assert ground.names() == ["after", "sparse"]


def test_data_beyond_the_disk_limit_ends_the_unpacking(ground: Ground) -> None:
    with pytest.raises(InvalidRequest, match="disk limit of 1048576 bytes"):
        unpack(ground, file(b"a", b"x" * (1 << 20)), file(b"b", b"x"), limit=TransferLimit(1 << 20))
    assert ground.names() == ["a"]


def test_announced_huge_file_that_never_arrives_leaves_nothing(ground: Ground) -> None:
    with pytest.raises(Malformed):
        unpack(ground, raw=header(Entry(b"huge", "file", 0o644, 1 << 45)) + b"x" * 5000)
    assert ground.names() == []


def test_many_skipped_entries_are_counted_not_stored(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacker = DirectoryUnpacker(ground.target)
    unpacker.feed(archive(*(link(b"l%d" % n, b"/x") for n in range(1500))))
    moved = unpacker.finish(NOTHING)
    unpacker.close()
    assert (len(moved.skipped), moved.more) == (1000, 500)


def test_hostile_archives_never_write_outside(ground: Ground) -> None:
    """Random entries, one after the other, out of everything that has a meaning."""
    names = [b"a", b"b", b"a/b", b"a/b/c", b"b/a", b"a/a/a", b"out", b"out/x", b"out/precious"]
    targets = [b"a", b"..", b"../outside", b"../../outside/precious", b"/etc", b"a/b", b"out", b"../a", b"b/.."]
    pick = random.Random(7)
    for round_ in range(300):
        archiver: list[Thing] = []
        for _ in range(12):
            name = pick.choice(names)
            made = pick.choice(("file", "link", "hard", "directory"))
            archiver.append(
                file(name) if made == "file"
                else directory(name, pick.choice((0o755, 0o555))) if made == "directory"
                else link(name, pick.choice(targets)) if made == "link"
                else hard(name, pick.choice([n for n in names if tar.clean(n)]))
            )  # fmt: skip
        unpack(ground, *archiver, outside_links=round_ % 2 == 0)
        assert ground.untouched(), archiver


def test_full_disk_is_a_host_error_and_keeps_existing_files(ground: Ground) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", ground.target], check=True)
    try:
        (ground.target / "f").write_text("old")
        with pytest.raises(OSError, match="No space left"):
            unpack(ground, file(b"small", b"1"), file(b"f", b"x" * 200_000))
        assert ground.names() == ["f", "small"]
        assert (ground.target / "f").read_text() == "old"
    finally:
        subprocess.run(["umount", ground.target], check=True)


def test_names_that_differ_only_in_case_do_not_lead_into_each_other(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system that folds case needs root")
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as made:
        made.truncate(64 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-O", "casefold", image], capture_output=True, check=False).returncode:
        pytest.skip("mkfs.ext4 here can't make a file system that folds case")
    if subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode:
        pytest.skip("this kernel can't mount a file system that folds case")
    try:
        (place / "t").mkdir()
        subprocess.run(["chattr", "+F", place / "t"], check=True)
        (place / "outside").mkdir()
        (place / "t/probe").touch()
        assert (place / "t/PROBE").exists(), "it folds case"
        unpacker = DirectoryUnpacker(place / "t", outside_links=True)
        unpacker.feed(archive(link(b"Way", b"../outside"), file(b"way/x"), directory(b"WAY"), file(b"WaY/y")))
        assert len(unpacker.finish(NOTHING).skipped) == 3
        unpacker.close()
        assert os.listdir(place / "outside") == []
    finally:
        subprocess.run(["umount", place], check=True)


def test_memory_for_hard_links_is_bounded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_MAX_LINKED", 2)
    skipped = unpack(ground, *(file(b"f%d" % n) for n in range(3)), hard(b"g", b"f2"), hard(b"h", b"f1"))
    assert set(skipped) == {"g"}
