"""Accepted changes without a server: two trees as values, and their difference."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from skerry.client.apply.content import oid_of
from skerry.client.apply.journal import ApplyRecord
from skerry.client.apply.replace_files import Step, no_step
from skerry.client.apply.session import WORKING_TREE, ApplySession, ApplyTarget
from skerry.client.apply.target_dir import TargetDir, find_target
from skerry.client.apply.targets import check_patch_set, planned_edits
from skerry.types.review import LedgerEntry, PatchSet, PatchSetFile
from skerry.types.values import encode_path

SANDBOX = "sb-aaaaaaaaaa"


@contextmanager
def in_memory() -> Iterator[Path]:
    """A directory, in memory where it can be: applies ask for every write to be kept for good."""
    with tempfile.TemporaryDirectory(
        prefix="skerry-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as name:
        yield Path(name)


class Link(NamedTuple):
    target: bytes


class Program(NamedTuple):
    text: bytes


Node = bytes | Link | Program
Files = Mapping[str, Node]


def facts(node: Node) -> tuple[str, bytes]:
    if isinstance(node, Link):
        return "120000", node.target
    return ("100755", node.text) if isinstance(node, Program) else ("100644", node)


def file_between(path: str, old: Node | None, new: Node | None, old_path: str | None = None) -> PatchSetFile:
    told, raw = encode_path(path)
    sides = {}
    for side, node in (("old", old), ("new", new)):
        if node is not None:
            mode, data = facts(node)
            sides |= {f"{side}_mode": mode, f"{side}_oid": oid_of(data), f"{side}_size": len(data)}
    kind = "renamed" if old_path else "added" if old is None else "deleted" if new is None else "modified"
    return PatchSetFile(path=told, raw_path=raw, kind=kind, hunks=("h-0123456789abcdef",), old_path=old_path, **sides)  # type: ignore[arg-type]


def accept(base: Files, new: Files, renames: Mapping[str, str] = {}, entries: tuple[LedgerEntry, ...] = ()) -> PatchSet:
    """`renames`: from the old path to the new."""
    files = [file_between(new_path, base[old], new[new_path], old) for old, new_path in renames.items()]
    for path in sorted({*base, *new} - {*renames, *renames.values()}):
        if base.get(path) != new.get(path):
            files.append(file_between(path, base.get(path), new.get(path)))
    return PatchSet(
        sandbox=SANDBOX, path="/workspace", base="b" * 40, tip="c" * 40, digest="d" * 64, files=tuple(files),
        entries=entries,
    )  # fmt: skip


def blobs(*trees: Files) -> dict[str, bytes]:
    return {oid_of(data): data for tree in trees for _, data in map(facts, tree.values())}


@lru_cache
def place_of(root: Path) -> TargetDir:
    return find_target(root)


def apply(
    root: Path, base: Files, new: Files, *, renames: Mapping[str, str] = {}, target: ApplyTarget = WORKING_TREE,
    step: Step = no_step, entries: tuple[LedgerEntry, ...] = (), exchange: bool = True,
) -> ApplyRecord:  # fmt: skip
    accepted, known = accept(base, new, renames, entries), blobs(base, new)
    work = ApplySession(place_of(root), step=step)
    work.tree.exchange, work.tree.step = exchange, step
    try:
        assert work.journal.try_lock()
        work.recover()
        check_patch_set(accepted)
        for oid in work.survey(planned_edits(accepted), target):
            work.contents.keep(oid, len(known[oid]), [known[oid]])
        return work.perform(work.plan(target), accepted, target)
    finally:
        work.close()


def undo(root: Path, step: Step = no_step) -> ApplyRecord:
    work = ApplySession(place_of(root), step=step)
    try:
        assert work.journal.try_lock()
        work.recover()
        return work.undo(*work.plan_undo(SANDBOX))
    finally:
        work.close()


def recover(root: Path) -> list[str]:
    work = ApplySession(place_of(root))
    try:
        assert work.journal.try_lock()
        return work.recover()
    finally:
        work.close()


def lay(root: Path, files: Files) -> Path:
    for path, node in files.items():
        put(root / path, node)
    return root


def put(path: Path, node: Node) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode, data = facts(node)
    if mode == "120000":
        os.symlink(data, os.fsencode(path))
        return
    path.write_bytes(data)
    path.chmod(0o755 if mode == "100755" else 0o644)


def tree_of(root: Path) -> dict[str, Node]:
    """All that is in it, but for git's and our own."""
    found: dict[str, Node] = {}
    for above, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name != ".git"]
        for name in [
            *(n for n in names if n != ".git"),
            *(d for d in directories if os.path.islink(os.path.join(above, d))),
        ]:
            path = Path(above) / name
            relative = str(path.relative_to(root))
            if path.is_symlink():
                found[relative] = Link(os.fsencode(os.readlink(path)))
            elif path.is_file():
                data = path.read_bytes()
                found[relative] = Program(data) if path.stat().st_mode & 0o100 else data
    return found


def directories_of(root: Path) -> set[str]:
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir() and not path.is_symlink()}
    return {path for path in found if not path.startswith(".git")}


def git(root: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=U Ser", "-c", "user.email=user@example.org")
    done = subprocess.run(["git", *who, "-C", str(root), *words], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape")


def repository(root: Path, files: Files) -> Path:
    """Create it with one commit and an identity."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "U Ser")
    git(root, "config", "user.email", "user@example.org")
    lay(root, files)
    git(root, "add", "-A", "-f")
    git(root, "commit", "-q", "--allow-empty", "-m", "base")
    return root
