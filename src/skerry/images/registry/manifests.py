"""Documents of registries: indexes, manifests, configurations. Bytes in, values out; untrusted.

Docker's schema 2 and OCI's differ only in the names of the types.
"""

from __future__ import annotations

import platform
import re
from typing import Any, Final, TypeVar

import msgspec

from skerry.errors import InvalidRequest, RegistryError
from skerry.images.archive.tar import Damaged
from skerry.types import check_env, check_text, check_user
from skerry.types.processes import check_cwd
from skerry.types.references import DIGEST

MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MAX_LAYERS: Final = 127
KIT: Final = "vnd.docker.sandbox.kit.descriptor"
MAX_KIT: Final = 256 << 10
_CONFIGS: Final = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_LAYER: Final = re.compile(
    r"application/vnd\.(?:docker\.image\.rootfs\.diff\.tar(?:\.gzip|\.zstd)?|oci\.image\.layer\.v1\.tar(?:\+gzip|\+zstd)?)"
)
_MAX_SIZE: Final = 1 << 40
_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "ppc64le": "ppc64le"}
T = TypeVar("T")


class Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Descriptor(msgspec.Struct, frozen=True, rename={"media_type": "mediaType"}):
    """A blob or a manifest, by its digest."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None

    def __post_init__(self) -> None:
        if not DIGEST.fullmatch(self.digest) or not 0 <= self.size <= _MAX_SIZE:
            raise ValueError("a descriptor without a sha256 digest or with an impossible size")


class ImageManifest(msgspec.Struct, frozen=True):
    """Layers are bottom first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Any = None

    @property
    def kit(self) -> str | None:
        """Return the descriptor of a Docker sandbox kit, if the image is one. Other annotations are not used."""
        found = self.annotations.get(KIT) if isinstance(self.annotations, dict) else None
        return found if isinstance(found, str) and len(found) <= MAX_KIT else None


class Index(msgspec.Struct, frozen=True):
    manifests: tuple[Descriptor, ...]


class _Process(msgspec.Struct, frozen=True, rename="pascal"):
    user: str | None = None
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    working_dir: str | None = None


class _Files(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True):
    """The defaults of its processes, and the digests of its unpacked layers."""

    architecture: str = ""
    os: str = ""
    variant: str = ""
    config: _Process | None = None
    rootfs: _Files = _Files()

    @property
    def _process(self) -> _Process:
        return self.config or _Process()

    @property
    def platform(self) -> Platform:
        return Platform(self.architecture, self.os, self.variant)

    @property
    def env(self) -> dict[str, str]:
        return dict(word.partition("=")[::2] for word in self._process.env or () if word.partition("=")[0])

    @property
    def user(self) -> str:
        return self._process.user or "root"

    @property
    def entrypoint(self) -> tuple[str, ...]:
        return self._process.entrypoint or ()

    @property
    def cmd(self) -> tuple[str, ...]:
        return self._process.cmd or ()

    @property
    def cwd(self) -> str:
        cwd = self._process.working_dir or "/"
        return cwd if cwd.startswith("/") else f"/{cwd}"


def decode_manifest(data: bytes, media_type: str) -> ImageManifest | Index:
    """Decode by the document's own media type, or by that of the HTTP header."""
    document = _decode(data, dict[str, Any], "manifest")
    kind = document.get("mediaType") or media_type.partition(";")[0].strip()
    if kind in INDEXES or (kind not in MANIFESTS and "manifests" in document):
        return _decode(data, Index, "index")
    if document.get("schemaVersion") == 1:
        raise Damaged("the image has a manifest of version 1, which is obsolete since 2017", hint="push it again")
    manifest = _decode(data, ImageManifest, "manifest")
    if manifest.config.media_type not in _CONFIGS:
        raise Damaged(f"this is not a file system image but {manifest.config.media_type[:80]!r}")
    for layer in manifest.layers:
        if not _LAYER.fullmatch(layer.media_type):
            raise Damaged(f"the image has a layer of the kind {layer.media_type[:80]!r}, which is not supported")
    if not 0 < len(manifest.layers) <= MAX_LAYERS:
        raise Damaged(f"the image has {len(manifest.layers)} layers", hint=f"between 1 and {MAX_LAYERS} are supported")
    return manifest


def decode_config(data: bytes, manifest: ImageManifest) -> Config:
    config = _decode(data, Config, "configuration")
    try:
        check_env(config.env)
        check_user(config.user)
        check_cwd(config.cwd)
        check_text("cmd", *config.entrypoint, *config.cmd)
    except InvalidRequest as error:
        raise Damaged(f"the image's configuration is not usable: {error.message}") from None
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise Damaged("the image's configuration and its manifest differ in the number of layers")
    return config


def host_platform() -> Platform:
    machine = platform.machine()
    return Platform(_NAMES.get(machine, machine), "linux")


def parse_platform(text: str | None) -> Platform:
    if text is None:
        return host_platform()
    system, architecture, *variant = text.split("/")
    return Platform(architecture, system, variant[0] if variant else "")


def choose(index: Index, wanted: Platform) -> Descriptor:
    """Return the image of an index for a machine; the first if several variants match."""
    there = [one for one in index.manifests if one.platform is not None]
    for one in there:
        if one.platform is not None and suits(one.platform, wanted):
            return one
    names = sorted({str(one.platform) for one in there if one.platform and one.platform.os != "unknown"})
    raise InvalidRequest(f"no image for {wanted}", hint=f"available: {', '.join(names)[:500]}; --platform picks one")


def suits(found: Platform, wanted: Platform) -> bool:
    if (found.os, found.architecture) != (wanted.os, wanted.architecture):
        return False
    return not wanted.variant or found.variant == wanted.variant


def _decode(data: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"the image's {what} is not readable: {error}") from None


def mismatch(registry: str, what: str, wanted: str, found: str) -> RegistryError:
    return RegistryError(
        f"{registry} sent the wrong content for {what}: {found}, not {wanted}",
        details={"reason": "digest", "registry": registry},
    )
