"""What is asked of a ledger: objects, differences, patches, history. All of it only reads."""

from __future__ import annotations

import hashlib
import heapq
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.review import facts
from skerry.review.deltas import Delta, parsed
from skerry.review.git import DIFF, Git, Running
from skerry.review.trees import Entry, serialised
from skerry.types.review import LedgerEntry

SCRATCH: Final = "reading-"
_RENAMES: Final = ("-M50%", "-l400", "--no-rename-empty")
_PATHS_MOST: Final = 500  # in one call
USERS: Final = ("applied", "unapplied")
_SECTION: Final = b"\ndiff --git a/"
_STAT: Final = re.compile(rb" (\d+) files? changed(?:, (\d+) insertions?\(\+\))?(?:, (\d+) deletions?\(-\))?")


class Trees:
    """Old trees, read one by one."""

    def __init__(self, git: Running) -> None:
        self._git = git

    def __call__(self, oid: bytes) -> bytes:
        return self._object(oid.hex(), b"tree")

    def tree_of(self, commit: str) -> bytes:
        first, _, _ = self._object(commit, b"commit").partition(b"\n")
        return bytes.fromhex(first.decode().removeprefix("tree "))

    def _object(self, oid: str, kind: bytes) -> bytes:
        self._git.stdin.write(f"{oid}\n".encode())
        self._git.stdin.flush()
        return _answer(self._git, oid, kind)


class Reader:
    def __init__(self, git: Git) -> None:
        self._git = git

    @contextmanager
    def trees(self) -> Iterator[Trees]:
        with self._git.started("cat-file", "--batch", seconds=3600) as git:
            yield Trees(git)

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        return {oid: size for oid, _, size in self._checked(oids)}

    def kinds(self, oids: Iterable[str]) -> dict[str, str]:
        return {oid: kind for oid, kind, _ in self._checked(oids)}

    def _checked(self, oids: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        if not asked:
            return
        for line in self._git.run("cat-file", "--batch-check", "--buffer", stdin=asked).decode().splitlines():
            words = line.split(" ")
            if len(words) == 3:
                yield words[0], words[1], int(words[2])

    def blob(self, oid: str) -> Iterator[bytes]:
        if self.kinds([oid]).get(oid) != "blob":
            raise NotFound(f"the ledger has no file content {oid}")
        return self._git.stream("cat-file", "blob", oid)

    def blobs(self, oids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        if oids:
            asked = "".join(f"{oid}\n" for oid in oids).encode()
            with self._git.started("cat-file", "--batch", "--buffer", stdin=asked, seconds=3600) as git:
                for oid in oids:
                    yield oid, _answer(git, oid, b"blob")

    def entry_of(self, commit: str, path: bytes) -> tuple[str, str] | None:
        for found, mode, oid in self._listed(commit, "--", path):
            if found == path and mode != "040000":
                return mode, oid
        return None

    def files(self, commit: str) -> Iterator[tuple[bytes, str, str]]:
        return self._listed("-r", commit)

    def _listed(self, *arguments: str | bytes) -> Iterator[tuple[bytes, str, str]]:
        rest = b""
        for piece in self._git.stream("ls-tree", "-z", *arguments):
            *whole, rest = (rest + piece).split(b"\0")
            for record in whole:
                head, _, path = record.partition(b"\t")
                mode, _, oid = head.decode().split(" ")
                yield path, mode, oid

    def history(
        self, ends: Sequence[str], *, paths: Sequence[bytes] = (), limit: int, stat: bool = False
    ) -> list[LedgerEntry]:
        if len(paths) > _PATHS_MOST:
            raise InvalidRequest(f"paths: more than {_PATHS_MOST}")
        out = self._git.run(
            "log", "--date-order", f"-n{limit:d}", "--format=%x00%H%x00%B%x00",
            *(("--shortstat", *_RENAMES, *DIFF) if stat else ()), *ends, "--", *paths,
        )  # fmt: skip
        fields = out.split(b"\0")[1:]
        found = [_entry(*fields[at : at + 3]) for at in range(len(fields) - 3, -1, -3)]
        users = [one for one in found if one.kind in USERS]
        rest = [one for one in found if one.kind not in USERS]
        return list(heapq.merge(rest, users, key=lambda one: one.at))  # git would know whole seconds only

    def deltas(self, old: str, new: str, paths: Sequence[bytes]) -> list[Delta]:
        found = []
        for some in _portions(paths):
            out = self._git.run("diff-tree", "-r", "-z", "--raw", "--numstat", *_RENAMES, *DIFF, old, new, "--", *some)
            found += parsed(out)
        return sorted(found, key=lambda one: one.path) if len(paths) > _PATHS_MOST else found

    def patch(
        self, old: str | None, new: str, context: int, paths: Sequence[bytes], most: int | None
    ) -> Iterator[bytes]:
        """None: from the commit before."""
        ends = (new,) if old is None else (old, new)
        for some in _portions(paths):
            how = ("-r", "-p", f"-U{context:d}", "--full-index", "--no-commit-id", *_RENAMES, *DIFF)
            for piece in self._git.stream("diff-tree", *how, *ends, "--", *some, most=most):
                most = None if most is None else most - len(piece)
                yield piece
            if most == 0:
                return

    def texts(self, changed: Sequence[Delta], context: int) -> Iterator[tuple[Delta, bytes]]:
        """By way of two trees that have these blobs under numbers for names: so no path, mode or likeness matters."""
        differ = [(b"%09d" % at, one) for at, one in enumerate(changed) if one.old_oid != one.new_oid]
        old = {name: (b"100644", bytes.fromhex(one.old_oid)) for name, one in differ if one.old_oid}
        new = {name: (b"100644", bytes.fromhex(one.new_oid)) for name, one in differ if one.new_oid}
        at = 0
        with self._aside(old, new) as (git, first, second):
            how = ("-r", "-p", f"-U{context:d}", "--no-renames", *DIFF)
            for number, text in _sections(git.stream("diff-tree", *how, first, second)):
                yield from ((one, b"") for one in changed[at:number])
                yield changed[number], text
                at = number + 1
        yield from ((one, b"") for one in changed[at:])

    @contextmanager
    def _aside(self, *made: dict[bytes, Entry]) -> Iterator[tuple[Git, str, str]]:
        place = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self._git.directory))
        try:
            (place / "info").mkdir()
            (place / "info" / "alternates").write_text("../objects\n")
            first, second = (_loose(place, serialised(entries)) for entries in made)
            yield Git(self._git.directory, objects=place), first, second
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _answer(git: Running, oid: str, kind: bytes) -> bytes:
    head = git.stdout.readline().split()
    if len(head) != 3 or head[1] != kind:
        raise NotFound(f"the ledger has no {kind.decode()} {oid}")
    size = int(head[2])
    data = git.stdout.read(size + 1)
    if len(data) != size + 1:
        git.finish()
        raise NotFound(f"the ledger's {kind.decode()} {oid} is cut short")
    return data[:-1]


