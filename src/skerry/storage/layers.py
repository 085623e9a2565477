"""Layers: read-only file trees, named by the digest of what is in them, shared by images, snapshots and sandboxes.

<root>/<64 hex>/tree/        the files, with the ids that a sandbox sees
<root>/<64 hex>/layer.json   its size
<root>/.new-*                being added, or left by a crash
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

from skerry.errors import InvalidRequest, NotFound
from skerry.storage import tree
from skerry.storage.kernel import syncfs

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    size: int
    added_at: float


class LayerStore:
    """The layers of one state directory. Safe for several threads and processes: every change is one rename."""

    def __init__(self, root: Path) -> None:
        self.root = tree.private_directory(root)

    def path(self, digest: str) -> Path:
        """Where a layer's files are. The layer may not exist: see `has`."""
        return self._home(digest) / "tree"

    def has(self, digest: str) -> bool:
        return (self._home(digest) / "layer.json").is_file()

    def digests(self) -> list[str]:
        found = (f"sha256:{name}" for name in os.listdir(self.root))
        return sorted(name for name in found if DIGEST.fullmatch(name) and self.has(name))

    def size(self, digest: str) -> int:
        """Bytes on disk, as measured when it was added."""
        try:
            data = (self._home(digest) / "layer.json").read_bytes()
        except FileNotFoundError:
            raise NotFound(f"there is no layer {digest}") from None
        return msgspec.json.decode(data, type=_Facts).size

    def add_directory(
        self, source: Path, digest: str | None = None, progress: Callable[[int], None] | None = None
    ) -> str:
        """Takes a finished tree into the store by renaming it (same file system), and gives its digest.

        With `digest` given, a tree that is not that is refused. `progress` hears of bytes read.
        """
        actual = tree.digest(source, progress)
        if digest is not None and digest != actual:
            raise InvalidRequest(f"the tree is {actual}, not {digest}")
        with self.held():
            if self.has(actual):
                tree.remove(source)
                return actual
            facts = _Facts(digest=actual, size=tree.disk_use(source), added_at=time.time())
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
        try:
            os.rename(staging, self._home(digest))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            tree.remove(staging)  # another thread added the same tree a moment ago
        tree.sync(self.root)

    def remove(self, digest: str) -> None:
        """Removes a layer; one that is not there is fine. The caller knows that nothing uses it."""
        trash = self.root / f".new-{secrets.token_hex(8)}"
        try:
            os.rename(self._home(digest), trash)
        except FileNotFoundError:
            return
        tree.remove(trash)

    def verify(self, digest: str) -> bool:
        """Whether the files are still what the digest says. Reads every byte."""
        if not self.has(digest):
            raise NotFound(f"there is no layer {digest}")
        return tree.digest(self.path(digest)) == digest

    @contextmanager
    def held(self, exclusive: bool = False) -> Iterator[None]:
        """While held (shared), no layer is collected: for the time between adding one and naming it in an image."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def sweep(self) -> None:
        """Removes what a crash left half-added or half-removed. The caller holds the store exclusively."""
        for name in os.listdir(self.root):
            if name.startswith(".new-"):
                tree.remove(self.root / name)

    def _home(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise InvalidRequest(f"{digest[:80]!r} is not a layer's digest", hint="sha256: and 64 hex digits")
        return self.root / digest.removeprefix("sha256:")
