"""Commits of accepted hunks: on the checked-out branch, or on another one.

A commit contains the previous commit plus the accepted changes; the user's uncommitted changes are not in it. git's
plumbing makes it through a separate index: no hook runs, and nothing of the user's is touched until the ref moves.
Contents pass through the user's filters (line ends, LFS) as `git add` would pass them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from skerry.client.apply.content import MAX_MERGE_BYTES, Contents
from skerry.client.apply.directories import above_all
from skerry.client.apply.journal import ApplyRecord, RefUpdate
from skerry.client.apply.merge import is_binary, merge
from skerry.client.apply.patch import mode_of
from skerry.client.apply.plan import PlannedEdit, Problem, Side, display_path, raise_problems
from skerry.client.apply.replace_files import CommitStep
from skerry.client.apply.target_dir import TargetDir
from skerry.client.host.git import HostGitFailed, user_git
from skerry.codecs.text import escape
from skerry.errors import Conflict, InvalidRequest
from skerry.types.review import PatchSet

_UNDER_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")
_FILTERS = ("text", "crlf", "eol", "filter", "ident", "working-tree-encoding")
_UNFILTERED = (b"unspecified", b"unset")
_Entry = tuple[str, str]  # mode, object
MAX_MESSAGE_LINE: Final = 300
MAX_LISTED: Final = 20


class Repository:
    def __init__(self, place: TargetDir, contents: Contents) -> None:
        if place.git is None or place.top is None:
            raise InvalidRequest(f"{place.root} is not in a git repository", hint="leave --commit and --branch out")
        self._place, self._top, self._git = place, place.top, place.git
        self._contents = contents
        # git object names here, by SHA-1 object names: they differ in a SHA-256 repository
        self._objects: dict[str, str] = {}
        self._used: set[str] = set()
        self._plain: set[bytes] = set()

    @cached_property
    def _zeros(self) -> str:
        return "0" * (64 if self._said("rev-parse", "--show-object-format") == "sha256" else 40)

    def commit(self, edits: Sequence[PlannedEdit], message: bytes, branch: str | None) -> RefUpdate | None:
        """Create a commit that no ref names yet. Return None if the branch contains all of it already."""
        ref, old, parent = self._on_branch(branch) if branch is not None else self._on_head()
        with tempfile.TemporaryDirectory(prefix="skerry-commit-") as name:
            env = {"GIT_INDEX_FILE": f"{name}/index"}
            user_git(self._top, "read-tree", parent or "--empty", env=env)
            there = self._entries(env)
            self.prepare(edits)
            entries = _CommitMerger(self, there, branch or "HEAD").entries(edits)
            if branch is None:
                self._refuse_staged(there, entries)
            self._hashed(sorted(self._used), "-w")
            self._set(entries, env)
            tree = self._said("write-tree", env=env)
            if parent and tree == self._said("rev-parse", f"{parent}^{{tree}}"):
                return None
            words = ["commit-tree", tree, *(["-p", parent] if parent else []), "-F", "-"]
            new = self._said(*words, stdin=message)
        kept = tuple(
            (path, *(there.get(path) or (None, None)), *(one or (None, None))) for path, one in entries.items()
        )
        return RefUpdate(ref=ref, old=old, new=new, branch=branch, entries=kept if branch is None else ())

    def commit_step(self) -> CommitStep:
        return CommitStep(self._move_ref, self._moved, self._finish)

    def _move_ref(self, record: ApplyRecord) -> None:
        if (one := record.commit) is not None:
            words = ["update-ref", "-m", f"skerry: apply of {record.sandbox}", one.ref, one.new]
            try:
                user_git(self._top, *words, one.old or self._zeros)
            except HostGitFailed as error:
                raise Conflict(f"{one.ref} was moved concurrently; nothing was changed: {error.message}") from error

    def _moved(self, record: ApplyRecord) -> bool:
        if (one := record.commit) is None:
            return False
        try:
            code, _ = user_git(self._top, "merge-base", "--is-ancestor", one.new, one.ref, expect=(0, 1))
        except HostGitFailed:  # the ref does not exist
            return False
        return code == 0

    def _finish(self, record: ApplyRecord) -> None:
        """Update the index to the new commit, for paths with the same entry as in the previous commit."""
        if record.commit is None or not record.commit.entries:
            return
        now = self._entries({})
        fresh = {}
        for path, mode, oid, new_mode, new_oid in record.commit.entries:
            old = (mode, oid) if mode and oid else None
            if now.get(path) == old:
                fresh[path] = (new_mode, new_oid) if new_mode and new_oid else None
        self._set(fresh, {})

    def _on_head(self) -> tuple[str, str, str]:
        for name in _UNDER_WAY:
            if (self._git / name).exists():
                raise Conflict(
                    f"{name} exists in {self._git}: a git operation is in progress", hint="finish or abort it first"
                )
        code, said = user_git(self._top, "symbolic-ref", "-q", "HEAD", expect=(0, 1))
        ref = said.decode().strip() if code == 0 else "HEAD"
        old = self._commit_of("HEAD")
        return ref, old, old

    def _on_branch(self, branch: str) -> tuple[str, str, str]:
        ref = f"refs/heads/{branch}"
        if branch.startswith("-") or user_git(self._top, "check-ref-format", ref, expect=(0, 1))[0]:
            raise InvalidRequest(f"branch: {branch!r} is not a valid branch name", hint="like review/fix-login")
        _, listed = user_git(self._top, "worktree", "list", "--porcelain")
        if f"branch {ref}".encode() in listed.split(b"\n"):
            raise Conflict(f"branch {branch} is checked out", hint="use --commit there, or name another branch")
        old = self._commit_of(ref)
        parent = old or self._commit_of("HEAD")
        if not parent:
            raise Conflict(
                "the repository has no commit yet to start a branch from", hint="use --commit, or commit first"
            )
        return ref, old, parent

    def _commit_of(self, ref: str) -> str:
        code, said = user_git(self._top, "rev-parse", "-q", "--verify", f"{ref}^{{commit}}", expect=(0, 1))
        return said.decode().strip() if code == 0 else ""

    def _said(self, *words: str | bytes, stdin: bytes | Path = b"", env: dict[str, str] = {}) -> str:  # noqa: B006
        try:
            return user_git(self._top, *words, stdin=stdin, env=env)[1].decode().strip()
        except HostGitFailed as error:
            raise InvalidRequest(error.message) from error  # for example, the user's identity is not configured

    def _entries(self, env: dict[str, str]) -> dict[bytes, _Entry | None]:
        """Return the index entries by path; None: in conflict, or added with --intent-to-add."""
        found: dict[bytes, _Entry | None] = {}
        for line in user_git(self._top, "ls-files", "-s", "-z", env=env)[1].split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, oid, stage = facts.decode().split(" ")
            found[path] = (mode, oid) if stage == "0" else None
        return found

    def _set(self, entries: dict[bytes, _Entry | None], env: dict[str, str]) -> None:
        if not entries:
            return
        gone = [b"0 %b 0\t%b" % (self._zeros.encode(), path) for path, entry in entries.items() if entry is None]
        there = [
            b"%b %b 0\t%b" % (entry[0].encode(), entry[1].encode(), path)
            for path, entry in entries.items() if entry is not None
        ]  # fmt: skip
        user_git(self._top, "update-index", "-z", "--index-info", stdin=b"\0".join([*gone, *there, b""]), env=env)

    def _refuse_staged(self, there: dict[bytes, _Entry | None], entries: dict[bytes, _Entry | None]) -> None:
        now = self._entries({})
        staged = [path for path in entries if now.get(path) != there.get(path) or (path in now) != (path in there)]
        raise_problems([Problem(path, "it has staged changes that are not committed") for path in staged], "commit")

    def prepare(self, edits: Sequence[PlannedEdit]) -> None:
        """Write contents that no filter changes as objects in one call: usually all of them."""
        sides = [(self.prefix + path, side) for edit in edits for path, side in _sides(edit)]
        filtered = self._filtered({path for path, side in sides if side.kind == "file"})
        if "\n" in str(self._contents.directory):  # git reads the names line by line
            return
        whole = sorted({side.oid for path, side in sides if path not in filtered and not side.sha256})
        self._objects = dict(zip(whole, self._hashed(whole), strict=True))
        self._plain = {path for path, side in sides if path not in filtered or side.kind == "link"}

    def _hashed(self, oids: Sequence[str], *how: str) -> list[str]:
        listed = b"".join(bytes(self._contents.path(oid).absolute()) + b"\n" for oid in oids)
        return self._said("hash-object", *how, "--no-filters", "--stdin-paths", stdin=listed).split() if oids else []

    def _filtered(self, paths: set[bytes]) -> set[bytes]:
        code, said = user_git(self._top, "config", "--get", "core.autocrlf", expect=(0, 1))
        if code == 0 and said.strip().lower() not in (b"false", b"0", b"no", b"off"):
            return paths
        listed = b"".join(path + b"\0" for path in sorted(paths))
        values = user_git(self._top, "check-attr", "-z", "--stdin", *_FILTERS, stdin=listed)[1].split(b"\0")
        return {path for path, value in zip(values[::3], values[2::3], strict=False) if value not in _UNFILTERED}

    def clean(self, side: Side, path: bytes, data: bytes | None = None, *, write: bool = True) -> str:
        """Return the object that git stores for a content of the working tree."""
        if data is None and path in self._plain and side.oid in self._objects:
            if write:
                self._used.add(side.oid)
            return self._objects[side.oid]
        how = [b"--no-filters"] if side.kind == "link" else [b"--path=" + path]
        source: bytes | Path = self._contents.path(side.oid) if data is None else data
        return self._said("hash-object", *(["-w"] if write else []), "--stdin", *how, stdin=source)

    def smudged(self, oid: str, path: bytes) -> bytes:
        return user_git(self._top, "cat-file", "--filters", b"--path=" + path, oid)[1]

    def read(self, side: Side) -> bytes:
        return self._contents.read(side.oid)

    def size(self, side: Side) -> int:
        return self._contents.size(side.oid)

    @property
    def prefix(self) -> bytes:
        return self._place.prefix


def _sides(edit: PlannedEdit) -> Iterator[tuple[bytes, Side]]:
    if edit.base is not None:
        yield edit.source or edit.path, edit.base
    if edit.new is not None:
        yield edit.path, edit.new


@dataclass
class _CommitMerger:
    """Applies each planned change to the tree of a commit."""

    repository: Repository
    there: dict[bytes, _Entry | None]
    where: str

    def entries(self, edits: Sequence[PlannedEdit]) -> dict[bytes, _Entry | None]:
        made: dict[bytes, _Entry | None] = {}
        problems = []
        for edit in edits:
            found = self._one(edit)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                made.update(found)
        raise_problems([*problems, *self._blocked(made)], "commit")
        return {path: entry for path, entry in made.items() if entry != self.there.get(path) or path not in self.there}

    def _blocked(self, made: dict[bytes, _Entry | None]) -> Iterator[Problem]:
        """git would remove a file or submodule that stands where a directory is needed, or a directory that stands
        where a file is needed."""
        left = (self.there.keys() | made.keys()) - {path for path, entry in made.items() if entry is None}
        directories = {above for path in left for above in above_all(path)}
        for path, entry in made.items():
            if entry is not None and (path in directories or any(above in left for above in above_all(path))):
                yield Problem(path, f"in {self.where}, a file or submodule stands where a directory is needed")

    def _one(self, edit: PlannedEdit) -> dict[bytes, _Entry | None] | Problem:
        path = self.repository.prefix + edit.path
        source = self.repository.prefix + (edit.source or edit.path)
        there, clean = self.there.get(source), self.repository.clean
        if edit.base is None:
            if edit.new is None:
                return {}
            new = (mode_of(edit.new).decode(), clean(edit.new, path))
            return (
                {path: new} if there in (None, new) else Problem(edit.path, f"{self.where} has a different file there")
            )
        if there is None:
            if edit.new is None:
                return {}
            return Problem(edit.path, f"{self.where} does not have it: commit your version first")
        if edit.new is None:
            if not self._is_base(there, edit.base, source):
                return Problem(edit.path, f"it is to be deleted, but differs in {self.where}")
            return {path: None}
        return self._changed(edit, edit.base, edit.new, there)

    def _is_base(self, there: _Entry, base: Side, source: bytes) -> bool:
        if base.sha256 is None:
            return there[1] == self.repository.clean(base, source, write=False)
        if not there[0].startswith("100"):
            return False
        return hashlib.sha256(self.repository.smudged(there[1], source)).hexdigest() == base.sha256

    def _changed(self, edit: PlannedEdit, base: Side, new: Side, there: _Entry) -> dict[bytes, _Entry | None] | Problem:
        path = self.repository.prefix + edit.path
        source = self.repository.prefix + (edit.source or edit.path)
        mode = mode_of(new).decode() if mode_of(new) != mode_of(base) else there[0]
        if edit.source is not None and self.there.get(path) is not None:
            return Problem(edit.path, f"{self.where} has a different file of that name")
        gone: dict[bytes, _Entry | None] = {source: None} if edit.source is not None else {}
        if self._is_base(there, base, source):
            return {**gone, path: (mode, self.repository.clean(new, path))}
        merged = self._merged(edit, base, new, there)
        if isinstance(merged, Problem):
            return merged
        return {**gone, path: (mode, self.repository.clean(new, path, merged))}

    def _merged(self, edit: PlannedEdit, base: Side, new: Side, there: _Entry) -> bytes | Problem:
        problem = Problem(edit.path, f"it depends on content that is not in {self.where}: commit your version first")
        if not there[0].startswith("100") or not base.kind == new.kind == "file":
            return problem
        if base.sha256 or max(self.repository.size(base), self.repository.size(new)) > MAX_MERGE_BYTES:
            return problem
        mine = self.repository.smudged(there[1], self.repository.prefix + (edit.source or edit.path))
        old, theirs = self.repository.read(base), self.repository.read(new)
        if is_binary(mine) or is_binary(old) or is_binary(theirs):
            return problem
        done = merge(mine, old, theirs)
        return problem if done.conflicts else done.data


def commit_message(accepted: PatchSet, name: str | None, paths: Sequence[bytes]) -> bytes:
    """Return the message of a commit: a subject, the files, and the origin as trailers.

    Trailers are the last paragraph, one per line. Text from the sandbox is only ever the rest of such a line, or
    follows a dash in an earlier paragraph, so that it cannot be mistaken for a trailer."""
    who = name or accepted.sandbox
    count = f"{len(paths)} files" if len(paths) != 1 else "1 file"
    rest = [f"- and {len(paths) - MAX_LISTED} more"] if len(paths) > MAX_LISTED else []
    listed = [f"- {_message_line(display_path(path))}" for path in paths[:MAX_LISTED]] + rest
    return "\n".join([f"Apply {_message_line(who)}: {count}", "", *listed, "", *_trailers(accepted, name), ""]).encode()


def _trailers(accepted: PatchSet, name: str | None) -> list[str]:
    who = f"{name} ({accepted.sandbox})" if name else accepted.sandbox
    lines = [_trailer("Sandbox", who)]
    for entry in accepted.entries[-MAX_LISTED:]:
        lines.append(_trailer("Command", entry.command or f"({entry.kind})"))
        if entry.hosts:
            lines.append(_trailer("Hosts", ", ".join(entry.hosts)))
    if len(accepted.entries) > MAX_LISTED:
        lines.append(_trailer("Commands-Before", str(len(accepted.entries) - MAX_LISTED)))
    return [*lines, _trailer("Base", accepted.base), _trailer("Tip", accepted.tip), _trailer("Digest", accepted.digest)]


def _trailer(key: str, value: str) -> str:
    return f"Skerry-{key}: {_message_line(value)}".rstrip()


def _message_line(text: str) -> str:
    """Return the text as one bounded line without control characters."""
    escaped = escape(text.encode("utf-8", "backslashreplace").decode())
    return escaped if len(escaped) <= MAX_MESSAGE_LINE else f"{escaped[:MAX_MESSAGE_LINE]}…"
