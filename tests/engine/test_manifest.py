"""What was last seen of a workspace's files: only what differs is read, and nothing goes unseen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.engine.manifest import Found, Manifest
from skerry.keeper.tracking import Entry


def file(path: str, ctime: int = 1, *, written: bool = False) -> Entry:
    return Entry(path=path.encode(), type="file", mode=0o644, size=1, inode=7, ctime_ns=ctime, written=written)


def thing(path: str, kind: str) -> Entry:
    return Entry(path=path.encode(), type=kind, target=b"x" if kind == "link" else None)  # type: ignore[arg-type]


def manifest(*paths: str) -> Manifest:
    made = Manifest()
    for path in paths:
        made.put(path.encode(), file(path))
    return made


def read(found: Found) -> set[bytes]:
    return {entry.path for entry in found.read}


def test_only_what_differs_is_read() -> None:
    known = manifest("a", "d/b", "d/c")
    found = known.compare([file("a"), thing("d", "directory"), file("d/b", 2), file("d/c"), file("new")], full=True)
    assert (read(found), found.gone) == ({b"d/b", b"new"}, [])


def test_what_is_not_listed_by_a_full_scan_is_gone_and_by_another_is_not() -> None:
    known = manifest("a", "b")
    assert known.compare([file("a")], full=True).gone == [b"b"]
    assert known.compare([file("a")], full=False).gone == []


def test_a_file_that_was_written_is_read_although_it_looks_the_same() -> None:
    assert read(manifest("a").compare([file("a", written=True)], full=False)) == {b"a"}


def test_a_directory_that_is_gone_takes_all_below_along() -> None:
    found = manifest("d/a", "d/e/b", "dd/c", "d").compare([thing("d", "gone")], full=False)
    assert sorted(found.gone) == [b"d", b"d/a", b"d/e/b"]


def test_a_directory_that_came_back_has_what_is_listed_and_nothing_else() -> None:
    entries = [thing("d", "gone"), thing("d", "directory"), file("d/a", 2), file("d/n", 2)]
    found = manifest("d/a", "d/b").compare(entries, full=False)
    assert (read(found), found.gone) == ({b"d/a", b"d/n"}, [b"d/b"])


def test_what_was_told_before_its_directory_went_is_gone_too() -> None:
    found = manifest("d/a").compare([file("d/a", 2), file("d/n", 2), thing("d", "gone")], full=False)
    assert (read(found), found.gone) == (set(), [b"d/a"])


@pytest.mark.parametrize("kind", ["file", "link", "other", "ignored", "git"])
def test_where_something_else_took_the_place_of_a_directory_its_files_are_gone(kind: str) -> None:
    entry = file("d", 2) if kind == "file" else thing("d", kind)
    assert manifest("d/a", "d/e/b").compare([entry], full=False).gone == [b"d/a", b"d/e/b"]


def test_a_file_that_became_a_directory_or_a_device_is_gone() -> None:
    found = manifest("a", "b").compare([thing("a", "directory"), thing("b", "other")], full=False)
    assert found.gone == [b"a", b"b"]
    assert found.left_out.keys() == {b"b"}


def test_what_no_ledger_carries_is_left_out_with_its_reason_for_as_long_as_it_is_there() -> None:
    known = manifest()
    known.list(known.compare([thing("s/.git", "git")], full=True), first=True)
    known.list(known.compare([file("x/.GIT/config"), thing("pipe", "other")], full=False), first=False)
    assert {path: first for path, (_, first) in known.left_out.items()} == {
        b"s/.git": True, b"x/.GIT/config": False, b"pipe": False,
    }  # fmt: skip
    known.list(known.compare([thing("x", "gone"), file("pipe")], full=False), first=False)
    assert known.left_out.keys() == {b"s/.git"}


def test_ignored_paths_that_were_there_from_the_beginning_are_not_new() -> None:
    known = manifest()
    known.list(known.compare([thing("old.log", "ignored")], full=True), first=True)
    known.list(known.compare([thing("old.log", "ignored"), thing("new.log", "ignored")], full=True), first=False)
    assert known.new_ignored == [b"new.log"]


def test_a_saved_manifest_is_the_same_and_what_is_no_manifest_is_refused() -> None:
    known = manifest("d/a", "b")
    known.drop(b"b")
    known.put(b"\xff/x", None)
    again, commit = Manifest.decode(known.encode("c" * 40))
    assert (again.files, commit) == (known.files, "c" * 40)
    assert again.compare([thing("d", "gone")], full=False).gone == [b"d/a"]
    with pytest.raises(ValueError, match="truncated"):
        Manifest.decode(b"")


def test_who_reads_the_lists_while_they_are_made_anew_sees_the_old_ones() -> None:
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
