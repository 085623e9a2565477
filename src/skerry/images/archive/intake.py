"""Import an archive of an image: an OCI image layout, the output of `docker save`, or a plain root file system.

`unpack`'s child process reads the content, layer by layer; this side reads a few small documents and trusts none: every
blob must match its digest, every layer the configuration.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from skerry import linux
from skerry.errors import InvalidRequest
from skerry.images.archive.tar import Damaged
from skerry.images.archive.unpack import UnpackLimits, unpack
from skerry.images.registry.manifests import (
    INDEXES,
    MAX_LAYERS,
    Config,
    Descriptor,
    ImageManifest,
    Index,
    choose,
    decode_config,
    decode_manifest,
    host_platform,
    suits,
)
from skerry.storage import tree
from skerry.storage.layers import LayerStore

_SMALL: Final = 4 << 20  # of a document
_CHUNK: Final = 1 << 20
_BENEATH: Final = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_XDEV
_UNSAID: Final = Descriptor(digest=f"sha256:{'0' * 64}", size=0)  # for an archive that names its layers by path


@dataclass(frozen=True)
class ArchivedImage:
    """Layers are in the store, top first. `notices`: skipped items with the reason."""

    layers: tuple[str, ...]
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] | None = None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


class _SavedImage(msgspec.Struct, frozen=True, rename="pascal"):
    """One image in the output of `docker save`. Layers are bottom first."""

    config: str
    layers: tuple[str, ...]


class Intake:
    """One import, in the thread that calls `run`. `pinned` receives every layer that it adds: until its end none of
    them may be collected. `passed` receives the name of each step; `check` is called now and then, and may raise."""

    def __init__(
        self,
        layers: LayerStore,
        scratch: Path,
        *,
        limits: UnpackLimits,
        pinned: Callable[[str], None],
        passed: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self._layers, self._scratch, self._bounds = layers, scratch, limits
        self._pinned, self._passed, self._check = pinned, passed, check
        self._left = limits.bytes  # bytes left for all layers together
        self._notices: list[str] = []

    def run(self, source: int) -> ArchivedImage:
        """Read the archive from a descriptor to its end. In any case only layers remain."""
        os.mkdir(self._scratch, 0o700)
        try:
            outer = self._scratch / "archive"
            done = unpack(source, outer, limits=self._bounds, layer=False, progress=lambda _: self._check())
            self._passed("import.archive")
            with _opened(outer) as top:
                if _is_file(top, "oci-layout"):
                    return self._layout(top)
                if _is_file(top, "manifest.json"):
                    return self._saved(top)
            self._notices += done.notices
            return self._root(outer, done.entries)
        finally:
            tree.remove(self._scratch)

    # -- a root file system -------------------------------------------------------------------------------------------

    def _root(self, root: Path, entries: int) -> ArchivedImage:
        if not entries:
            raise Damaged("the archive contains no files")
        return ArchivedImage((self._store(root),), notices=tuple(self._notices))

    # -- an OCI image layout ------------------------------------------------------------------------------------------

    def _layout(self, top: int) -> ArchivedImage:
        manifest = self._manifest(top)
        config = self._suitable(decode_config(self._document(top, manifest.config), manifest))
        found = []
        for blob, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True):
            with _blob(top, blob) as fd:
                self._verify(fd, blob)
                found.append(self._layer(fd, diff_id))
        return self._taken(found, config)

    def _manifest(self, top: int) -> ImageManifest:
        found = decode_manifest(_small(top, "index.json"), INDEXES[0])
        for _ in range(3):
            if isinstance(found, ImageManifest):
                return found
            found = decode_manifest(self._document(top, one := _one(found)), one.media_type)
        raise Damaged("the archive is an index of indexes")

    def _document(self, top: int, blob: Descriptor) -> bytes:
        with _blob(top, blob) as fd:
            if blob.size > _SMALL:
                raise Damaged(f"the archive has a document of {blob.size} bytes")
            self._verify(fd, blob)
            return os.pread(fd, blob.size, 0)

    def _verify(self, fd: int, blob: Descriptor) -> None:
        if os.fstat(fd).st_size != blob.size:
            raise Damaged(f"the archive's blob {blob.digest[:19]}… has the wrong size")
        whole = hashlib.sha256()
        while piece := os.read(fd, _CHUNK):
            self._check()
            whole.update(piece)
        if f"sha256:{whole.hexdigest()}" != blob.digest:
            raise Damaged(f"the archive's blob {blob.digest[:19]}… does not match its digest")
        os.lseek(fd, 0, os.SEEK_SET)

    # -- docker save ---------------------------------------------------------------------------------------------------

    def _saved(self, top: int) -> ArchivedImage:
        try:
            images = msgspec.json.decode(_small(top, "manifest.json"), type=tuple[_SavedImage, ...])
        except msgspec.MsgspecError as error:
            raise Damaged(f"the archive's manifest.json is not readable: {error}") from None
        if len(images) != 1:
            raise _several(len(images))
        saved = images[0]
        if not 0 < len(saved.layers) <= MAX_LAYERS:
            raise Damaged(f"the image has {len(saved.layers)} layers", hint=f"between 1 and {MAX_LAYERS} are supported")
        config = self._suitable(
            decode_config(_small(top, saved.config), ImageManifest(_UNSAID, (_UNSAID,) * len(saved.layers)))
        )
        found = []
        for path, diff_id in zip(saved.layers, config.rootfs.diff_ids, strict=True):
            with _regular(top, path) as fd:
                found.append(self._layer(fd, diff_id))
        return self._taken(found, config)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _suitable(self, config: Config) -> Config:
        if config.architecture and not suits(config.platform, host_platform()):
            raise InvalidRequest(f"the image is for {config.platform}, not for {host_platform()}")
        return config

    def _layer(self, fd: int, diff_id: str) -> str | None:
        """Return the layer; None if it is empty."""
        target = self._scratch / "layer"
        limits = msgspec.structs.replace(self._bounds, bytes=self._left)
        done = unpack(fd, target, limits=limits, progress=lambda _: self._check())
        self._left -= done.bytes
        if done.digest != diff_id:
            raise Damaged(f"a layer of the archive unpacks to {done.digest}, not to {diff_id[:80]}")
        self._notices += done.notices
        if not done.entries:
            tree.remove(target)
            return None
        return self._store(target)

    def _store(self, root: Path) -> str:
        layer = self._layers.add_directory(root, progress=lambda _: self._check(), pinned=self._pinned)
        self._passed("import.layer")
        return layer

    def _taken(self, found: list[str | None], config: Config) -> ArchivedImage:
        layers = tuple(dict.fromkeys(layer for layer in reversed(found) if layer is not None))
        if not layers:
            raise Damaged("the image contains no files")
        return ArchivedImage(
            layers, user=config.user, cwd=config.cwd, env=config.env, entrypoint=config.entrypoint, cmd=config.cmd,
            notices=tuple(self._notices[:100]),
        )  # fmt: skip


def _one(index: Index) -> Descriptor:
    """Layouts of one image often do not name its platform."""
    if len(index.manifests) == 1:
        return index.manifests[0]
    if not any(one.platform for one in index.manifests):
        raise _several(len(index.manifests))
    return choose(index, host_platform())


def _several(count: int) -> InvalidRequest:
    return InvalidRequest(f"the archive holds {count} images", hint="make an archive of a single image")


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_file(top: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _regular(top: int, path: str) -> Iterator[int]:
    """Open a file of the archive. Links within it are followed, because older Dockers save a layer once and link to it.
    Only regular files are opened."""
    try:
        found = linux.openat2(top, path, os.O_PATH, _BENEATH)
    except (OSError, ValueError):
        raise Damaged(f"the archive has no {path[:80]!r}") from None
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise Damaged(f"{path[:80]!r} in the archive is not a file")
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        yield fd
    finally:
        os.close(fd)


def _blob(top: int, blob: Descriptor) -> AbstractContextManager[int]:
    """Its digest is 64 hexadecimal digits, which `Descriptor` ensures."""
    return _regular(top, f"blobs/sha256/{blob.digest.removeprefix('sha256:')}")


def _small(top: int, path: str) -> bytes:
    with _regular(top, path) as fd:
        data = os.pread(fd, _SMALL + 1, 0)
    if len(data) > _SMALL:
        raise Damaged(f"the archive's {path[:80]!r} is more than {_SMALL >> 20} MiB long")
    return data
