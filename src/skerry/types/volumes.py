"""Volumes: directories that outlive sandboxes, and the host directories that an operator lists by name."""

from __future__ import annotations

import os
import posixpath
from typing import Literal

from skerry.errors import InvalidRequest
from skerry.types.values import NAME, Answer, Value, check_line, check_name, check_path, parse_size

MAX_VOLUMES = 16  # in one sandbox
READ_ONLY = ":ro"
_NAME_HINT = 'a volume like "data" or "data:ro", or a directory of the operator like "@datasets"'
# Trees that the runtime or the keeper makes, and directories in which both look for programs and users
_CLOSED = ("/dev", "/proc", "/run/skerry", "/sys", "/var/lib/skerry")
_SYSTEM = (
    "/", "/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/usr", "/usr/bin", "/usr/lib",
    "/usr/local", "/usr/local/bin", "/usr/sbin", "/var", "/var/lib",
)  # fmt: skip


class VolumeMount(Value, frozen=True, kw_only=True):
    """A volume in a sandbox. `volume`: its ID; None: the operator's directory with this name."""

    path: str
    name: str
    volume: str | None = None
    read_only: bool = False

    @property
    def word(self) -> str:
        return f"{'@' * (self.volume is None)}{self.name}{READ_ONLY * self.read_only}"


class MountForm(Value, frozen=True, kw_only=True):
    """[mounts.NAME] in the operator's file: a directory of the host that sandboxes may mount by that name."""

    path: str
    read_only: bool = True

    def __post_init__(self) -> None:
        check_path("path", self.path)
        if self.path == "/" or os.path.normpath(self.path) != self.path or not self.path.startswith("/"):
            raise InvalidRequest(
                f"path: {self.path[:80]!r} is not an absolute path of a directory", hint="like /srv/datasets"
            )


class VolumeRequest(Value, frozen=True, kw_only=True):
    """POST /v1/volumes. Without `size`, the operator's default applies (volumes.size)."""

    name: str
    size: str | int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_volume_size(self.size)


class VolumeSnapshotRequest(Value, frozen=True, kw_only=True):
    """POST /v1/volumes/{volume}/snapshot."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)


class VolumeInfo(Answer, frozen=True, kw_only=True):
    """A volume, or a snapshot of one, which never changes. `used`: bytes that count towards `size`; None: not measured.
    `source`: the ID of the volume that it is a copy of. `sandboxes`: those that mount it, by name or ID."""

    id: str
    name: str
    size: str
    created_at: float
    owner: str = "local"
    kind: Literal["volume", "snapshot"] = "volume"
    source: str | None = None
    used: int | None = None
    sandboxes: tuple[str, ...] = ()


class VolumeList(Answer, frozen=True, kw_only=True):
    volumes: list[VolumeInfo]


class ImportedVolume(Answer, frozen=True, kw_only=True):
    """`notices`: parts of the archive that were left out, with the reason."""

    volume: VolumeInfo
    notices: tuple[str, ...] = ()


def check_volume_size(size: str | int | None) -> None:
    if size is not None and parse_size(size, "size") < 1 << 20:
        raise InvalidRequest(f"size: {size!r} is too little", hint="at least 1M")


def parse_volumes(volumes: dict[str, str]) -> tuple[VolumeMount, ...]:
    """Return the mounts of a request without their IDs, in the order of their paths."""
    if len(volumes) > MAX_VOLUMES:
        raise InvalidRequest(f"volumes: more than {MAX_VOLUMES}")
    mounts = [_mount(path, volumes[path]) for path in sorted(volumes)]
    for one in mounts:
        for other in mounts:
            if one.path.startswith(f"{other.path}/"):
                raise InvalidRequest(
                    f"volumes: {one.path} is inside {other.path}", hint="mount them beside each other, and use a link"
                )
    return tuple(mounts)


def _mount(path: str, word: str) -> VolumeMount:
    check_mount_path(path)
    name, read_only = word.removesuffix(READ_ONLY), word.endswith(READ_ONLY)
    listed = name.startswith("@")
    name = name.removeprefix("@")
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"volumes: {word[:80]!r} is not the name of a volume", hint=_NAME_HINT)
    return VolumeMount(path=path, name=name, volume=None if listed else "", read_only=read_only)


def check_mount_path(path: str) -> None:
    check_path("volumes", path)
    check_line("volumes", path)
    if not path.startswith("/") or posixpath.normpath(path) != path or path.startswith("//"):
        raise InvalidRequest(
            f"volumes: {path[:80]!r} is not an absolute path", hint="like /data; without .., // and a / at the end"
        )
    if path in _SYSTEM or any(path == tree or path.startswith(f"{tree}/") for tree in _CLOSED):
        raise InvalidRequest(
            f"volumes: {path[:80]} is reserved for the system", hint="choose a path like /data or /workspace/data"
        )
