"""Layers: read-only file trees, shared by images, snapshots and sandboxes.

sha256:<64 hex>   named by the digest of what is in it
    <root>/<64 hex>/tree/        the files, with the ids that a sandbox sees
    <root>/<64 hex>/layer.json   its size
    <root>/<64 hex>/damaged      its files are not what they were: it is never served again
snap:<32 hex>     a sandbox's upper as it was at one moment, kept by the storage driver; named at random
    <root>/snap-<32 hex>.json, .damaged   what has been measured of it, and the same mark
<root>/.new-*     being added, or left by a crash
<root>/.old-*     damaged and replaced, but sandboxes may still stand on it
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.storage import tree
from skerry.storage.driver import Driver
from skerry.storage.kernel import exchange, syncfs

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SNAP = re.compile(r"snap:[0-9a-f]{32}")
_NOTES = re.compile(r"snap-([0-9a-f]{32})\.(?:json|damaged)")
_OLD = re.compile(r"\.old-([0-9a-f]{64})-[0-9a-f]{8}")
_READ_MOST = 8 << 30  # of a snapshot, beyond four times what it takes: its files may be holes and copies of one block
_UNREADABLE = (errno.EIO, errno.EUCLEAN)  # the disk, or the file system's own checksums


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    size: int
    added_at: float


def new_snap() -> str:
    """A name for a snapshot's layer, which nothing has yet."""
    return f"snap:{secrets.token_hex(16)}"


def snap_name(ref: str) -> str:
    """What the storage driver calls the layer `snap:…`."""
    if not SNAP.fullmatch(ref):
        raise InvalidRequest(f"{ref[:80]!r} is not a snapshot's layer", hint="snap: and 32 hex digits")
    return ref.removeprefix("snap:")


