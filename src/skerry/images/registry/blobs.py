"""Blobs of registries on their way into the layer store, and the layers that they became.

<root>/<64 hex>.part    the bytes received so far; the next pull continues from there
<root>/<64 hex>.json    the layer that it became
<root>/tree-<random>    being unpacked, or left by a crash: swept
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from skerry.errors import RegistryError
from skerry.images.archive.unpack import FORM
from skerry.images.registry.manifests import Descriptor, mismatch
from skerry.storage import tree
from skerry.storage.layers import LayerStore
from skerry.types import readable_size

if TYPE_CHECKING:  # loads the HTTP modules, which a server that pulls nothing does not need
    from skerry.images.registry.client import Registry

_CHUNK: Final = 1 << 20
_TRIES: Final = 5  # attempts for one blob without progress
MAX_TRANSFERS: Final = 100  # attempts for one blob in all: a registry could send a byte in each
_OLD_S: Final = 7 * 86400
_UNPACKING: Final = 2


class _Known(msgspec.Struct, frozen=True):
    layer: str | None  # None: it is empty
    form: int


class Blobs:
    """The blobs of one state directory. If two threads need the same blob, the second waits and finds it done."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()
        self.unpacking = threading.BoundedSemaphore(_UNPACKING)

    @contextmanager
    def held(self, digest: str, wait: Callable[[], None]) -> Iterator[None]:
        """`wait` is called now and then meanwhile, and may raise."""
        with self._guard:
            lock = self._locks[digest]
        while not lock.acquire(timeout=0.2):
            wait()
        try:
            yield
        finally:
            lock.release()

    def known(self, digest: str, layers: LayerStore) -> tuple[str | None] | None:
        """Return the layer that the blob became, if the store has it complete; in a tuple, because it may be None."""
        try:
            found = msgspec.json.decode(self._file(digest, "json").read_bytes(), type=_Known)
        except (OSError, msgspec.MsgspecError):
            return None
        if found.form != FORM:
            return None
        usable = found.layer is None or (layers.has(found.layer) and not layers.damaged(found.layer))
        return (found.layer,) if usable else None

    def note(self, digest: str, layer: str | None) -> None:
        tree.write_atomically(self._file(digest, "json"), msgspec.json.encode(_Known(layer=layer, form=FORM)))
        self._file(digest, "part").unlink(missing_ok=True)

    def part(self, digest: str) -> Path:
        return self._file(digest, "part")

    def scratch(self) -> Path:
        """Return a name for a tree."""
        return self.root / f"tree-{secrets.token_hex(8)}"

    def fetch(self, registry: Registry, blob: Descriptor, came: Callable[[int], None]) -> Path:
        """Return a complete, verified blob. `came` receives the number of bytes so far, and may raise. Interrupted
        transfers continue; bytes corrupted by a crash are fetched again before the registry is blamed."""
        for directory in (self.root.parent, self.root):
            tree.private_directory(directory)
        path = self.part(blob.digest)
        tries = 0
        for _ in range(MAX_TRANSFERS):
            had = path.stat().st_size if path.exists() else 0
            try:
                found, resumed = self._fetch(registry, blob, path, came)
            except RegistryError as error:
                passing = error.details.get("reason") in ("stalled", "unreachable", "busy")
                tries = 0 if path.exists() and path.stat().st_size > had else tries + 1
                if not passing or tries >= _TRIES:
                    raise
                came(had)
                continue
            if found == blob.digest:
                return path
            path.unlink()
            if not resumed:
                raise mismatch(registry.reference.registry, f"the layer {blob.digest[:19]}…", blob.digest, found)
        raise RegistryError(
            f"{registry.reference.registry} interrupted a layer {MAX_TRANSFERS} times",
            hint="pull again: it continues where it stopped",
            details={"reason": "stalled", "registry": registry.reference.registry},
        )

    def _fetch(self, registry: Registry, blob: Descriptor, path: Path, came: Callable[[int], None]) -> tuple[str, bool]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+b") as file:
            so_far, size = _hash_of(file.fileno(), came)
            if size > blob.size:
                so_far, size = hashlib.sha256(), 0
                file.truncate(0)
            resumed = size > 0
            if size < blob.size or not size:
                with registry.blob(blob.digest, size) as (start, pieces):
                    if start != size:
                        so_far, size, resumed = hashlib.sha256(), 0, False
                    file.seek(size)
                    file.truncate()
                    for piece in pieces:
                        size += len(piece)
                        if size > blob.size:
                            file.truncate(0)
                            raise mismatch(registry.reference.registry, "a layer", f"{blob.size} bytes", "more")
                        file.write(piece)
                        so_far.update(piece)
                        came(size)
                if size < blob.size:
                    file.flush()
                    sizes = f"{readable_size(size)} of {readable_size(blob.size)}"
                    raise RegistryError(
                        f"{registry.reference.registry} interrupted a layer: received {sizes}",
                        hint="pull again: it continues where it stopped",
                        details={"reason": "stalled", "registry": registry.reference.registry},
                    )
            file.flush()
            os.fsync(file.fileno())
        return f"sha256:{so_far.hexdigest()}", resumed

    def sweep(self, layers: LayerStore, everything: bool = False) -> int:
        """Remove leftovers of a crash, partial blobs older than a week, and notes of removed layers; return the bytes
        freed. Call only while nothing is being pulled."""
        freed = 0
        for name in os.listdir(self.root) if self.root.exists() else ():
            path = self.root / name
            stem, _, kind = name.rpartition(".")
            if name.startswith("tree-"):
                freed += tree.disk_use(path)
                tree.remove(path)
            elif kind == "part" and (everything or time.time() - path.stat().st_mtime > _OLD_S):
                freed += path.stat().st_size
                path.unlink()
            elif kind == "json" and self.known(f"sha256:{stem}", layers) is None:
                path.unlink()
        return freed

    def _file(self, digest: str, kind: str) -> Path:
        return self.root / f"{digest.removeprefix('sha256:')}.{kind}"


def _hash_of(fd: int, came: Callable[[int], None]) -> tuple[hashlib._Hash, int]:
    whole, size = hashlib.sha256(), 0
    while piece := os.read(fd, _CHUNK):
        whole.update(piece)
        size += len(piece)
        came(size)
    return whole, size
