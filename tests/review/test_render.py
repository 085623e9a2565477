"""Hunks are rendered as git shows them, within a size limit."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest
from support.random_changes import KEY, after, all_of, atoms, changed, modified, mutated, text

from skerry.review.hunks import atoms as patches
from skerry.review.hunks.atoms import split_lines
from skerry.review.hunks.hunks import HunkAction, ReviewedFile, Sides
from skerry.review.hunks.patch_set import patched_content
from skerry.review.hunks.render import HunkRenderer
from skerry.types import MAX_SHOWN, Hunk

GIT = {**{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
       "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}  # fmt: skip


def git_diff(place: Path, old: bytes, new: bytes, *options: str) -> bytes:
    (place / "old").write_bytes(old)
    (place / "new").write_bytes(new)
    argv = ["git", "diff", "--no-index", "--no-color", "--full-index", *options, "old", "new"]
    return subprocess.run(argv, cwd=place, env=GIT, capture_output=True, check=False).stdout


def shown(file: ReviewedFile) -> list[Hunk]:
    showing = HunkRenderer(file)
    return [showing.hunk(unit) for unit in file.hunks]


def as_bytes(hunk: Hunk) -> bytes:
    return hunk.raw if hunk.raw is not None else hunk.text.encode()


@pytest.mark.parametrize("seed", range(40))
def test_hunks_equal_gits_patch_and_apply_to_the_new_text(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    old = b"".join(text(chance, 12) + b"\n" for _ in range(4)) + text(chance)
    new = mutated(chance, mutated(chance, old))
    if old == new:
        return
    where = patches.parse_atoms(git_diff(tmp_path, old, new, "-U0", "--text"))
    assert patches.check_atoms(where, split_lines(old), split_lines(new)) == where
    file = ReviewedFile(KEY, modified(), (), Sides(old, new, where))
    hunks = shown(file)
    expected = re.split(rb"^@@ -(\S+) \+(\S+) @@.*\n", git_diff(tmp_path, old, new, "--text"), flags=re.MULTILINE)[1:]
    assert [as_bytes(hunk) for hunk in hunks] == expected[2::3]
    assert [_range(hunk.old_start, hunk.old_lines) for hunk in hunks] == expected[0::3]
    assert [_range(hunk.new_start, hunk.new_lines) for hunk in hunks] == expected[1::3]
    some = after(file, {file.hunks[0].id: HunkAction("accept")})
    result = patched_content(some)
    (tmp_path / "patch").write_bytes(_patch(hunks[0]))
    (tmp_path / "new").write_bytes(old)
    applied = subprocess.run(["git", "apply", "--no-index", "--whitespace=nowarn", "--unidiff-zero", "patch"],
                             cwd=tmp_path, env=GIT, capture_output=True, check=False)  # fmt: skip
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "new").read_bytes() == (result.data if result.data is not None else new)


def _range(start: int, count: int) -> bytes:
    return b"%d" % start if count == 1 else b"%d,%d" % (start, count)


def _patch(hunk: Hunk) -> bytes:
    head = f"--- a/new\n+++ b/new\n@@ -{hunk.old_start},{hunk.old_lines} +{hunk.new_start},{hunk.new_lines} @@\n"
    return head.encode() + as_bytes(hunk)


def test_atoms_come_only_from_headings() -> None:
    patch = b"@@ -0,0 +1 @@ def f\n+@@ -9 +9 @@\n@@ -5,2 +6,0 @@ @@ -7 +7 @@\n-@@ -9 +9 @@\n-\r@@ -8 +8 @@\n"
    assert patches.parse_atoms(patch) == ((0, 0, 0, 1), (4, 6, 6, 6))
    assert patches.parse_atoms(b"") == ()


def test_wrong_atoms_are_replaced() -> None:
    old, new = b"a\nb\nc\n", b"a\nx\nc\n"
    for wrong in ([], [(0, 1, 0, 1)], [(1, 2, 1, 9)], [(2, 1, 1, 2)], [(1, 2, 1, 2), (0, 1, 0, 1)]):
        file = ReviewedFile(KEY, modified(), (), Sides(old, new, [patches.Atom(*one) for one in wrong]))
        assert file.atoms == ((1, 2, 1, 2),)
        assert patched_content(all_of(file, HunkAction("accept"))).oid == modified().new_oid


def test_a_long_hunk_is_cut_at_a_line_and_hunks_share_a_limit() -> None:
    new = b"".join(b"line %d\n" % n for n in range(200_000))
    file = changed(b"", new)
    [hunk] = shown(file)
    assert hunk.truncated
    assert len(hunk.text) <= MAX_SHOWN
    assert hunk.text.endswith("\n")
    whole = HunkRenderer(file).hunk(file.hunks[0], None)
    assert (whole.truncated, whole.replacement.encode()) == (False, new)
    showing = HunkRenderer(file, room=100)
    assert len(showing.hunk(file.hunks[0]).text) <= 100
    assert showing.room is not None
    assert showing.room < 20
    assert shown(changed(b"", b"x" * (MAX_SHOWN * 2)))[0].truncated


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"a\nb\nc\n", b"a\nx\ny\nc\n", "x\ny\n"),
        (b"a\nb", b"a\nc", "c"),
        (b"a\nb", b"a\nc\n", "c\n"),
        (b"a\nb\n", b"a\nb", "b"),
        (b"a\nb\nc\nd\n", b"x\nb\nc\ny\n", "x\nb\nc\ny\n"),
        (b"a\nb\nc", b"x\nb\nc", "x\n"),
        (b"a\nb\n", b"b\n", ""),
    ],
)
def test_a_hunk_shows_the_text_for_an_edit(old: bytes, new: bytes, expected: str) -> None:
    [hunk] = shown(changed(old, new))
    assert hunk.replacement == expected
    file = changed(old, new)
    assert patched_content(after(file, {hunk.id: HunkAction("edit", None, expected.encode())})).data == new


def test_whole_file_changes_are_one_hunk_each() -> None:
    none: dict[str, object] = {"old_mode": None, "old_oid": None}
    added = changed(b"", b"a\nb", delta=modified(kind="added", **none))
    assert [(h.kind, h.text, h.new_start, h.new_lines, h.old_start) for h in shown(added)] == [
        ("added", "+a\n+b\n\\ No newline at end of file\n", 1, 2, 0)
    ]
    empty = changed(b"", b"", delta=modified(kind="added", **none))
    assert [(h.kind, h.text) for h in shown(empty)] == [("added", "")]
    assert patched_content(all_of(empty, HunkAction("accept"))).oid == "2" * 40
    deleted = changed(b"a\n", b"", delta=modified(kind="deleted", new_mode=None, new_oid=None))
    assert [(h.kind, h.text) for h in shown(deleted)] == [("deleted", "-a\n")]
    assert patched_content(all_of(deleted, HunkAction("accept"))).gone
    link = changed(b"a", b"../out", delta=modified(new_mode="120000"))
    assert [(h.kind, bool(h.risk)) for h in shown(link)] == [("link", True)]
    old = b"".join(b"%d\n" % n for n in range(50))
    new = old.replace(b"\n7\n", b"\nx\n").replace(b"\n40\n", b"\ny\n")
    renamed = changed(old, new, delta=modified(kind="renamed", old_path=b"b.py"))
    [hunk] = shown(renamed)
    assert (hunk.kind, hunk.text.count("@@ -")) == ("renamed", 2)
    large = ReviewedFile(KEY, modified(), (), Sides(), large=True)
    assert [(h.kind, h.text) for h in shown(large)] == [("large", "")]
    binary = ReviewedFile(KEY, modified(binary=True, new_mode="100755"), (), Sides())
    assert [(h.kind, bool(h.risk)) for h in shown(binary)] == [("binary", True)]
    decided = all_of(binary, HunkAction("accept"))
    other = ReviewedFile(KEY, modified(binary=True, new_oid="3" * 40), decided.decisions, Sides())
    assert other.hunks[0].state == "open"


def test_text_that_is_not_utf_8_is_returned_as_bytes() -> None:
    file = changed(b"\xff\n", b"\xfe\n", delta=modified(path=b"\xff.py"))
    [hunk] = shown(file)
    assert (hunk.raw, hunk.raw_path) == (b"-\xff\n+\xfe\n", b"\xff.py")


def test_a_heading_is_the_definition_before() -> None:
    old = b"def f():\n" + b"    x\n" * 10 + b"class C:\n" + b"    y\n" * 10 + b"    z\n"
    new = old.replace(b"    z\n", b"    q\n").replace(b"def f():\n    x\n", b"def f():\n    w\n")
    assert [hunk.heading for hunk in shown(changed(old, new))] == ["", "class C:"]


def test_another_key_makes_other_ids() -> None:
    sides = Sides(b"a\n", b"b\n", atoms(b"a\n", b"b\n"))
    ids = {ReviewedFile(key, modified(), (), sides).hunks[0].id for key in (KEY, b"other")}
    assert len(ids) == 2
