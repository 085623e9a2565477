"""The ledger: the git history of one sandbox's workspace, in a bare repository.

Blocking: call it in threads. A lock on the repository allows one writer at a time, also across two servers; readers
need no lock. A change is complete or absent: objects are written to a scratch repository and moved over as a pack, and
the ref moves last.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.review.ledger import agent_import, commit_message, diff, objects, packs, trees
from skerry.review.ledger.agent_import import AgentImport, ImportLimits
from skerry.review.ledger.commit_message import CommitInfo
from skerry.review.ledger.diff import Delta
from skerry.review.ledger.git import LedgerGit, LedgerGitError
from skerry.review.ledger.ref_names import refused
from skerry.types.review import OBJECT_ID, LedgerEntry, listing_of

MAIN: Final = "refs/heads/main"
BASE: Final = "refs/skerry/base"
SYNCED: Final = "refs/skerry/synced"
MODES: Final = ("100644", "100755", "120000")
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tlogAllRefUpdates = false\n"
_ATTRIBUTES: Final = (
    "* !diff !text !eol !crlf !filter !ident !merge !encoding !working-tree-encoding !delta !whitespace "
    "!export-subst !export-ignore !conflict-marker-size\n"
)
_REF: Final = re.compile(r"refs/[A-Za-z0-9_][A-Za-z0-9_./+=@#,%-]*")
_AUTHOR: Final = "Skerry <skerry@localhost>"
_LOCK_TIMEOUT_S: Final = 60.0
_MAX_UNCOMPRESSED: Final = 64 << 20  # in the first commit, which the user waits for
LIMITS: Final = ImportLimits()


@dataclass(frozen=True)
class Put:
    """A file or link with its current content. `mode`: 100644, 100755 or 120000 (`data` is the link's target). `data`:
    complete, or in pieces that add up to `size` bytes. `oid`: a blob that the ledger already has."""

    path: bytes
    mode: str
    data: bytes | Iterable[bytes] = b""
    size: int | None = None
    oid: str | None = None


@dataclass(frozen=True)
class Drop:
    """A path that is gone, with everything below it."""

    path: bytes


class Ledger:
    """`repo` is the repository itself, like state/ledgers/sb-…/ledger.git; other files beside it belong to the
    caller."""

    def __init__(self, repo: Path) -> None:
        self.path = repo.absolute()
        self.git = LedgerGit(self.path)
        self._read = objects.ObjectReader(self.git)
        self._differ = diff.Differ(self.git, self._read)
        self._listing = "", ""
        self._maintenance = packs.PackMaintenance(self.path, self.git)

    @classmethod
    def create(cls, repo: Path) -> Ledger:
        """Create an empty ledger. Its first commit is also the base."""
        repo = repo.absolute()
        repo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _new_directory(repo) as new:
            for directory in ("objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/skerry", "info"):
                (new / directory).mkdir(mode=0o700)
            (new / "config").write_text(_CONFIG)
            (new / "info" / "attributes").write_text(_ATTRIBUTES)
            packs.replace(new / "HEAD", f"ref: {MAIN}\n")
        return cls(repo)

    @classmethod
    def open(cls, repo: Path) -> Ledger:
        """Open a ledger and remove leftovers of a killed writer."""
        ledger = cls(repo)
        if not (ledger.path / "HEAD").is_file():
            raise NotFound(f"no ledger found at {repo}")
        with ledger._locked():
            packs.sweep(ledger.path)
            for name, text in (("config", _CONFIG), ("info/attributes", _ATTRIBUTES)):
                if (ledger.path / name).read_text() != text:
                    packs.replace(ledger.path / name, text)
            if ledger.rev(MAIN) is None and ledger.rev(BASE) is not None:
                os.unlink(ledger.path / BASE)  # the writer died between the two refs of the first commit
        named = [oid for ref in (MAIN, BASE) if (oid := ledger.rev(ref)) is not None]
        if any(ledger._read.kinds(named).get(oid) != "commit" for oid in named):
            raise SkerryError(f"the ledger at {repo} is damaged: one of its refs does not name a commit")
        return ledger

    def copy_to(self, repo: Path) -> Ledger:
        """Copy the ledger for a fork. Files of a ledger are never modified, so the copy hard-links them."""
        repo = repo.absolute()
        repo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(), packs.locked(self.path), _new_directory(repo) as new:
            shutil.copytree(self.path, new, copy_function=_linked, ignore=_not_copied, dirs_exist_ok=True)
            packs.sync(new)
        return Ledger(repo)

    def remove(self) -> None:
        """Remove the ledger. Rename it first, so that concurrent users find nothing."""
        gone = self.path.with_name(f".{self.path.name}.gone-{time.monotonic_ns()}")
        os.rename(self.path, gone)
        shutil.rmtree(gone)

    def size(self) -> int:
        """Return the bytes on disk."""
        return packs.disk_size(self.path)

    @property
    def tip(self) -> str:
        return self._known(MAIN)

    @property
    def base(self) -> str:
        return self._known(BASE)

    @property
    def synced(self) -> str:
        """The user's files when they were read last: the first commit, or that of the last pull."""
        found = self.rev(SYNCED)
        return found or self.git.run("rev-list", "--max-parents=0", "-n1", MAIN).decode().strip()

    def forget_synced(self) -> None:
        """Let the first commit be the user's files as read last, because the sandbox may have lost later ones."""
        with self._locked():
            (self.path / SYNCED).unlink(missing_ok=True)

    def rev(self, ref: str) -> str | None:
        """Return the commit of a ref, given by its full name."""
        if not _REF.fullmatch(ref) or ".." in ref:
            raise InvalidRequest(f"{ref[:80]!r} is not a ledger ref")
        try:
            text = (self.path / ref).read_text().strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        if not OBJECT_ID.fullmatch(text):
            raise SkerryError(f"the ledger at {self.path} is damaged: {ref} does not name a commit")
        return text

    def commit(self, info: CommitInfo, changes: Iterable[Put | Drop], parent: str | None = None) -> str | None:
        """Commit changes and return the new tip; None if nothing differs. The first commit is also the base, even if it
        is empty. All drops apply before all puts. `parent`: the expected current tip."""
        return self._commit(MAIN, info, changes, parent)

    def move_base(self, changes: dict[bytes, tuple[str, str] | None], info: CommitInfo) -> str:
        """Move the base: set these paths to (mode, blob), or remove them. Commit even if nothing differs."""
        listed = [
            Drop(path) if new is None else Put(path, new[0], oid=new[1]) for path, new in changes.items()
        ]  # fmt: skip
        return self.move(BASE, listed, info)

    def move(self, ref: str, changes: Iterable[Put | Drop], info: CommitInfo) -> str:
        """Move the base, or the user's files as read last. Commit even if nothing differs."""
        if ref == SYNCED and self.rev(SYNCED) is None:
            synced = self.synced
            with self._locked():
                packs.replace(self.path / SYNCED, f"{synced}\n")
        made = self._commit(ref, info, changes, None, always=True)
        assert made is not None  # noqa: S101 - always
        return made

    def write(self, data: bytes) -> str:
        """Write a blob that no commit holds yet."""
        with _disk_full_as_git_error(), self._locked() as lock:
            oid = self.git.run("hash-object", "-w", "--stdin", "--no-filters", stdin=data, held=(lock,))
        return oid.decode().strip()

    def entry(self, commit: str) -> LedgerEntry:
        return self._differ.history([_oid(commit)], limit=1, stat=True)[0]

    def history(
        self, since: str | None = None, paths: Sequence[bytes] = (), limit: int = 1000, *, stat: bool = True
    ) -> list[LedgerEntry]:
        """Return entries, oldest first, including applies and undos; if more than `limit`, the newest ones. `stat`:
        with counts."""
        ends = [ref for ref in (MAIN, BASE) if self.rev(ref) is not None]
        if not ends:
            return []
        if since is not None and self._read.kinds([_oid(since)]).get(since) != "commit":
            raise NotFound(f"the ledger has no commit {since}")
        without = [] if since is None else [f"^{since}"]
        found = self._differ.history([*ends, *without], paths=_below(paths), limit=limit, stat=stat)
        if since is not None:
            after = self._differ.history([since], limit=1)[0].at
            found = [one for one in found if one.kind not in diff.USER_KINDS or one.at > after]
        return found

    def deltas(self, old: str, new: str, paths: Sequence[bytes] = ()) -> list[Delta]:
        """Return the differences in path order."""
        return self._differ.deltas(_oid(old), _oid(new), _below(paths))

    def deltas_of(self, commit: str) -> list[Delta]:
        """Return the changes of one commit in path order."""
        return self._differ.deltas_of(_oid(commit))

    def patch(
        self, old: str, new: str, *, context: int = 3, paths: Sequence[bytes] = (), max_bytes: int | None = None
    ) -> Iterator[bytes]:
        """Stream the patch as git prints it; cut it after `max_bytes`."""
        return self._differ.patch(_oid(old), _oid(new), context, _below(paths), max_bytes)

    def patch_of(self, commit: str, *, paths: Sequence[bytes] = (), max_bytes: int | None = None) -> Iterator[bytes]:
        """Stream the patch of one commit."""
        return self._differ.patch(None, _oid(commit), 3, _below(paths), max_bytes)

    def changes_of(self, changed: Sequence[Delta], *, context: int = 0) -> Iterator[tuple[Delta, bytes]]:
        """Yield the patch of each delta from its first `@@` line; empty for binary files and pure mode changes. Needs
        one git call for all of them."""
        return self._differ.texts(changed, context)

    def blob(self, oid: str) -> Iterator[bytes]:
        return self._read.blob(_oid(oid))

    def blobs(self, oids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the complete contents of several blobs."""
        return self._read.blobs([_oid(oid) for oid in oids])

    def size_of(self, oid: str) -> int:
        sizes = self._read.sizes([_oid(oid)])
        if oid not in sizes:
            raise NotFound(f"the ledger has no object {oid}")
        return sizes[oid]

    def entry_of(self, commit: str, path: bytes) -> tuple[str, str] | None:
        """Return mode and blob of one path in a commit."""
        return self._read.entry_of(_oid(commit), path)

    def files(self, commit: str) -> Iterator[tuple[bytes, str, str]]:
        """Yield path, mode and blob of every file of a commit."""
        return self._read.files(_oid(commit))

    def synced_listing(self) -> str:
        """Return the `listing_of` the files of `synced`. It is computed once for each commit."""
        commit = self.synced
        if self._listing[0] != commit:
            self._listing = commit, listing_of(path for path, _, _ in self.files(commit))
        return self._listing[1]

    def import_agent(
        self,
        pack: Iterable[bytes],
        refs: Mapping[str, str],
        *,
        shallow: Iterable[str] = (),
        limits: ImportLimits = LIMITS,
    ) -> AgentImport:
        """Import all branches and tags of the agent by their names in the sandbox (`refs/heads/x`), with a pack of the
        objects that the ledger lacks (empty: no bytes). `shallow`: commits that came without their parents."""
        return agent_import.import_pack(self.path, pack, refs, shallow, limits, self._locked)

    def agent_refs(self) -> dict[str, str]:
        """Return the agent's refs by their names in the sandbox; in the ledger they are `refs/agent/heads/x`."""
        return agent_import.agent_refs(self.path)

    def pack(self, wants: Iterable[str], haves: Iterable[str] = ()) -> Iterator[bytes]:
        """Stream a thin pack for another git: it may build on objects that the other side has."""
        return agent_import.stream_pack(self.git, self._read, wants, haves)

    def maintain(self) -> bool:
        """Join packs if there are many; every commit also starts this in the background. Return False if there was
        nothing to do."""
        return packs.maintain(self.path, self.git)

    def _commit(
        self, ref: str, info: CommitInfo, changes: Iterable[Put | Drop], parent: str | None, *, always: bool = False
    ) -> str | None:
        with _disk_full_as_git_error(), self._locked() as lock, packs.scratch(self.path) as staging:
            old = self.rev(ref)
            if parent is not None and parent != old:
                raise Conflict(f"the ledger has changed: its tip is {old}, not {parent}")
            pack = packs.Pack(staging.pack, stored=_MAX_UNCOMPRESSED if old is None else 0)
            try:
                with self._read.trees() as read:
                    was = None if old is None else read.tree_of(old)
                    drops, puts = _added_objects(changes, pack)
                    self.check_blobs({put.oid for put, _, _ in puts if put.oid is not None})
                    tree = trees.rewrite_tree(was, drops, [(p.path, (m, o)) for p, m, o in puts], read, _writer(pack))
                if was == tree and not always:
                    return None
                new = pack.add("commit", _object(tree, old, info)).hex()
                pack.finish()
            finally:
                pack.close()
            if old is None:
                pack.write_index()
            else:
                staging.index(pack.path, held=(lock,))
            staging.keep()
            if ref == MAIN and old is None:
                packs.replace(self.path / BASE, f"{new}\n")
            packs.replace(self.path / ref, f"{new}\n")
        self._read.know({oid.hex(): put.size for put, _, oid in puts if put.oid is None and put.size is not None})
        self._maintenance.after_commit()
        return new

    def check_blobs(self, named: Collection[str]) -> None:
        """Raise NotFound unless the ledger has these blobs."""
        if named:
            kinds = self._read.kinds(named)
            for oid in named:
                if kinds.get(oid) != "blob":
                    raise NotFound(f"the ledger has no blob {oid}")

    def _known(self, ref: str) -> str:
        oid = self.rev(ref)
        if oid is None:
            raise NotFound(f"the ledger at {self.path} has no commit yet")
        return oid

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the writer's lock. A git started by the writer shares it, because a killed server may leave one
        running."""
        with packs.held(self.path / "writer.lock", _LOCK_TIMEOUT_S) as fd:
            yield fd


def _added_objects(
    changes: Iterable[Put | Drop], pack: packs.Pack
) -> tuple[list[bytes], list[tuple[Put, bytes, bytes]]]:
    drops: list[bytes] = []
    puts: list[tuple[Put, bytes, bytes]] = []
    for one in changes:
        link = isinstance(one, Put) and one.mode == "120000"
        reason = refused(one.path, link=link)
        if isinstance(one, Drop):
            if reason is None:  # otherwise it was never in the ledger
                drops.append(one.path)
            continue
        if reason is not None:
            raise InvalidRequest(f"{os.fsdecode(one.path)[:200]!r} cannot be stored in a ledger: {reason}")
        if one.mode not in MODES:
            raise InvalidRequest(f"mode: {one.mode[:20]!r} is not one of {', '.join(MODES)}")
        if one.oid is not None:
            oid = bytes.fromhex(_oid(one.oid))
        elif isinstance(one.data, bytes):
            if one.size is not None and one.size != len(one.data):
                raise InvalidRequest(f"expected {one.size} bytes of data, got {len(one.data)}")
            oid = pack.add("blob", one.data)
        elif one.size is None:
            raise InvalidRequest("size: required for data in pieces")
        else:
            oid = pack.add_pieces(one.data, one.size)
        size = len(one.data) if isinstance(one.data, bytes) else one.size
        puts.append((Put(one.path, one.mode, size=size, oid=one.oid), one.mode.encode(), oid))
    return drops, puts


def _writer(pack: packs.Pack) -> Callable[[bytes], bytes]:
    return lambda data: pack.add("tree", data)


def _object(tree: bytes, parent: str | None, info: CommitInfo) -> bytes:
    lines = [f"tree {tree.hex()}"]
    if parent is not None:
        lines.append(f"parent {parent}")
    at = max(0, int(info.at))
    lines += [f"author {_AUTHOR} {at} +0000", f"committer {_AUTHOR} {at} +0000", "", ""]
    return "\n".join(lines).encode() + commit_message.message(info)


def _oid(text: str) -> str:
    if not OBJECT_ID.fullmatch(text):
        raise InvalidRequest(f"{text[:80]!r} is not an object ID")
    return text


def _below(paths: Sequence[bytes]) -> Sequence[bytes]:
    """Normalize the requested paths. None, or the tree itself, means all."""
    asked = [path.removeprefix(b"./").rstrip(b"/") for path in paths]
    for path in asked:
        if path not in (b"", b".") and (reason := refused(path)) is not None:
            raise InvalidRequest(f"{os.fsdecode(path)[:200]!r} cannot be in a ledger: {reason}")
    return () if b"" in asked or b"." in asked else asked


@contextmanager
def _disk_full_as_git_error() -> Iterator[None]:
    """Report a full disk as LedgerGitError, no matter which step hits it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LedgerGitError("commit", f"{error.strerror}") from error
        raise


@contextmanager
def _new_directory(repo: Path) -> Iterator[Path]:
    """Make a directory that appears only when it is complete."""
    if repo.exists():
        raise Conflict(f"a ledger already exists at {repo}")
    new = repo.with_name(f".{repo.name}.new-{os.getpid()}-{time.monotonic_ns()}")
    new.mkdir(mode=0o700)
    try:
        yield new
        os.rename(new, repo)
        packs.sync(repo.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, or too many links
        shutil.copy2(source, target, follow_symlinks=False)


def _not_copied(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith((packs.SCRATCH, diff.SCRATCH)) or name.endswith(".lock")]