def _entry(oid: bytes, text: bytes, rest: bytes) -> LedgerEntry:
    found = facts.entry(oid.decode(), text.decode("utf-8", "replace"))
    counts = _STAT.search(rest)
    if counts is None:
        return found
    files, added, removed = (int(number or 0) for number in counts.groups())
    return msgspec.structs.replace(found, files=files, added=added, removed=removed)


def _portions(paths: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    if not paths:
        yield ()
    for at in range(0, len(paths), _PATHS_MOST):
        yield paths[at : at + _PATHS_MOST]


def _loose(place: Path, data: bytes) -> str:
    whole = b"tree %d\0" % len(data) + data
    oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    directory = place / oid[:2]
    directory.mkdir(exist_ok=True)
    (directory / oid[2:]).write_bytes(zlib.compress(whole, 1))
    return oid


def _sections(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """A patch by file. No line of a file's content begins as a heading does: they all have a sign in front."""
    held = bytearray(b"\n")
    for piece in pieces:
        searched = max(0, len(held) - len(_SECTION))
        held += piece
        begun = 0
        while (end := held.find(_SECTION, max(searched, begun + 1))) >= 0:
            yield _section(bytes(held[begun:end]))
            begun = end
        del held[:begun]
    if len(held) > 1:
        yield _section(bytes(held))


def _section(text: bytes) -> tuple[int, bytes]:
    number = int(text[len(_SECTION) :][:9])
    start = text.find(b"\n@@ ")
    return number, b"" if start < 0 else text[start + 1 :] + (b"" if text.endswith(b"\n") else b"\n")
