"""Accepted changes are applied to a real tree: three-way, with its modes and links; obstacles are reported."""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from support.patch_sets import (
    SANDBOX,
    Files,
    Link,
    Node,
    Program,
    accept,
    apply,
    directories_of,
    file_between,
    git,
    in_memory,
    lay,
    put,
    repository,
    tree_of,
    undo,
)

from skerry.client.apply import targets
from skerry.client.apply.content import Contents, oid_of
from skerry.client.apply.merge import merge
from skerry.client.apply.patch import patch
from skerry.client.apply.target_dir import find_target
from skerry.client.repository.origin import origin_of
from skerry.errors import Conflict, InvalidRequest, SandboxUnavailable

LINES = b"".join(b"line %d\n" % number for number in range(1, 21))


def changed(*pairs: tuple[int, bytes], text: bytes = LINES) -> bytes:
    lines = text.splitlines(keepends=True)
    for number, content in pairs:
        lines[number - 1] = content
    return b"".join(lines)


def told(error: pytest.ExceptionInfo[Conflict]) -> list[tuple[str, str, list[list[int]]]]:
    return [(one["path"], one["reason"], one["lines"]) for one in error.value.details["conflicts"]]


CASES: dict[str, tuple[Files, Files]] = {
    "a file is added": ({}, {"new.txt": b"new\n"}),
    "a program is added": ({}, {"bin/run": Program(b"#!/bin/sh\n")}),
    "a file is added deep below": ({}, {"a/b/c/d.txt": b"deep\n"}),
    "an empty file is added": ({}, {"empty": b""}),
    "a file is modified": ({"f": LINES}, {"f": changed((3, b"three\n"))}),
    "a file is emptied": ({"f": LINES}, {"f": b""}),
    "a file without an end of line": ({"f": b"a\nb"}, {"f": b"a\nc"}),
    "a file is deleted": ({"f": LINES, "g": b"g"}, {"g": b"g"}),
    "the last file of directories is deleted": ({"a/b/f": LINES, "g": b"g"}, {"g": b"g"}),
    "a file becomes executable": ({"f": LINES}, {"f": Program(LINES)}),
    "a file is executable no more": ({"f": Program(LINES)}, {"f": LINES}),
    "a link is added": ({}, {"l": Link(b"f")}),
    "a link points elsewhere": ({"l": Link(b"a")}, {"l": Link(b"../outside")}),
    "a link becomes a file": ({"l": Link(b"a")}, {"l": b"now a file\n"}),
    "a file becomes a link": ({"l": b"now a file\n"}, {"l": Link(b"a")}),
    "a file becomes a directory": ({"d": b"file"}, {"d/x": b"x", "d/y/z": b"z"}),
    "a directory becomes a file": ({"d/x": b"x", "d/y/z": b"z"}, {"d": b"file"}),
    "a link becomes a directory": ({"d": Link(b"/tmp")}, {"d/x": b"x"}),
    "binary files": ({"b": bytes(range(256))}, {"b": bytes(reversed(range(256))), "c": b"\0" * 5000}),
    "names that are hard": (
        {"a b": b"1", "-rf": b"2", "new\nline": b"3", "\x1b[2J": b"4"},
        {"a b": b"one", "-rf": b"two", "new\nline": b"three", "\x1b[2J": b"four", "CON": b"5", "dot.": b"6"},
    ),
    "the longest name": ({}, {"n" * 255: b"long"}),
    "a name that is not UTF-8": ({os.fsdecode(b"caf\xe9"): b"1"}, {os.fsdecode(b"caf\xe9"): b"2"}),
    "twins in composed and decomposed letters": (
        {}, {unicodedata.normalize("NFC", "é"): b"1", unicodedata.normalize("NFD", "é"): b"2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["repository", "directory"])
@pytest.mark.parametrize("case", CASES)
def test_accepted_changes_are_applied_and_undone(case: str, kind: str, tmp_path: Path) -> None:
    base, new = CASES[case]
    root = tmp_path / "tree"
    (repository if kind == "repository" else lay)(root, {"own": b"mine\n", **base})
    before, directories = tree_of(root), directories_of(root)
    apply(root, base, new)
    assert tree_of(root) == {"own": b"mine\n", **new}
    undo(root)
    assert tree_of(root) == before
    assert directories_of(root) == directories


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with in_memory() as path:
        yield path


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "tree").mkdir()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def test_locally_changed_file_is_merged_and_its_other_lines_stay(root: Path) -> None:
    repository(root, {"f": LINES})
    (root / "f").write_bytes(changed((18, b"mine\n")))
    record = apply(root, {"f": LINES}, {"f": changed((3, b"theirs\n"))})
    assert (root / "f").read_bytes() == changed((3, b"theirs\n"), (18, b"mine\n"))
    assert [change.how for change in record.changes] == ["merged"]
    (root / "f").write_bytes(changed((3, b"theirs\n"), (18, b"mine, later\n")))
    undo(root)
    assert (root / "f").read_bytes() == changed((18, b"mine, later\n"))


def test_changes_that_are_already_present_are_skipped(root: Path) -> None:
    repository(root, {"f": changed((3, b"theirs\n")), "new": b"new\n"})
    inode = (root / "f").stat().st_ino
    record = apply(root, {"f": LINES, "gone": b"x"}, {"f": changed((3, b"theirs\n")), "new": b"new\n"})
    assert record.changes == ()
    assert sorted(record.same) == [b"f", b"gone", b"new"]
    assert (root / "f").stat().st_ino == inode


def test_conflicting_lines_are_reported_by_number_and_nothing_is_written(root: Path) -> None:
    mine = b"mine one\nmine two\n" + changed((5, b"mine\n"), (6, b"mine\n"), (15, b"mine\n"))
    repository(root, {"f": LINES, "g": b"g\n"})
    (root / "f").write_bytes(mine)
    theirs = changed((2, b"two\nand more\n"), (5, b"theirs\n"), (6, b"theirs\n"), (15, b"theirs\n"))
    with pytest.raises(Conflict, match=r"f: lines 7-8, 17: changed here too") as error:
        apply(root, {"f": LINES, "g": b"g\n"}, {"f": theirs, "g": b"G\n", "h": b"new\n"})
    assert told(error) == [("f", "changed here too", [[7, 8], [17, 17]])]
    assert tree_of(root) == {"f": mine, "g": b"g\n"}
    assert list((root / ".git/skerry/applies").iterdir()) == []


IN_THE_WAY: dict[str, tuple[Files, Files, Files, str, str]] = {
    "another file of a new name": ({}, {"n": b"new"}, {"n": b"mine"}, "n", "a different file of that name"),
    "a link of a new name": ({}, {"n": b"new"}, {"n": Link(b"/etc/passwd")}, "n", "a different file of that name"),
    "a file that is gone": ({"f": LINES}, {"f": b"new"}, {}, "f", "removed or renamed"),
    "a file that is a link now": ({"f": LINES}, {"f": b"new"}, {"f": Link(b"g"), "g": LINES}, "f", "changed here"),
    "a file that is a directory now": ({"f": LINES}, {"f": b"new"}, {"f/x": b"1"}, "f", "a directory here"),
    "a directory that is a link now": ({"d/f": b"1"}, {"d/f": b"2"}, {"d": Link(b"/tmp")}, "d/f", "d is a link here"),
    "a directory that is a file now": ({"d/f": b"1"}, {"d/f": b"2"}, {"d": b"file"}, "d/f", "d is a file here"),
    "a link where a directory is needed": ({}, {"d/e/f": b"1"}, {"d/e": Link(b"/tmp")}, "d/e/f", "d/e is a link"),
    "a file where a directory is needed": ({}, {"d/e/f": b"1"}, {"d": b"file"}, "d/e/f", "d is a file here"),
    "files in a directory that is to be a file": (
        {"d/x": b"1"}, {"d": b"file"}, {"d/x": b"1", "d/mine": b"2"}, "d", "contains your files",
    ),
    "a changed file that is to be deleted": ({"f": LINES}, {}, {"f": b"mine"}, "f", "deleted, but was changed here"),
    "a changed binary file": ({"b": b"\0a"}, {"b": b"\0b"}, {"b": b"\0c"}, "b", "binary"),
    "a link that points elsewhere": ({"l": Link(b"a")}, {"l": Link(b"b")}, {"l": Link(b"c")}, "l", "changed here too"),
    "a file that both removed lines of": (
        {"f": LINES}, {"f": changed((5, b""))}, {"f": changed((4, b""), (5, b""), (6, b"x\n"))}, "f", "changed here",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_obstacles_are_reported_before_anything_is_written(case: str, root: Path) -> None:
    base, new, mine, path, reason = IN_THE_WAY[case]
    lay(root, {"other": LINES, **mine})
    before = tree_of(root)
    with pytest.raises(Conflict, match="nothing was written") as error:
        apply(root, {"other": LINES, **base}, {"other": b"changed", **new})
    assert [(where, reason in why) for where, why, _ in told(error)] == [(path, True)], told(error)
    assert tree_of(root) == before


def test_renamed_file_keeps_local_changes(root: Path) -> None:
    lay(root, {"old/name": changed((18, b"mine\n"))})
    (root / "old/name").chmod(0o640)
    apply(root, {"old/name": LINES}, {"new/name": changed((3, b"theirs\n"))}, renames={"old/name": "new/name"})
    assert tree_of(root) == {"new/name": changed((3, b"theirs\n"), (18, b"mine\n"))}
    assert (root / "new/name").stat().st_mode & 0o777 == 0o640
    undo(root)
    assert tree_of(root) == {"old/name": changed((18, b"mine\n"))}
    assert (root / "old/name").stat().st_mode & 0o777 == 0o640


def test_rename_onto_a_local_file_is_a_conflict(root: Path) -> None:
    lay(root, {"old": LINES, "new": b"mine"})
    with pytest.raises(Conflict, match="a different file of that name"):
        apply(root, {"old": LINES}, {"new": LINES}, renames={"old": "new"})


def test_only_the_executable_bit_is_applied(root: Path) -> None:
    lay(root, {"private": LINES, "plain": LINES, "tool": Program(LINES)})
    for name, mode in (("private", 0o600), ("plain", 0o664), ("tool", 0o4750)):
        (root / name).chmod(mode)
    base = {"private": LINES, "plain": LINES, "tool": Program(LINES)}
    apply(root, base, {"private": b"p", "plain": Program(LINES), "tool": b"t"})
    modes = {name: (root / name).stat().st_mode & 0o7777 for name in ("private", "plain", "tool")}
    assert modes == {"private": 0o600, "plain": 0o775, "tool": 0o640}


def test_new_files_and_directories_respect_the_umask(root: Path) -> None:
    before = os.umask(0o027)
    try:
        apply(root, {}, {"d/f": b"1", "d/p": Program(b"2")})
    finally:
        os.umask(before)
    assert [(root / name).stat().st_mode & 0o777 for name in ("d", "d/f", "d/p")] == [0o750, 0o640, 0o750]


def test_mode_changed_equally_or_only_locally_stays(root: Path) -> None:
    lay(root, {"a": Program(LINES), "b": Program(LINES)})
    apply(root, {"a": LINES, "b": LINES}, {"a": changed((3, b"x\n")), "b": Program(LINES)})
    assert tree_of(root) == {"a": Program(changed((3, b"x\n"))), "b": Program(LINES)}


def test_hard_link_of_a_replaced_file_keeps_its_content(tmp_path: Path, root: Path) -> None:
    lay(root, {"f": LINES})
    (tmp_path / "outside").hardlink_to(root / "f")
    apply(root, {"f": LINES}, {"f": b"new"})
    assert (tmp_path / "outside").read_bytes() == LINES


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives files to another user")
def test_files_written_by_root_keep_their_owner_or_inherit_it(root: Path) -> None:
    lay(root, {"f": LINES})
    os.chown(root, 1234, 2345)
    os.chown(root / "f", 1234, 3456)
    apply(root, {"f": LINES}, {"f": b"new", "d/new": b"1"})
    owners = [((root / name).stat().st_uid, (root / name).stat().st_gid) for name in ("f", "d", "d/new")]
    assert owners == [(1234, 3456), (1234, 2345), (1234, 2345)]


def test_read_only_file_is_not_changed(root: Path) -> None:
    lay(root, {"f": LINES})
    (root / "f").chmod(0o444)
    with pytest.raises(Conflict, match="f: it is read-only here"):
        apply(root, {"f": LINES}, {"f": b"new"})


def test_index_refs_and_stash_are_unchanged(root: Path) -> None:
    repository(root, {"f": LINES, "g": b"g\n"})
    (root / "f").write_bytes(changed((18, b"stashed\n")))
    git(root, "stash")
    (root / "g").write_bytes(b"staged\n")
    git(root, "add", "g")
    (root / "f").write_bytes(changed((10, b"mine\n")))

    def all_of_git() -> dict[str, bytes]:
        found = (root / ".git").rglob("*")
        return {str(p): p.read_bytes() for p in found if p.is_file() and "skerry" not in p.parts}

    before = all_of_git()
    apply(root, {"f": LINES}, {"f": changed((3, b"theirs\n")), "n": b"new"})
    undo(root)
    apply(root, {"f": LINES}, {"f": changed((3, b"theirs\n")), "n": b"new"})
    assert all_of_git() == before
    assert git(root, "status", "--short") == " M f\nM  g\n?? n\n"


HOSTILE = [".git/config", ".git", "a/.git/hooks/pre-commit", ".GIT/config", ".gIt", ".git./x", ".git /x", "git~1/x",
           "GIT~1", ".g\u200cit/config", "sub/.git\u200d", ".git::$INDEX_ALLOCATION/x", "a\\.git\\config",
           "../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "", "a/", "n" * 256, "a\0b"]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_path_outside_the_tree_or_in_git_is_rejected(path: str, tmp_path: Path, root: Path) -> None:
    repository(root, {"f": LINES})
    before = sorted(str(p) for p in tmp_path.rglob("*") if "skerry" not in p.parts)
    with pytest.raises(Conflict, match="cannot be applied"):
        apply(root, {}, {path: b"evil"})
    with pytest.raises(Conflict, match="cannot be applied"):
        apply(root, {"f": LINES}, {path: LINES}, renames={"f": path})
    assert sorted(str(p) for p in tmp_path.rglob("*") if "skerry" not in p.parts) == before


def test_git_directory_with_another_name_is_protected(tmp_path: Path, root: Path) -> None:
    git(tmp_path, "init", "-q", "--separate-git-dir", str(root / "store"), str(root))
    with pytest.raises(Conflict, match="git's internal files"):
        apply(root, {}, {"store/hooks/post-checkout": Program(b"#!/bin/sh\n")})


def test_apply_below_the_root_of_a_repository_uses_the_root(root: Path) -> None:
    repository(root, {"f": LINES, "sub/x": b"1"})
    apply(root / "sub", {"f": LINES}, {"f": b"new"})
    assert (root / "f").read_bytes() == b"new"


def test_source_directory_of_the_sandbox_is_the_default_target(root: Path) -> None:
    repository(root, {"f": LINES, "sub/x": b"1"})
    assert find_target(root / "sub", origin_of(root / "sub")).root == root / "sub"
    assert find_target(root / "sub", origin_of(root)).root == find_target(root / "sub").root == root


def test_other_target_directory_must_be_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(root, {"f": LINES, "sub/x": b"1"})
    monkeypatch.chdir(root / "sub")
    with pytest.raises(Conflict, match="was not created from"):
        find_target(".", origin_of("/somewhere/else"))
    assert find_target(".", origin_of(root)).root == find_target(root, origin_of("/somewhere/else")).root == root


def test_bare_repository_is_rejected(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    for place in ("bare.git", "bare.git/refs"):
        with pytest.raises(InvalidRequest, match="no working tree"):
            find_target(tmp_path / place)


def test_git_directory_as_a_target_is_rejected(root: Path) -> None:
    repository(root, {})
    with pytest.raises(InvalidRequest, match="no working tree"):
        find_target(root / ".git")


def test_missing_git_on_the_host_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InvalidRequest, match="git is not installed"):
        find_target(root)


def test_changes_are_applied_to_a_repository_without_commits(root: Path) -> None:
    git(root, "init", "-q")
    lay(root, {"f": LINES})
    apply(root, {"f": LINES}, {"f": b"new", "n": b"1"})
    assert tree_of(root) == {"f": b"new", "n": b"1"}


def test_worktree_of_a_repository_has_a_separate_journal(tmp_path: Path, root: Path) -> None:
    repository(root, {"f": LINES})
    git(root, "worktree", "add", "-q", str(tmp_path / "second"), "-b", "second")
    apply(tmp_path / "second", {"f": LINES}, {"f": b"new"})
    with pytest.raises(Conflict, match="no apply of this sandbox"):
        undo(root)
    undo(tmp_path / "second")
    assert tree_of(tmp_path / "second") == {"f": LINES}


def test_undo_of_lines_changed_since_is_a_conflict(root: Path) -> None:
    lay(root, {"f": LINES, "g": b"g\n"})
    apply(root, {"f": LINES, "g": b"g\n"}, {"f": changed((3, b"theirs\n")), "g": b"G\n"})
    (root / "f").write_bytes(changed((3, b"mine\n")))
    before = tree_of(root)
    with pytest.raises(Conflict, match=r"f: line 3: changed here too"):
        undo(root)
    assert tree_of(root) == before
    (root / "f").write_bytes(changed((3, b"theirs\n")))
    undo(root)
    assert tree_of(root) == {"f": LINES, "g": b"g\n"}


def test_undo_reverts_applies_in_reverse_order(root: Path) -> None:
    lay(root, {"f": b"0\n"})
    for number in range(3):
        apply(root, {"f": b"%d\n" % number}, {"f": b"%d\n" % (number + 1)})
    for number in (2, 1, 0):
        undo(root)
        assert (root / "f").read_bytes() == b"%d\n" % number
    with pytest.raises(Conflict, match="no apply of this sandbox was found here"):
        undo(root)


def test_size_of_the_journal_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skerry.client.apply.session import ApplySession

    lay(root, {"f": b"0\n"})
    monkeypatch.setattr("skerry.client.apply.journal.MAX_RECORDS", 3)
    for number in range(8):
        record = apply(root, {"f": b"%d\n" % number}, {"f": b"%d\n" % (number + 1)})
        session = ApplySession(find_target(root))
        session.mark_reported(record)
        session.close()
    assert len(list(find_target(root).journal.joinpath("applies").iterdir())) == 4


@pytest.mark.parametrize("seed", range(30))
def test_merge_keeps_both_changes_and_undo_restores_the_local_one(seed: int, root: Path) -> None:
    chance = random.Random(seed)
    base = [b"%d\n" % chance.randrange(12) for _ in range(chance.randrange(20, 120))]
    places = list(range(0, len(base), 4))
    chance.shuffle(places)
    half = len(places) // 2
    mine, theirs, both = list(base), list(base), list(base)
    for count, at in enumerate(places):
        content = b"".join(b"%d %d\n" % (at, n) for n in range(chance.randrange(3)))
        for one in (mine, both) if count < half else (theirs, both):
            one[at] = content
    lay(root, {"f": b"".join(mine)})
    apply(root, {"f": b"".join(base)}, {"f": b"".join(theirs)})
    assert (root / "f").read_bytes() == b"".join(both)
    undo(root)
    assert (root / "f").read_bytes() == b"".join(mine)


@pytest.mark.parametrize("seed", range(20))
def test_reported_conflict_lines_are_changed_on_both_sides(seed: int) -> None:
    chance = random.Random(seed)
    base = [b"line %d\n" % n for n in range(80)]
    at = chance.randrange(5, 75)
    mine, theirs = list(base), list(base)
    mine[at], theirs[at] = b"mine\n", b"theirs\n"
    for n in chance.sample([n for n in range(0, 80, 4) if abs(n - at) > 4], 6):
        (mine if chance.random() < 0.5 else theirs)[n] = b"x\n" * chance.randrange(4)
    found = merge(b"".join(mine), b"".join(base), b"".join(theirs))
    number = b"".join(mine).splitlines().index(b"mine") + 1
    assert found.conflicts == ((number, number),)


def test_conflict_markers_in_a_file_are_plain_lines() -> None:
    marked = b"<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"
    assert merge(LINES + marked, LINES + marked, b"0\n" + LINES + marked).data == b"0\n" + LINES + marked
    found = merge(
        marked + LINES.replace(b"line 9\n", b"m\n"), marked + LINES, marked + LINES.replace(b"line 9\n", b"t\n")
    )
    assert found.conflicts == ((14, 14),)


def test_content_that_differs_from_the_accepted_one_is_rejected(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "contents")
    for oid, size, data in ((oid_of(b"a"), 1, b"b"), (oid_of(b"a"), 1, b"aa"), (oid_of(b"ab"), 2, b"a")):
        with pytest.raises(SandboxUnavailable):
            contents.keep(oid, size, [data])
    with pytest.raises(SandboxUnavailable), contents.receive(None, 1, "0" * 64) as coming:
        coming.write(b"x")
    with pytest.raises(SandboxUnavailable):
        contents.path("../../etc/passwd")
    assert list(contents.directory.iterdir()) == []


def test_patch_set_of_a_server_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = accept({}, {"a": b"1"})
    twice = type(twice)(**{**{f: getattr(twice, f) for f in twice.__struct_fields__}, "files": twice.files * 2})
    with pytest.raises(SandboxUnavailable, match="twice"):
        targets.check_patch_set(twice)
    monkeypatch.setattr(targets, "MAX_FILES", 1)
    with pytest.raises(SandboxUnavailable, match="more than 1 files"):
        targets.check_patch_set(accept({}, {"a": b"1", "b": b"1"}))
    monkeypatch.setattr(targets, "MAX_BYTES", 1)
    with pytest.raises(SandboxUnavailable, match="GiB"):
        targets.check_patch_set(accept({}, {"a": b"12"}))


@pytest.mark.parametrize("mode", ["160000", "040000", "100666", "junk"])
def test_invalid_file_mode_is_rejected(mode: str) -> None:
    file = file_between("a", None, b"x")
    bad = type(file)(**{**{f: getattr(file, f) for f in file.__struct_fields__}, "new_mode": mode})
    accepted = accept({}, {})
    with pytest.raises(SandboxUnavailable):
        targets.planned_edits(
            type(accepted)(**{**{f: getattr(accepted, f) for f in accepted.__struct_fields__}, "files": (bad,)})
        )


def test_large_file_is_identified_by_its_hash(tmp_path: Path) -> None:
    known = targets.pointer(b"skerry large file\nsha256 " + b"a" * 64 + b"\nsize 123\n")
    assert known == ("a" * 64, 123)
    assert targets.pointer(b"skerry large file\nsha256 " + b"a" * 64 + b"\nsize 123\nmore") is None


@pytest.mark.parametrize("case", [name for name in CASES if name not in ("a name that is not UTF-8",)])
def test_patch_is_valid_for_git_apply(case: str, tmp_path: Path, root: Path) -> None:
    base, new = CASES[case]
    repository(root, base)
    contents = Contents(tmp_path / "contents")
    for tree in (base, new):
        for node in tree.values():
            contents.add(node if isinstance(node, bytes) else node[0])
    (tmp_path / "patch").write_bytes(patch(targets.planned_edits(accept(base, new)), contents))
    git(root, "apply", "--whitespace=nowarn", str(tmp_path / "patch"))
    assert tree_of(root) == new


def test_messages_are_escaped(root: Path) -> None:
    name = "x\x1b]0;pwned\x07\n\u202egnp"
    put(root / name, b"mine")
    with pytest.raises(Conflict) as error:
        apply(root, {}, {name: b"new"})
    assert error.value.message.replace("\n  ", "").isprintable()


def test_undo_of_a_sandbox_reverts_only_its_applies(root: Path) -> None:
    lay(root, {"f": b"0\n"})
    record = apply(root, {"f": b"0\n"}, {"f": b"1\n"})
    assert record.sandbox == SANDBOX
    assert record.hunks == ("h-0123456789abcdef",)


def nodes() -> list[Node]:
    return [b"", LINES, Program(LINES), Link(b"x")]


@pytest.mark.parametrize("mine", range(5))
@pytest.mark.parametrize(("old", "new"), list(permutations(range(5), 2)))
def test_any_three_versions_merge_or_report_a_conflict(old: int, new: int, mine: int, root: Path) -> None:
    """Where only one side changed, its version stands; where both did differently, nothing is written."""
    choice: list[Node | None] = [None, *nodes()]
    base, theirs, ours = choice[old], choice[new], choice[mine]
    lay(root, {"f": ours} if ours is not None else {})
    try:
        apply(root, {"f": base} if base is not None else {}, {"f": theirs} if theirs is not None else {})
    except Conflict:
        assert mine not in (old, new)
        assert tree_of(root).get("f") == ours
        return
    outcome = tree_of(root).get("f")
    if mine in (old, new):
        assert outcome == theirs
    else:  # it can only be the bit, with one content
        assert isinstance(ours, (bytes, Program))
        assert not isinstance(theirs, Link)
