"""Layers: read-only file trees, shared by images, snapshots and sandboxes.

sha256:<64 hex>   named by the digest of its content
    <root>/<64 hex>/tree/        the files, with the IDs that a sandbox sees
    <root>/<64 hex>/layer.json   its size
    <root>/<64 hex>/damaged      its files have changed: it is never served again
snap:<32 hex>     a sandbox's upper at one moment, stored by the storage driver; the name is random
    <root>/snap-<32 hex>.json, .damaged   its measured size and digest, and the same mark
<root>/.new-*     being added, or left by a crash
<root>/.old-*     damaged and replaced, but sandboxes may still use it
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
_MAX_READ = 8 << 30  # of a snapshot, beyond four times its disk use: its files may be holes and copies of one block
_UNREADABLE = (errno.EIO, errno.EUCLEAN)  # from the disk, or from the file system's checksums


class _LayerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    size: int
    added_at: float


def new_snap() -> str:
    """Return an unused name for a snapshot's layer."""
    return f"snap:{secrets.token_hex(16)}"


def snap_name(ref: str) -> str:
    """Return the storage driver's name of the layer `snap:…`."""
    if not SNAP.fullmatch(ref):
        raise InvalidRequest(f"{ref[:80]!r} is not the layer of a snapshot", hint="snap: and 32 hex digits")
    return ref.removeprefix("snap:")


class LayerStore:
    """The layers of one state directory. Safe for several threads and processes: every change is one rename.

    Without a driver, only layers named by digest are available.
    """

    def __init__(self, root: Path, driver: Driver | None = None) -> None:
        self.root = tree.private_directory(root)
        self.driver = driver

    def path(self, ref: str) -> Path:
        """Return where a layer's files are. The layer may not exist: see `has` and `check`."""
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
        """Return the path of a layer that exists and is not marked as damaged."""
        if not self.has(ref):
            raise NotFound(f"the layer {ref} is missing from the store", details={"layer": ref})
        if self.damaged(ref):
            raise Conflict(
                f"the layer {ref} is damaged on disk and is not served",
                hint="build, pull or import its image again; `skerry image verify` lists its users",
                details={"layer": ref, "damaged": True},
            )
        return self.path(ref)

    def damaged(self, ref: str) -> bool:
        """Return whether `verify` has found it damaged."""
        return self._mark(ref).exists()

    def digests(self) -> list[str]:
        """Return every layer, including snapshots."""
        found = (f"sha256:{name}" for name in os.listdir(self.root))
        named = sorted(name for name in found if DIGEST.fullmatch(name) and self.has(name))
        return named + (sorted(f"snap:{name}" for name in self.driver.snapshots()) if self.driver else [])

    def size(self, ref: str) -> int:
        """Return the bytes on disk, measured when it was added; for a snapshot, when first requested."""
        if not self.has(ref):
            raise NotFound(f"layer {ref} not found")
        facts = self._facts(ref)
        if facts is None:
            size = self._kept(ref).snapshot_size(snap_name(ref))
            facts = self._note(ref, _LayerRecord(digest="", size=size, added_at=time.time()))
        return facts.size

    def add_directory(
        self,
        source: Path,
        digest: str | None = None,
        progress: Callable[[int], None] | None = None,
        pinned: Callable[[str], None] | None = None,
    ) -> str:
        """Move a finished tree into the store by renaming it (same file system), and return its digest.

        With `digest`, reject a tree that has another one. `progress` receives the bytes read; `pinned` the layer,
        before it can be collected. Slow work is done before the store is held, so that collection does not wait.
        """
        actual = tree.digest(source, progress)
        if digest is not None and digest != actual:
            raise InvalidRequest(f"the tree is {actual}, not {digest}")
        facts = _LayerRecord(digest=actual, size=tree.disk_use(source), added_at=time.time())
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
            os.rename(staging, self.root / f".old-{home.name}-{secrets.token_hex(4)}")  # sandboxes may still use it
        else:
            try:
                os.rename(staging, home)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                tree.remove(staging)  # another thread has just added the same tree
        tree.sync(self.root)

    def remove(self, ref: str) -> None:
        """Remove a layer. Ignore one that does not exist. The caller ensures that nothing uses it."""
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
        """Return whether the files are unchanged. Reads every byte. A damaged layer is never served again.

        A snapshot's digest is computed at its first verification; unreadable data is found at once. A snapshot that is
        too deep to walk, or reads as far more than its disk use, has only the file system's checksums.
        """
        if not self.has(ref):
            raise NotFound(f"layer {ref} not found")
        try:
            actual = self._digest(ref)
        except InvalidRequest:
            return not self.damaged(ref)
        expected: str | None = ref
        if ref.startswith("snap:"):
            facts = self._facts(ref)
            expected = facts.digest if facts and facts.digest else actual
            if actual is not None and (facts is None or not facts.digest):
                self._note(ref, _LayerRecord(digest=actual, size=self.size(ref), added_at=time.time()))
        if actual is None or actual != expected:
            tree.write_atomically(self._mark(ref), b"")
        return not self.damaged(ref)

    def _digest(self, ref: str) -> str | None:
        """Return the digest; None if the disk cannot read the layer."""
        left = _MAX_READ

        def count(done: int) -> None:
            nonlocal left
            left -= done
            if left < 0:
                raise InvalidRequest(f"the layer {ref} reads as far more than its disk use")

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
        """While held (shared), no layer is collected: for the time between adding a layer and naming it in an image."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def sweep(self, in_use: set[str]) -> None:
        """Remove half-added, half-removed and replaced layers. The caller holds the store exclusively."""
        for name in os.listdir(self.root):
            replaced = _OLD.fullmatch(name)
            if name.startswith(".new-") or (replaced and f"sha256:{replaced[1]}" not in in_use):
                tree.remove(self.root / name)
            elif self.driver is not None and (found := _NOTES.fullmatch(name)) and not self.has(f"snap:{found[1]}"):
                os.unlink(self.root / name)

    def _home(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest[:80]!r} is not the digest of a layer", hint="sha256: and 64 hex digits")
        return self.root / digest.removeprefix("sha256:")

    def _kept(self, ref: str) -> Driver:
        if self.driver is None:
            raise NotFound(f"layer {ref} not found: no storage is open")
        return self.driver

    def _note_file(self, ref: str) -> Path:
        if ref.startswith("snap:"):
            return self.root / f"snap-{snap_name(ref)}.json"
        return self._home(ref) / "layer.json"

    def _mark(self, ref: str) -> Path:
        if ref.startswith("snap:"):
            return self.root / f"snap-{snap_name(ref)}.damaged"
        return self._home(ref) / "damaged"

    def _facts(self, ref: str) -> _LayerRecord | None:
        try:
            return msgspec.json.decode(self._note_file(ref).read_bytes(), type=_LayerRecord)
        except FileNotFoundError:
            return None

    def _note(self, ref: str, facts: _LayerRecord) -> _LayerRecord:
        tree.write_atomically(self._note_file(ref), msgspec.json.encode(facts))
        return facts
