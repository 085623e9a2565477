"""The ledger: the git history of one sandbox's workspace, in a bare repository of its own.

Blocking: to be called in threads. One writer at a time, which a lock on the repository sees to, also between two
servers; readers come at any time. A change is complete or absent: objects are made aside, moved over as a pack, and
the ref is the last to move.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.review import agent, care, differing, facts, packs, reading, trees
from skerry.review.agent import Bounds, Taken
from skerry.review.deltas import Delta
from skerry.review.facts import Facts
from skerry.review.git import Git, GitFailed
from skerry.review.names import refused
from skerry.types.review import OBJECT_ID, LedgerEntry

MAIN: Final = "refs/heads/main"
BASE: Final = "refs/skerry/base"
MODES: Final = ("100644", "100755", "120000")
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tlogAllRefUpdates = false\n"
_ATTRIBUTES: Final = (
    "* !diff !text !eol !crlf !filter !ident !merge !encoding !working-tree-encoding !delta !whitespace "
    "!export-subst !export-ignore !conflict-marker-size\n"
)
_REF: Final = re.compile(r"refs/[A-Za-z0-9_][A-Za-z0-9_./+=@#,%-]*")
_WHO: Final = "Skerry <skerry@localhost>"
_PATIENCE: Final = 60.0
_STORED: Final = 64 << 20  # of the first commit, for which somebody waits
BOUNDS: Final = Bounds()


@dataclass(frozen=True)
class Put:
    """A file or link as it is now. `mode`: 100644, 100755 or 120000, whose data is the link's target. `data`: whole, or
    in pieces that make `size` bytes. With `oid` it is a blob that the ledger has already."""

    path: bytes
    mode: str
    data: bytes | Iterable[bytes] = b""
    size: int | None = None
    oid: str | None = None


@dataclass(frozen=True)
class Drop:
    """A path that is gone, with all below it."""

    path: bytes


class Ledger:
    """`place` is the repository itself, like state/ledgers/sb-…/ledger.git; what lies beside it is the caller's."""

    def __init__(self, place: Path) -> None:
        self.place = place.absolute()
        self.git = Git(self.place)
        self._read = reading.Reader(self.git)
        self._differ = differing.Differ(self.git, self._read)
        self._tending = care.Tending(self.place, self.git)

    @classmethod
    def create(cls, place: Path) -> Ledger:
        """Empty; its first commit is the base too."""
        place = place.absolute()
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _made(place) as new:
            for directory in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/skerry", "info"):
                (new / directory).mkdir(mode=0o700)
            (new / "config").write_text(_CONFIG)
            (new / "info" / "attributes").write_text(_ATTRIBUTES)
            packs.replace(new / "HEAD", f"ref: {MAIN}\n")
        return cls(place)

    @classmethod
    def open(cls, place: Path) -> Ledger:
        """Clears what a killed writer left."""
        ledger = cls(place)
        if not (ledger.place / "HEAD").is_file():
            raise NotFound(f"there is no ledger at {place}")
        with ledger._locked():
            care.sweep(ledger.place)
            for name, text in (("config", _CONFIG), ("info/attributes", _ATTRIBUTES)):
                if (ledger.place / name).read_text() != text:
                    packs.replace(ledger.place / name, text)
            if ledger.rev(MAIN) is None and ledger.rev(BASE) is not None:
                os.unlink(ledger.place / BASE)  # died between the two refs of the first commit
        named = [oid for ref in (MAIN, BASE) if (oid := ledger.rev(ref)) is not None]
        if any(ledger._read.kinds(named).get(oid) != "commit" for oid in named):
            raise SkerryError(f"the ledger at {place} is damaged: a ref of it names no commit")
        return ledger

    def copy_to(self, place: Path) -> Ledger:
        """One of its own for a fork. No file of a ledger is ever written to again: it may have the same ones, under
        other names."""
        place = place.absolute()
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(), care.locked(self.place), _made(place) as new:
            shutil.copytree(self.place, new, copy_function=_linked, ignore=_not_copied, dirs_exist_ok=True)
            packs.sync(new)
        return Ledger(place)

    def remove(self) -> None:
        """Out of the way first: whoever still works on it finds nothing there."""
        gone = self.place.with_name(f".{self.place.name}.gone-{time.monotonic_ns()}")
        os.rename(self.place, gone)
        shutil.rmtree(gone)

    def size(self) -> int:
        """Bytes on disk."""
        return care.size(self.place)

    @property
    def tip(self) -> str:
        return self._known(MAIN)

    @property
    def base(self) -> str:
        return self._known(BASE)

    def rev(self, ref: str) -> str | None:
        """The commit that a ref names, by its whole name."""
        if not _REF.fullmatch(ref) or ".." in ref:
            raise InvalidRequest(f"{ref[:80]!r} is no ref of a ledger")
        try:
            text = (self.place / ref).read_text().strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        if not OBJECT_ID.fullmatch(text):
            raise SkerryError(f"the ledger at {self.place} is damaged: {ref} names no commit")
        return text

    def commit(self, said: Facts, changes: Iterable[Put | Drop], parent: str | None = None) -> str | None:
        """The new tip; None if nothing differs. The first commit is the base too, whatever is in it. All drops count
        before all puts. `parent`: what the tip must be still."""
        return self._commit(MAIN, said, changes, parent)

    def move_base(self, changes: dict[bytes, tuple[str, str] | None], said: Facts) -> str:
        """The base with these paths as (mode, blob), or gone; there is a commit also if nothing differs."""
        listed = [
            Drop(path) if new is None else Put(path, new[0], oid=new[1]) for path, new in changes.items()
        ]  # fmt: skip
        made = self._commit(BASE, said, listed, None, always=True)
        assert made is not None  # noqa: S101 - always
        return made

    def write(self, data: bytes) -> str:
        """A blob by itself, which no commit holds yet."""
        with _room_told(), self._locked() as lock:
            oid = self.git.run("hash-object", "-w", "--stdin", "--no-filters", stdin=data, held=(lock,))
        return oid.decode().strip()

    def facts(self, commit: str) -> LedgerEntry:
        return self._differ.history([_oid(commit)], limit=1, stat=True)[0]

    def history(
        self, since: str | None = None, paths: Sequence[bytes] = (), limit: int = 1000, *, stat: bool = True
    ) -> list[LedgerEntry]:
        """Oldest first, what was applied among the rest; of more than `limit` the newest. `stat`: with counts."""
        ends = [ref for ref in (MAIN, BASE) if self.rev(ref) is not None]
        if not ends:
            return []
        if since is not None and self._read.kinds([_oid(since)]).get(since) != "commit":
            raise NotFound(f"the ledger has no commit {since}")
        without = [] if since is None else [f"^{since}"]
        found = self._differ.history([*ends, *without], paths=_below(paths), limit=limit, stat=stat)
        if since is not None:
            after = self._differ.history([since], limit=1)[0].at
            found = [one for one in found if one.kind not in differing.USERS or one.at > after]
        return found

    def deltas(self, old: str, new: str, paths: Sequence[bytes] = ()) -> list[Delta]:
        """In order of their paths."""
        return self._differ.deltas(_oid(old), _oid(new), _below(paths))

    def patch(
        self, old: str, new: str, *, context: int = 3, paths: Sequence[bytes] = (), most: int | None = None
    ) -> Iterator[bytes]:
        """As git prints it, in pieces; cut after `most` bytes."""
        return self._differ.patch(_oid(old), _oid(new), context, _below(paths), most)

    def patch_of(self, commit: str, *, paths: Sequence[bytes] = (), most: int | None = None) -> Iterator[bytes]:
        """What one commit changed."""
        return self._differ.patch(None, _oid(commit), 3, _below(paths), most)

    def changes_of(self, changed: Sequence[Delta], *, context: int = 0) -> Iterator[tuple[Delta, bytes]]:
        """The patch of each, from its first `@@` line on; nothing for a binary one, or where only modes differ. One
        call of git for all of them."""
        return self._differ.texts(changed, context)

    def blob(self, oid: str) -> Iterator[bytes]:
        return self._read.blob(_oid(oid))

    def blobs(self, oids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Several, whole, one after the other."""
        return self._read.blobs([_oid(oid) for oid in oids])

    def size_of(self, oid: str) -> int:
        sizes = self._read.sizes([_oid(oid)])
        if oid not in sizes:
            raise NotFound(f"the ledger has no object {oid}")
        return sizes[oid]

    def entry_of(self, commit: str, path: bytes) -> tuple[str, str] | None:
        """Mode and blob of one path in a commit."""
        return self._read.entry_of(_oid(commit), path)

    def files(self, commit: str) -> Iterator[tuple[bytes, str, str]]:
        """Path, mode and blob of every file of a commit."""
        return self._read.files(_oid(commit))

    def take_agent(
        self, pack: Iterable[bytes], refs: Mapping[str, str], *, shallow: Iterable[str] = (), bounds: Bounds = BOUNDS
    ) -> Taken:
        """The agent's own branches and tags, all of them, by their names inside (`refs/heads/x`), and a pack of what
        the ledger does not have yet (nothing: no bytes). `shallow`: commits whose parents did not come."""
        return agent.taken(self.place, pack, refs, shallow, bounds, self._locked)

    def agent(self) -> dict[str, str]:
        """The agent's own, by their names inside; in the ledger `refs/agent/heads/x`."""
        return agent.of(self.place)

    def pack(self, wants: Iterable[str], haves: Iterable[str] = ()) -> Iterator[bytes]:
        """A pack for somebody else's git, thin: it may build on what that one has."""
        return agent.packed(self.git, self._read, wants, haves)

    def maintain(self) -> bool:
        """Joins packs if there are many, which every commit also has done beside it. False: there was nothing to do."""
        return care.maintain(self.place, self.git)

    def _commit(
        self, ref: str, said: Facts, changes: Iterable[Put | Drop], parent: str | None, *, always: bool = False
    ) -> str | None:
        with _room_told(), self._locked() as lock, packs.scratch(self.place) as aside:
            old = self.rev(ref)
            if parent is not None and parent != old:
                raise Conflict(f"the ledger moved on: its tip is {old}, not {parent}")
            pack = packs.Pack(aside.pack, stored=_STORED if old is None else 0)
            try:
                with self._read.trees() as read:
                    was = None if old is None else read.tree_of(old)
                    drops, puts = _taken(changes, pack)
                    self._check_blobs(puts)
                    tree = trees.changed(was, drops, [(p.path, (m, o)) for p, m, o in puts], read, _writer(pack))
                if was == tree and not always:
                    return None
                new = pack.add("commit", _object(tree, old, said)).hex()
                pack.finish()
            finally:
                pack.close()
            if old is None:
                pack.write_index()
            else:
                aside.index(pack.path, held=(lock,))
            aside.keep()
            if ref == MAIN and old is None:
                packs.replace(self.place / BASE, f"{new}\n")
            packs.replace(self.place / ref, f"{new}\n")
        self._read.know({oid.hex(): put.size for put, _, oid in puts if put.oid is None and put.size is not None})
        self._tending.look()
        return new

    def _check_blobs(self, puts: list[tuple[Put, bytes, bytes]]) -> None:
        named = {put.oid for put, _, _ in puts if put.oid is not None}
        if named:
            kinds = self._read.kinds(named)
            for oid in named:
                if kinds.get(oid) != "blob":
                    raise NotFound(f"the ledger has no file content {oid}")

    def _known(self, ref: str) -> str:
        oid = self.rev(ref)
        if oid is None:
            raise NotFound(f"the ledger at {self.place} has no commit yet")
        return oid

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Whoever writes holds it, and so does the git that it started: a server that was killed may have left one."""
        with care.held(self.place / "writer.lock", _PATIENCE) as fd:
            yield fd


def _taken(changes: Iterable[Put | Drop], pack: packs.Pack) -> tuple[list[bytes], list[tuple[Put, bytes, bytes]]]:
    drops: list[bytes] = []
    puts: list[tuple[Put, bytes, bytes]] = []
    for one in changes:
        link = isinstance(one, Put) and one.mode == "120000"
        reason = refused(one.path, link=link)
        if isinstance(one, Drop):
            if reason is None:  # else it was never there
                drops.append(one.path)
            continue
        if reason is not None:
            raise InvalidRequest(f"{os.fsdecode(one.path)[:200]!r} can't be in a ledger: {reason}")
        if one.mode not in MODES:
            raise InvalidRequest(f"mode: {one.mode[:20]!r} is none of {', '.join(MODES)}")
        if one.oid is not None:
            oid = bytes.fromhex(_oid(one.oid))
        elif isinstance(one.data, bytes):
            if one.size is not None and one.size != len(one.data):
                raise InvalidRequest(f"a file of {one.size} bytes came with {len(one.data)}")
            oid = pack.add("blob", one.data)
        elif one.size is None:
            raise InvalidRequest("size: needed for data in pieces")
        else:
            oid = pack.add_pieces(one.data, one.size)
        size = len(one.data) if isinstance(one.data, bytes) else one.size
        puts.append((Put(one.path, one.mode, size=size, oid=one.oid), one.mode.encode(), oid))
    return drops, puts


def _writer(pack: packs.Pack) -> Callable[[bytes], bytes]:
    return lambda data: pack.add("tree", data)


def _object(tree: bytes, parent: str | None, said: Facts) -> bytes:
    lines = [f"tree {tree.hex()}"]
    if parent is not None:
        lines.append(f"parent {parent}")
    at = max(0, int(said.at))
    lines += [f"author {_WHO} {at} +0000", f"committer {_WHO} {at} +0000", "", ""]
    return "\n".join(lines).encode() + facts.message(said)


def _oid(text: str) -> str:
    if not OBJECT_ID.fullmatch(text):
        raise InvalidRequest(f"{text[:80]!r} is no object of a ledger")
    return text


def _below(paths: Sequence[bytes]) -> Sequence[bytes]:
    """Paths that a caller asks for: none is all, and so is the tree itself."""
    asked = [path.removeprefix(b"./").rstrip(b"/") for path in paths]
    for path in asked:
        if path not in (b"", b".") and (reason := refused(path)) is not None:
            raise InvalidRequest(f"{os.fsdecode(path)[:200]!r} is in no ledger: {reason}")
    return () if b"" in asked or b"." in asked else asked


@contextmanager
def _room_told() -> Iterator[None]:
    """A full disk is one failure, whoever meets it first."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise GitFailed("commit", f"{error.strerror}") from error
        raise


@contextmanager
def _made(place: Path) -> Iterator[Path]:
    """A directory that is there when it is whole."""
    if place.exists():
        raise Conflict(f"there is a ledger at {place} already")
    new = place.with_name(f".{place.name}.new-{os.getpid()}-{time.monotonic_ns()}")
    new.mkdir(mode=0o700)
    try:
        yield new
        os.rename(new, place)
        packs.sync(place.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, or too many names
        shutil.copy2(source, target, follow_symlinks=False)


def _not_copied(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith((packs.SCRATCH, differing.SCRATCH)) or name.endswith(".lock")]
