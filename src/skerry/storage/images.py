"""Images by name: one small JSON file each, which lists its layers."""

from __future__ import annotations

import builtins
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.storage import tree
from skerry.storage.layers import LayerStore
from skerry.types import OWN_IMAGES, ImageInfo, Reference, parse_reference

Image = ImageInfo

_WORD = r"[A-Za-z0-9]+"
_NAME = re.compile(rf"{_WORD}(?:(?:\.|_{{1,2}}|-{{1,8}}|/|:|@){_WORD})*")
_MAX_NAME = 255
_TAKEN = ("export",)  # GET /v1/images/export is another route


def check_image_name(name: str) -> None:
    """Check an image name. Names are those of registries: words joined by single . _ - / : @. So no "..", no leading
    slash, no NUL."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name) or name in _TAKEN:
        raise InvalidRequest(
            f"image: {name[:80]!r} is not a valid name",
            hint=f"letters and digits, joined by single . _ - / : @; at most {_MAX_NAME} characters",
        )


def image_digest(
    layers: tuple[str, ...],
    env: dict[str, str],
    user: str,
    cwd: str,
    entrypoint: tuple[str, ...] = (),
    cmd: tuple[str, ...] = (),
) -> str:
    """Return the identity of an image, independent of its name and age."""
    runs = [entrypoint, cmd] if entrypoint or cmd else []
    facts = msgspec.json.encode([layers, sorted(env.items()), user, cwd, *runs])
    return f"sha256:{hashlib.sha256(facts).hexdigest()}"


def _is_meant(wanted: Reference, found: Reference) -> bool:
    if (wanted.registry, wanted.repository) != (found.registry, found.repository):
        return False
    return wanted.digest == found.digest if wanted.digest else wanted.tag == found.tag


class ImageStore:
    """The images of one state directory. A file is named by the hash of the image's name, so a name is never used as a
    path."""

    def __init__(self, root: Path, layers: LayerStore) -> None:
        self.root = tree.private_directory(root)
        self.layers = layers
        self._known: dict[str, tuple[tuple[int, int, int], Image]] = {}  # cached images, with the identity of the file

    def get(self, name: str) -> Image:
        """Get an image by its name; a pulled image also by any other spelling of its origin."""
        file = self._file(name)
        try:
            found = os.stat(file)  # a replaced file has another identity
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._known.get(name, (None,))[0] != mark:
                self._known[name] = mark, self._read(file)
            return self._known[name][1]
        except FileNotFoundError:
            image = self._pulled(name)
        if image is None:
            raise self._missing(name)
        return image

    def _pulled(self, name: str) -> Image | None:
        try:
            wanted = parse_reference(name)
        except InvalidRequest:
            return None
        for image in self.list():
            if image.source is not None and _is_meant(wanted, parse_reference(image.source)):
                return image
        return None

    def put(self, image: Image) -> None:
        """Add an image, or replace the one with that name. Its layers must be in the store."""
        file = self._file(image.name)
        for digest in image.layers:
            if not self.layers.has(digest):
                raise Conflict(f"image {image.name}: its layer {digest} is not in the store")
        tree.write_atomically(file, msgspec.json.encode(image))

    def list(self) -> builtins.list[Image]:
        names = [name for name in os.listdir(self.root) if name.endswith(".json") and not name.startswith(".")]
        return sorted((self._read(self.root / name) for name in names), key=lambda image: image.name)

    def remove(self, name: str) -> None:
        """Remove the name. Its layers stay until `collect`."""
        try:
            os.unlink(self._file(name))
            self._known.pop(name, None)
        except FileNotFoundError:
            raise self._missing(name) from None

    def collect(self, in_use: Callable[[], set[str]]) -> builtins.list[str]:
        """Remove every layer that no image names and that is not `in_use` by a sandbox or snapshot; return the removed
        layers.

        `in_use` is evaluated while the store is held and after it was listed: layers that are being added or captured
        meanwhile are safe.
        """
        with self.layers.held(exclusive=True):
            there = self.layers.digests()
            used = in_use()
            self.layers.sweep(used)
            wanted = used.union(*(image.layers for image in self.list()))
            gone = [digest for digest in there if digest not in wanted]
            for digest in gone:
                self.layers.remove(digest)
        return gone

    def _file(self, name: str) -> Path:
        check_image_name(name)
        return self.root / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _missing(self, name: str) -> NotFound:
        if name in OWN_IMAGES:
            return NotFound(
                f"the image {name} has not been built yet",
                hint=f"run `skerry image build {name}`",
                details={"image": name, "build": True},
            )
        hint = f"`skerry image ls` lists images; `skerry image pull {name}` fetches it from a registry"
        return NotFound(f"image {name} not found", hint=hint, details={"image": name})

    def _read(self, file: Path) -> Image:
        data = file.read_bytes()
        try:
            return msgspec.json.decode(data, type=Image)
        except msgspec.MsgspecError as error:
            hint = "remove that file and build the image again"
            raise SkerryError(f"{file} is damaged: {error}", hint=hint) from error
