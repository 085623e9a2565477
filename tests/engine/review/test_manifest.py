"""The manifest of a workspace: only changed files are read, and no change is missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.engine.review.manifest import Changes, Manifest
from skerry.keeper.tracking import TrackedEntry


def file(path: str, ctime: int = 1, *, written: bool = False) -> TrackedEntry:
    return TrackedEntry(path=path.encode(), type="file", mode=0o644, size=1, inode=7, ctime_ns=ctime, written=written)


def thing(path: str, kind: str) -> TrackedEntry:
    return TrackedEntry(path=path.encode(), type=kind, target=b"x" if kind == "link" else None)  # type: ignore[arg-type]


def manifest(*paths: str) -> Manifest:
    made = Manifest()
    for path in paths:
        made.put(path.encode(), file(path))
    return made


def read(found: Changes) -> set[bytes]:
    return {entry.path for entry in found.read}


def test_only_changed_files_are_read() -> None:
    known = manifest("a", "d/b", "d/c")
    found = known.compare([file("a"), thing("d", "directory"), file("d/b", 2), file("d/c"), file("new")], full=True)
    assert (read(found), found.gone) == ({b"d/b", b"new"}, [])


def test_unlisted_file_is_gone_after_a_full_scan_only() -> None:
    known = manifest("a", "b")
    assert known.compare([file("a")], full=True).gone == [b"b"]
    assert known.compare([file("a")], full=False).gone == []


def test_written_file_is_read_although_its_metadata_is_unchanged() -> None:
    assert read(manifest("a").compare([file("a", written=True)], full=False)) == {b"a"}


def test_removed_directory_removes_all_files_below() -> None:
    found = manifest("d/a", "d/e/b", "dd/c", "d").compare([thing("d", "gone")], full=False)
    assert sorted(found.gone) == [b"d", b"d/a", b"d/e/b"]


def test_recreated_directory_has_only_the_listed_files() -> None:
    entries = [thing("d", "gone"), thing("d", "directory"), file("d/a", 2), file("d/n", 2)]
    found = manifest("d/a", "d/b").compare(entries, full=False)
    assert (read(found), found.gone) == ({b"d/a", b"d/n"}, [b"d/b"])


def test_files_reported_before_their_directory_was_removed_are_gone() -> None:
    found = manifest("d/a").compare([file("d/a", 2), file("d/n", 2), thing("d", "gone")], full=False)
    assert (read(found), found.gone) == (set(), [b"d/a"])


@pytest.mark.parametrize("kind", ["file", "link", "other", "ignored", "git"])
def test_replaced_directory_loses_its_files(kind: str) -> None:
    entry = file("d", 2) if kind == "file" else thing("d", kind)
    assert manifest("d/a", "d/e/b").compare([entry], full=False).gone == [b"d/a", b"d/e/b"]


def test_file_replaced_by_a_directory_or_a_device_is_gone() -> None:
    found = manifest("a", "b").compare([thing("a", "directory"), thing("b", "other")], full=False)
    assert found.gone == [b"a", b"b"]
    assert found.left_out.keys() == {b"b"}


def test_unsupported_entry_is_omitted_with_its_reason_while_it_exists() -> None:
    known = manifest()
    known.list(known.compare([thing("s/.git", "git")], full=True), first=True)
    known.list(known.compare([file("x/.GIT/config"), thing("pipe", "other")], full=False), first=False)
    assert {path: first for path, (_, first) in known.left_out.items()} == {
        b"s/.git": True, b"x/.GIT/config": False, b"pipe": False,
    }  # fmt: skip
    known.list(known.compare([thing("x", "gone"), file("pipe")], full=False), first=False)
    assert known.left_out.keys() == {b"s/.git"}


def test_initial_ignored_paths_are_not_reported_as_new() -> None:
    known = manifest()
    known.list(known.compare([thing("old.log", "ignored")], full=True), first=True)
    known.list(known.compare([thing("old.log", "ignored"), thing("new.log", "ignored")], full=True), first=False)
    assert known.new_ignored == [b"new.log"]


def test_saved_manifest_is_restored_and_an_invalid_one_is_rejected() -> None:
    known = manifest("d/a", "b")
    known.drop(b"b")
    known.put(b"\xff/x", None)
    again, commit = Manifest.decode(known.encode("c" * 40))
    assert (again.files, commit) == (known.files, "c" * 40)
    assert again.compare([thing("d", "gone")], full=False).gone == [b"d/a"]
    with pytest.raises(ValueError, match="truncated"):
        Manifest.decode(b"")


def test_reader_during_a_rebuild_sees_the_old_lists() -> None:
    known = manifest()
    seen: list[int] = []

    class Slow(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            for path in super().__iter__():
                seen.append(len(known.ignored))
                yield path

    found = known.compare([thing(path, "ignored") for path in ("a", "b", "c")], full=True)
    found.ignored = Slow(found.ignored)
    known.list(found, first=False)
    assert (seen, known.new_ignored) == ([0, 0, 0], [b"a", b"b", b"c"])
