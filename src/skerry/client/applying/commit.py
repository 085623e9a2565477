"""What was accepted as a commit: on the branch that is checked out, or on another one.

It is the commit before it with the accepted changes, and nothing else: what the user has not committed is not in it.
Made by git's plumbing through an index of its own: no hook runs, and nothing of the user's is touched until the ref
moves. Contents pass through the user's own filters (line ends, LFS) as `git add` would pass them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from skerry.client.applying.content import MERGE_MOST, Contents
from skerry.client.applying.directories import above_all
from skerry.client.applying.git import GitFailed, git
from skerry.client.applying.merge import is_binary, merge
from skerry.client.applying.patch import mode_of
from skerry.client.applying.place import Place
from skerry.client.applying.plan import Side, Trouble, Wish, refuse
from skerry.client.applying.record import Committed, Record
from skerry.client.applying.writing import Landing
from skerry.errors import Conflict, InvalidRequest

_UNDER_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")
_FILTERS = ("text", "crlf", "eol", "filter", "ident", "working-tree-encoding")
_UNFILTERED = (b"unspecified", b"unset")
_Entry = tuple[str, str]  # mode, object


class Repository:
    def __init__(self, place: Place, contents: Contents) -> None:
        if place.git is None or place.top is None:
            raise InvalidRequest(f"{place.root} is in no git repository", hint="leave --commit and --branch out")
        self._place, self._top, self._git = place, place.top, place.git
        self._contents = contents
        self._objects: dict[str, str] = {}  # git's here, by git's everywhere: another one where that is SHA-256
        self._used: set[str] = set()
        self._plain: set[bytes] = set()

    @cached_property
    def _zeros(self) -> str:
        return "0" * (64 if self._said("rev-parse", "--show-object-format") == "sha256" else 40)

    def commit(self, wishes: Sequence[Wish], message: bytes, branch: str | None) -> Committed | None:
        """A commit that no ref leads to yet; None if all of it is there already."""
        ref, old, parent = self._on_branch(branch) if branch is not None else self._on_head()
        with tempfile.TemporaryDirectory(prefix="skerry-commit-") as name:
            env = {"GIT_INDEX_FILE": f"{name}/index"}
            git(self._top, "read-tree", parent or "--empty", env=env)
            there = self._entries(env)
            self.prepare(wishes)
            entries = _Merging(self, there, branch or "HEAD").entries(wishes)
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
        return Committed(ref=ref, old=old, new=new, branch=branch, entries=kept if branch is None else ())

    def landing(self) -> Landing:
        return Landing(self._land, self._landed, self._finish)

    def _land(self, record: Record) -> None:
        if (one := record.commit) is not None:
            words = ["update-ref", "-m", f"skerry: apply of {record.sandbox}", one.ref, one.new]
            try:
                git(self._top, *words, one.old or self._zeros)
            except GitFailed as error:
                raise Conflict(f"{one.ref} moved in this very moment; nothing was changed: {error.message}") from error

    def _landed(self, record: Record) -> bool:
        if (one := record.commit) is None:
            return False
        try:
            code, _ = git(self._top, "merge-base", "--is-ancestor", one.new, one.ref, expect=(0, 1))
        except GitFailed:  # there is no such ref
            return False
        return code == 0

    def _finish(self, record: Record) -> None:
        """The index has what the commit has, for paths that it has as the commit before had them."""
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
                    f"there is a {name} in {self._git}: something of git's own is under way", hint="end it first"
                )
        code, said = git(self._top, "symbolic-ref", "-q", "HEAD", expect=(0, 1))
        ref = said.decode().strip() if code == 0 else "HEAD"
        old = self._commit_of("HEAD")
        return ref, old, old

    def _on_branch(self, branch: str) -> tuple[str, str, str]:
        ref = f"refs/heads/{branch}"
        if branch.startswith("-") or git(self._top, "check-ref-format", ref, expect=(0, 1))[0]:
            raise InvalidRequest(f"branch: {branch!r} can't be one", hint="like review/fix-login")
        _, listed = git(self._top, "worktree", "list", "--porcelain")
        if f"branch {ref}".encode() in listed.split(b"\n"):
            raise Conflict(f"branch {branch} is checked out", hint="use --commit there, or name another one")
        old = self._commit_of(ref)
        parent = old or self._commit_of("HEAD")
        if not parent:
            raise Conflict("there is no commit yet that a branch could begin at", hint="use --commit, or commit first")
        return ref, old, parent

    def _commit_of(self, ref: str) -> str:
        code, said = git(self._top, "rev-parse", "-q", "--verify", f"{ref}^{{commit}}", expect=(0, 1))
        return said.decode().strip() if code == 0 else ""

    def _said(self, *words: str | bytes, stdin: bytes | Path = b"", env: dict[str, str] = {}) -> str:  # noqa: B006
        try:
            return git(self._top, *words, stdin=stdin, env=env)[1].decode().strip()
        except GitFailed as error:
            raise InvalidRequest(error.message) from error  # as: tell me who you are

    def _entries(self, env: dict[str, str]) -> dict[bytes, _Entry | None]:
        """By path in the repository; None: in conflict, or meant to be added."""
        found: dict[bytes, _Entry | None] = {}
        for line in git(self._top, "ls-files", "-s", "-z", env=env)[1].split(b"\0")[:-1]:
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
        git(self._top, "update-index", "-z", "--index-info", stdin=b"\0".join([*gone, *there, b""]), env=env)

    def _refuse_staged(self, there: dict[bytes, _Entry | None], entries: dict[bytes, _Entry | None]) -> None:
        now = self._entries({})
        staged = [path for path in entries if now.get(path) != there.get(path) or (path in now) != (path in there)]
        refuse([Trouble(path, "it has changes in your index that are not committed") for path in staged], "commit")

    def prepare(self, wishes: Sequence[Wish]) -> None:
        """Contents that no filter changes become objects all at once: mostly all of them."""
        sides = [(self.prefix + path, side) for wish in wishes for path, side in _sides(wish)]
        filtered = self._filtered({path for path, side in sides if side.kind == "file"})
        if "\n" in str(self._contents.directory):  # git reads their names line by line
            return
        whole = sorted({side.oid for path, side in sides if path not in filtered and not side.sha256})
        self._objects = dict(zip(whole, self._hashed(whole), strict=True))
        self._plain = {path for path, side in sides if path not in filtered or side.kind == "link"}

    def _hashed(self, oids: Sequence[str], *how: str) -> list[str]:
        listed = b"".join(bytes(self._contents.path(oid).absolute()) + b"\n" for oid in oids)
        return self._said("hash-object", *how, "--no-filters", "--stdin-paths", stdin=listed).split() if oids else []

    def _filtered(self, paths: set[bytes]) -> set[bytes]:
        code, said = git(self._top, "config", "--get", "core.autocrlf", expect=(0, 1))
        if code == 0 and said.strip().lower() not in (b"false", b"0", b"no", b"off"):
            return paths
        listed = b"".join(path + b"\0" for path in sorted(paths))
        told = git(self._top, "check-attr", "-z", "--stdin", *_FILTERS, stdin=listed)[1].split(b"\0")
        return {path for path, value in zip(told[::3], told[2::3], strict=False) if value not in _UNFILTERED}

    def clean(self, side: Side, path: bytes, data: bytes | None = None, *, write: bool = True) -> str:
        """The object that git has for a content of the working tree."""
        if data is None and path in self._plain and side.oid in self._objects:
            if write:
                self._used.add(side.oid)
            return self._objects[side.oid]
        how = [b"--no-filters"] if side.kind == "link" else [b"--path=" + path]
        source: bytes | Path = self._contents.path(side.oid) if data is None else data
        return self._said("hash-object", *(["-w"] if write else []), "--stdin", *how, stdin=source)

    def smudged(self, oid: str, path: bytes) -> bytes:
        return git(self._top, "cat-file", "--filters", b"--path=" + path, oid)[1]

    def read(self, side: Side) -> bytes:
        return self._contents.read(side.oid)

    def size(self, side: Side) -> int:
        return self._contents.size(side.oid)

    @property
    def prefix(self) -> bytes:
        return self._place.prefix


def _sides(wish: Wish) -> Iterator[tuple[bytes, Side]]:
    if wish.base is not None:
        yield wish.source or wish.path, wish.base
    if wish.new is not None:
        yield wish.path, wish.new


@dataclass
class _Merging:
    """Each wish, done to what a commit has."""

    repository: Repository
    there: dict[bytes, _Entry | None]
    where: str

    def entries(self, wishes: Sequence[Wish]) -> dict[bytes, _Entry | None]:
        made: dict[bytes, _Entry | None] = {}
        troubles = []
        for wish in wishes:
            found = self._one(wish)
            if isinstance(found, Trouble):
                troubles.append(found)
            else:
                made.update(found)
        refuse([*troubles, *self._blocked(made)], "commit")
        return {path: entry for path, entry in made.items() if entry != self.there.get(path) or path not in self.there}

    def _blocked(self, made: dict[bytes, _Entry | None]) -> Iterator[Trouble]:
        """git would take away what stands where a directory is needed, or a directory where a file is to be: as a
        submodule."""
        left = (self.there.keys() | made.keys()) - {path for path, entry in made.items() if entry is None}
        directories = {above for path in left for above in above_all(path)}
        for path, entry in made.items():
            if entry is not None and (path in directories or any(above in left for above in above_all(path))):
                yield Trouble(path, f"in {self.where}, a file or submodule stands where a directory is needed")

    def _one(self, wish: Wish) -> dict[bytes, _Entry | None] | Trouble:
        path = self.repository.prefix + wish.path
        source = self.repository.prefix + (wish.source or wish.path)
        there, clean = self.there.get(source), self.repository.clean
        if wish.base is None:
            if wish.new is None:
                return {}
            new = (mode_of(wish.new).decode(), clean(wish.new, path))
            return {path: new} if there in (None, new) else Trouble(wish.path, f"{self.where} has another one")
        if there is None:
            if wish.new is None:
                return {}
            return Trouble(wish.path, f"{self.where} does not have it: commit yours first")
        if wish.new is None:
            if not self._is_base(there, wish.base, source):
                return Trouble(wish.path, f"it is to be deleted, and is another one in {self.where}")
            return {path: None}
        return self._changed(wish, wish.base, wish.new, there)

    def _is_base(self, there: _Entry, base: Side, source: bytes) -> bool:
        if base.sha256 is None:
            return there[1] == self.repository.clean(base, source, write=False)
        if not there[0].startswith("100"):
            return False
        return hashlib.sha256(self.repository.smudged(there[1], source)).hexdigest() == base.sha256

    def _changed(self, wish: Wish, base: Side, new: Side, there: _Entry) -> dict[bytes, _Entry | None] | Trouble:
        path = self.repository.prefix + wish.path
        source = self.repository.prefix + (wish.source or wish.path)
        mode = mode_of(new).decode() if mode_of(new) != mode_of(base) else there[0]
        if wish.source is not None and self.there.get(path) is not None:
            return Trouble(wish.path, f"{self.where} has another one of that name")
        gone: dict[bytes, _Entry | None] = {source: None} if wish.source is not None else {}
        if self._is_base(there, base, source):
            return {**gone, path: (mode, self.repository.clean(new, path))}
        merged = self._merged(wish, base, new, there)
        if isinstance(merged, Trouble):
            return merged
        return {**gone, path: (mode, self.repository.clean(new, path, merged))}

    def _merged(self, wish: Wish, base: Side, new: Side, there: _Entry) -> bytes | Trouble:
        trouble = Trouble(wish.path, f"it stands on what is not in {self.where}: commit yours first")
        if not there[0].startswith("100") or not base.kind == new.kind == "file":
            return trouble
        if base.sha256 or max(self.repository.size(base), self.repository.size(new)) > MERGE_MOST:
            return trouble
        mine = self.repository.smudged(there[1], self.repository.prefix + (wish.source or wish.path))
        old, theirs = self.repository.read(base), self.repository.read(new)
        if is_binary(mine) or is_binary(old) or is_binary(theirs):
            return trouble
        done = merge(mine, old, theirs)
        return trouble if done.conflicts else done.data
