"""Differences between two stacks of layers, found by reading only the places that can differ."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.descriptors import descriptors, left_over
from support.overlays import differences, written

from skerry.errors import InvalidRequest, SkerryError
from skerry.storage import changes as module
from skerry.storage import tree
from skerry.storage.changes import changes
from skerry.storage.merged import merged
from skerry.types import SnapshotDiff


def told(found: SnapshotDiff) -> dict[str, str]:
    return {one.path if one.raw_path is None else os.fsdecode(one.raw_path): one.kind for one in found.changes}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    root = tmp_path / "base"
    for directory in ("etc", "usr/lib/deep", "home/user", "var/lib", "run", "proc", "dev"):
        (root / directory).mkdir(parents=True)
    for number in range(4):
        (root / f"usr/lib/deep/file-{number}").write_text(f"number {number}")
    (root / "etc/passwd").write_text("root:x:0:0\n")
    (root / "etc/mtab").symlink_to("/proc/mounts")
    return root


@pytest.mark.parametrize("by_fd", [True, False])
def test_a_merged_stack_equals_the_sandbox_view_and_leaves_nothing(base: Path, tmp_path: Path, by_fd: bool) -> None:
    with written(tmp_path / "one", [base]) as root:
        (root / "etc/passwd").unlink()
        os.rename(root / "usr/lib", root / "usr/moved")
        shutil.rmtree(root / "home")
        (root / "home").mkdir()
    stack = [tmp_path / "one/upper", base]
    before = descriptors()
    for layers in (stack, [tmp_path / "one/upper"], [base]):
        with merged(layers, by_fd=by_fd) as fd:
            with pytest.raises(OSError, match="Read-only"):
                os.mkdir("new", dir_fd=fd)
            names = {entry.path for entry in tree.walk(fd)}
        if layers == stack:
            assert b"usr/moved/deep/file-3" in names
            assert not names & {b"etc/passwd", b"usr/lib", b"home/user"}
    assert left_over(before) == 0


def test_a_missing_layer_is_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(base)
    for wrong in (tmp_path / "nothing", tmp_path / "link"):
        with pytest.raises(SkerryError, match="missing"), merged([wrong, base]):
            pass


Step = Callable[[Path], object]
STEPS: dict[str, tuple[Step, dict[str, str]]] = {
    "a new file": (lambda root: (root / "etc/new").touch(), {"/etc/new": "added"}),
    "other content": (lambda root: (root / "etc/passwd").write_text("x"), {"/etc/passwd": "modified"}),
    "another mode": (lambda root: (root / "etc/passwd").chmod(0o600), {"/etc/passwd": "modified"}),
    "another owner": (lambda root: os.chown(root / "etc", 7, 7), {"/etc": "modified"}),
    "an attribute": (lambda root: os.setxattr(root / "etc/passwd", "user.a", b""), {"/etc/passwd": "modified"}),
    "another target": (
        lambda root: ((root / "etc/mtab").unlink(), (root / "etc/mtab").symlink_to("/proc/mountz")),
        {"/etc/mtab": "modified"},
    ),
    "another mode of the root": (lambda root: root.chmod(0o700), {"/": "modified"}),
    "nothing but time": (lambda root: os.utime(root / "etc/passwd", (1, 1)), {}),
    "written as it was": (lambda root: (root / "etc/passwd").write_text("root:x:0:0\n"), {}),
    "copied up and back": (lambda root: ((root / "etc").chmod(0), (root / "etc").chmod(0o755)), {}),
    "a file gone": (lambda root: (root / "etc/passwd").unlink(), {"/etc/passwd": "deleted"}),
    "made and removed": (lambda root: ((root / "a").touch(), (root / "a").unlink()), {}),
    "a directory for a file": (
        lambda root: ((root / "etc/passwd").unlink(), (root / "etc/passwd").mkdir(), (root / "etc/passwd/x").touch()),
        {"/etc/passwd": "modified", "/etc/passwd/x": "added"},
    ),
    "a file for a directory": (
        lambda root: (shutil.rmtree(root / "home"), (root / "home").touch()),
        {"/home": "modified", "/home/user": "deleted"},
    ),
    "a directory made anew": (
        lambda root: (shutil.rmtree(root / "usr/lib"), (root / "usr/lib/deep").mkdir(parents=True)),
        {f"/usr/lib/deep/file-{number}": "deleted" for number in range(4)},
    ),
    "a directory moved": (
        lambda root: os.rename(root / "usr/lib/deep", root / "etc/deep"),
        {"/usr/lib/deep": "deleted", "/etc/deep": "added"}
        | {f"/usr/lib/deep/file-{number}": "deleted" for number in range(4)}
        | {f"/etc/deep/file-{number}": "added" for number in range(4)},
    ),
    "moved away and back": (
        lambda root: (os.rename(root / "usr/lib", root / "x"), os.rename(root / "x", root / "usr/lib")),
        {},
    ),
    "a name that is not UTF-8": (
        lambda root: (root / os.fsdecode(b"etc/\xff\n")).touch(),
        {os.fsdecode(b"/etc/\xff\n"): "added"},
    ),
    "a FIFO": (lambda root: os.mkfifo(root / "pipe"), {"/pipe": "added"}),
    "a FIFO for a file": (
        lambda root: ((root / "etc/passwd").unlink(), os.mkfifo(root / "etc/passwd")),
        {"/etc/passwd": "modified"},
    ),
    "what is the keeper's": (
        lambda root: ((root / "var/lib/skerry").mkdir(), (root / "var/lib/skerry/x").touch(), (root / "dev/x").touch()),
        {},
    ),
}  # fmt: skip


def test_each_change_is_reported_in_both_directions(base: Path, tmp_path: Path) -> None:
    opposite = {"added": "deleted", "deleted": "added", "modified": "modified"}
    for number, (name, (step, expected)) in enumerate(STEPS.items()):
        home = tmp_path / str(number)
        with written(home, [base]) as root:
            step(root)
        found = told(changes([base], [home / "upper", base]))
        assert found == expected, name
        assert list(found) == sorted(found, key=lambda path: path.split("/")), name
        backwards = told(changes([home / "upper", base], [base]))
        assert backwards == {path: opposite[kind] for path, kind in expected.items()}, name


def _act(root: Path, chance: random.Random) -> None:
    """One thing that a sandbox might do, anywhere in its tree."""
    found = [(Path(top), name) for top, _, files in os.walk(root) for name in [".", *files]]
    directories = [top for top, name in found if name == "."]
    files = [top / name for top, name in found if name != "." and not (top / name).is_symlink()]
    place, file = chance.choice(directories), chance.choice(files) if files else None
    what = chance.randrange(8)
    if what == 0:
        (place / f"n{chance.randrange(9)}").mkdir(exist_ok=True)
    elif what in (1, 2) and not (place / (name := f"f{chance.randrange(9)}")).is_dir():
        (place / name).write_text(str(chance.randrange(3)))
    elif what == 3 and file is not None:
        file.unlink()
    elif what == 4 and file is not None:
        file.chmod(chance.choice((0o600, 0o644)))
    elif what == 5 and place not in (root, *(root / name for name in ("etc", "usr"))):
        shutil.rmtree(place)
    elif what == 6:
        target = chance.choice(directories) / f"m{chance.randrange(9)}"
        if place != root and place not in (target, *target.parents) and not target.exists():
            os.rename(place, target)
    elif what == 7 and file is not None:
        target = chance.choice(directories) / f"l{chance.randrange(9)}"
        if not target.exists():
            os.link(file, target)


@pytest.mark.parametrize("seed", range(6))
def test_changes_equal_a_full_comparison(base: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stacks = [[base]]
    for number in range(5):
        stack = chance.choice(stacks)
        home = tmp_path / str(number)
        with written(home, stack) as root:
            for _ in range(12):
                _act(root, chance)
        stacks.append([home / "upper", *stack])
    for before in stacks:
        for after in stacks:
            assert told(changes(before, after)) == differences(before, after)


def test_mount_point_directories_are_reported_only_if_not_empty(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for number, (step, expected) in enumerate(
        (
            (lambda root: None, {}),
            (lambda root: (root / "run/pid").touch(), {"/run": "added", "/run/pid": "added"}),
            (lambda root: (root / "var/x").mkdir(), {"/var": "added", "/var/x": "added"}),
        )
    ):
        with written(tmp_path / str(number), [bare]) as root:
            for directory in ("proc", "sys", "dev/pts", "run/skerry", "var/lib/skerry/journal"):
                (root / directory).mkdir(parents=True)
            step(root)
        assert told(changes([bare], [tmp_path / str(number) / "upper", bare])) == expected


def test_only_files_written_since_are_read(base: Path, tmp_path: Path) -> None:
    """As between two copies of one upper that keep inodes and times; a coincidence after the parting is read."""
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    (early / "data").write_bytes(b"a" * 100)
    late.mkdir()
    os.link(early / "data", late / "data")
    reads = []
    found = changes([early], [late], settled=time.time() + 60, check=lambda: reads.append(1))
    assert (found.changes, len(reads)) == ((), 1)
    found = changes([early], [late], settled=time.time(), check=lambda: reads.append(1))
    assert (found.changes, len(reads)) == ((), 3)


def test_a_file_of_terabytes_that_is_a_hole_is_compared_at_once(tmp_path: Path) -> None:
    for name, last in (("one", b"a"), ("two", b"b")):
        (tmp_path / name).mkdir()
        with open(tmp_path / name / "big", "wb") as file:
            file.seek(1 << 42)
            file.write(last)
    assert told(changes([tmp_path / "one"], [tmp_path / "two"])) == {"/big": "modified"}
    with open(tmp_path / "two/big", "r+b") as file:
        file.seek(1 << 42)
        file.write(b"a")
    assert told(changes([tmp_path / "one"], [tmp_path / "two"])) == {}


def test_changes_above_the_limit_are_reported_as_truncated(base: Path, tmp_path: Path) -> None:
    with written(tmp_path / "one", [base]) as root:
        for number in range(30):
            (root / f"{number:02}").touch()
    found = changes([base], [tmp_path / "one/upper", base], max_changes=10)
    assert found.truncated
    assert [one.path for one in found.changes] == [f"/{number:02}" for number in range(10)]


def test_a_tree_too_deep_is_rejected_without_leaking_descriptors(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("one", "1"), ("two", "2")):
        place = tmp_path / name / "/".join("d" * 100)
        place.mkdir(parents=True)
        (place / "x").write_text(content)
    before = descriptors()
    sides = [tmp_path / "one", base], [tmp_path / "two", base]
    assert len(changes(*sides).changes) == 1
    monkeypatch.setattr(module, "_MAX_FDS", 300)
    with pytest.raises(InvalidRequest, match="too deep"):
        changes(*sides)
    monkeypatch.setattr(tree, "MAX_DEPTH", 50)
    for one, other in (sides, ([base], sides[1])):
        with pytest.raises(InvalidRequest, match="deeper"):
            changes(one, other)
    assert left_over(before) == 0


def test_a_comparison_can_be_cancelled(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with pytest.raises(Enough):
        changes([tmp_path / "one"], [tmp_path / "two"], check=check)
    assert subprocess.run(["grep", "-c", str(tmp_path), "/proc/self/mountinfo"], capture_output=True).stdout == b"0\n"