class LayerStore:
    """The layers of one state directory. Safe for several threads and processes: every change is one rename.

    Without a driver it knows those that are named by digest only."""

    def __init__(self, root: Path, driver: Driver | None = None) -> None:
        self.root = tree.private_directory(root)
        self.driver = driver

    def path(self, ref: str) -> Path:
        """Where a layer's files are. The layer may not exist: see `has` and `check`."""
        if ref.startswith("snap:"):
            return self._kept(ref).snapshot_path(snap_name(ref))
        return self._home(ref) / "tree"

    def has(self, ref: str) -> bool:
        if ref.startswith("snap:"):
            try:
                return self.path(ref).is_dir()
            except NotFound:
                return False
        return (self._home(ref) / "layer.json").is_file()

    def check(self, ref: str) -> Path:
        """The path of a layer that may be served: it is there, and was not found damaged."""
        if not self.has(ref):
            raise NotFound(f"the layer {ref} is missing from the store", details={"layer": ref})
        if self.damaged(ref):
            raise Conflict(
                f"the layer {ref} is damaged on disk and is not served",
                hint="build, pull or import its image again; `skerry image verify` names what stands on it",
                details={"layer": ref, "damaged": True},
            )
        return self.path(ref)

    def damaged(self, ref: str) -> bool:
        """Whether `verify` has found it damaged."""
        return self._mark(ref).exists()

    def digests(self) -> list[str]:
        """Every layer, the snapshots' too."""
        found = (f"sha256:{name}" for name in os.listdir(self.root))
        named = sorted(name for name in found if DIGEST.fullmatch(name) and self.has(name))
        return named + (sorted(f"snap:{name}" for name in self.driver.snapshots()) if self.driver else [])

    def size(self, ref: str) -> int:
        """Bytes on disk, as measured when it was added; a snapshot's, when it was first asked for."""
        if not self.has(ref):
            raise NotFound(f"there is no layer {ref}")
        facts = self._facts(ref)
        if facts is None:
            size = self._kept(ref).snapshot_size(snap_name(ref))
            facts = self._note(ref, _Facts(digest="", size=size, added_at=time.time()))
        return facts.size

    def add_directory(
        self,
        source: Path,
        digest: str | None = None,
        progress: Callable[[int], None] | None = None,
        pinned: Callable[[str], None] | None = None,
    ) -> str:
        """Takes a finished tree into the store by renaming it (same file system), and gives its digest.

        With `digest` given, a tree that is not that is refused. `progress` hears of bytes read; `pinned` of the layer,
        before it can be collected. What takes long is done before the store is held: nothing is collected meanwhile.
        """
        actual = tree.digest(source, progress)
        if digest is not None and digest != actual:
            raise InvalidRequest(f"the tree is {actual}, not {digest}")
        facts = _Facts(digest=actual, size=tree.disk_use(source), added_at=time.time())
        if not self.has(actual):
            syncfs(source)
        with self.held():
            if pinned is not None:
                pinned(actual)
            if self.has(actual) and not self.damaged(actual):
                tree.remove(source)
                return actual
            staging = self.root / f".new-{secrets.token_hex(8)}"
            os.mkdir(staging, 0o700)
            self._take(source, staging / "tree")
            tree.write_atomically(staging / "layer.json", msgspec.json.encode(facts))
            syncfs(staging)
            self._publish(staging, actual)
        return actual

    def _take(self, source: Path, target: Path) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            os.rmdir(target.parent)
            raise InvalidRequest(f"{source} is on another file system than the layers in {self.root}") from None

    def _publish(self, staging: Path, digest: str) -> None:
        home = self._home(digest)
        if self.damaged(digest):
            exchange(staging, home)
            os.rename(staging, self.root / f".old-{home.name}-{secrets.token_hex(4)}")  # sandboxes may stand on it
        else:
            try:
                os.rename(staging, home)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                tree.remove(staging)  # another thread added the same tree a moment ago
        tree.sync(self.root)

    def remove(self, ref: str) -> None:
        """Removes a layer; one that is not there is fine. The caller knows that nothing uses it."""
        if ref.startswith("snap:"):
            self._kept(ref).drop_snapshot(snap_name(ref))
            self._note_file(ref).unlink(missing_ok=True)
            self._mark(ref).unlink(missing_ok=True)
            return
        trash = self.root / f".new-{secrets.token_hex(8)}"
        try:
            os.rename(self._home(ref), trash)
        except FileNotFoundError:
            return
        tree.remove(trash)

    def verify(self, ref: str) -> bool:
        """Whether the files are still what they were. Reads every byte. Those that are not are never served again.

        A snapshot's digest is taken at its first verification; what the disk can't read any more shows at once. One
        that is nested too deep to be walked, or reads as far more than it takes, has the file system's own checksums
        only."""
        if not self.has(ref):
            raise NotFound(f"there is no layer {ref}")
        try:
            actual = self._digest(ref)
        except InvalidRequest:
            return not self.damaged(ref)
        expected: str | None = ref
        if ref.startswith("snap:"):
            facts = self._facts(ref)
            expected = facts.digest if facts and facts.digest else actual
            if actual is not None and (facts is None or not facts.digest):
                self._note(ref, _Facts(digest=actual, size=self.size(ref), added_at=time.time()))
        if actual is None or actual != expected:
            tree.write_atomically(self._mark(ref), b"")
        return not self.damaged(ref)

    def _digest(self, ref: str) -> str | None:
        """None: the disk can't read it."""
        left = _READ_MOST

        def count(done: int) -> None:
            nonlocal left
            left -= done
            if left < 0:
                raise InvalidRequest(f"the layer {ref} reads as far more than it takes")

        try:
            if not ref.startswith("snap:"):
                return tree.digest(self.path(ref))
            left += 4 * self.size(ref)
            return tree.digest(self.path(ref), count)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return None

    @contextmanager
    def held(self, exclusive: bool = False) -> Iterator[None]:
        """While held (shared), no layer is collected: for the time between adding one and naming it in an image."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def sweep(self, in_use: set[str]) -> None:
        """Removes what a crash left half-added or half-removed, and what was replaced. The caller holds the store
        exclusively."""
        for name in os.listdir(self.root):
            replaced = _OLD.fullmatch(name)
            if name.startswith(".new-") or (replaced and f"sha256:{replaced[1]}" not in in_use):
                tree.remove(self.root / name)
            elif self.driver is not None and (found := _NOTES.fullmatch(name)) and not self.has(f"snap:{found[1]}"):
                os.unlink(self.root / name)

    def _home(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest[:80]!r} is not a layer's digest", hint="sha256: and 64 hex digits")
        return self.root / digest.removeprefix("sha256:")

    def _kept(self, ref: str) -> Driver:
        if self.driver is None:
            raise NotFound(f"there is no layer {ref}: no storage is open")
        return self.driver

    def _note_file(self, ref: str) -> Path:
        if ref.startswith("snap:"):
            return self.root / f"snap-{snap_name(ref)}.json"
        return self._home(ref) / "layer.json"

    def _mark(self, ref: str) -> Path:
        if ref.startswith("snap:"):
            return self.root / f"snap-{snap_name(ref)}.damaged"
        return self._home(ref) / "damaged"

    def _facts(self, ref: str) -> _Facts | None:
        try:
            return msgspec.json.decode(self._note_file(ref).read_bytes(), type=_Facts)
        except FileNotFoundError:
            return None

    def _note(self, ref: str, facts: _Facts) -> _Facts:
        tree.write_atomically(self._note_file(ref), msgspec.json.encode(facts))
        return facts
