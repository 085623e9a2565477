"""Volumes: directories that outlive sandboxes, the host directories that an operator lists by name, and buckets of
object storage."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from skerry.errors import InvalidRequest
from skerry.types.values import (
    NAME,
    VARIABLE,
    Answer,
    Value,
    check_line,
    check_name,
    check_path,
    parse_size,
    parse_span,
)

MAX_VOLUMES = 16  # in one sandbox
READ_ONLY = ":ro"
_NAME_HINT = (
    'a volume like "data" or "data:ro", a directory of the operator like "@datasets", or a bucket like "s3://name"'
)
BUCKET_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61}[a-z0-9])")  # as S3 names them
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()+=@,~ -]+(?:/[A-Za-z0-9!_.*'()+=@,~ -]+)*")
_BUCKET_HINT = "like s3://datasets/2026?endpoint=minio&secret=S3"
# Trees that the runtime or the keeper makes, and directories in which both look for programs and users
_CLOSED = ("/dev", "/proc", "/run/skerry", "/sys", "/var/lib/skerry")
_SYSTEM = (
    "/", "/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/usr", "/usr/bin", "/usr/lib",
    "/usr/local", "/usr/local/bin", "/usr/sbin", "/var", "/var/lib",
)  # fmt: skip


class BucketForm(Value, frozen=True, kw_only=True):
    """A bucket, or the objects below a prefix of it. `endpoint`: the operator's name of a server; None: the only one.
    `secret`: the name of a secret of the sandbox with the value KEY_ID:KEY; None: the bucket is public."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    secret: str | None = None

    @property
    def url(self) -> str:
        prefix = f"/{self.prefix}" if self.prefix else ""
        query = urlencode({key: value for key in ("endpoint", "secret") if (value := getattr(self, key))})
        return f"{BUCKET_SCHEME}{self.bucket}{prefix}{'?' * bool(query)}{query}"


class VolumeMount(Value, frozen=True, kw_only=True):
    """A volume in a sandbox. `volume`: its ID; None: the operator's directory with this name, or `bucket`."""

    path: str
    name: str
    volume: str | None = None
    read_only: bool = False
    bucket: BucketForm | None = None

    @property
    def word(self) -> str:
        listed = self.volume is None and self.bucket is None
        return f"{'@' * listed}{self.name}{READ_ONLY * self.read_only}"


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


class EndpointForm(Value, frozen=True, kw_only=True):
    """[buckets.NAME] in the operator's file: a server of object storage with buckets for sandboxes. `url` None: the
    service of `provider`, like AWS. `provider`: as rclone names it. `timeout`: how long the server may be silent; a
    program inside gets an error after a few times that long."""

    url: str | None = None
    region: str | None = None
    provider: str = "Other"
    timeout: str = "10s"

    def __post_init__(self) -> None:
        if self.url is None and self.provider == "Other":
            raise InvalidRequest("url: it is missing", hint='like url = "https://minio.example.com:9000"')
        if self.url is not None:
            check_line("url", self.url)
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise InvalidRequest(
                    f"url: {self.url[:80]!r} is not the address of a server", hint="https://HOST[:PORT]"
                )
        if not 1 <= (parse_span(self.timeout, "timeout") or 0) <= 300:
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="1s to 5m")
        for name, text in (("region", self.region), ("provider", self.provider)):
            if text is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,40}", text):
                raise InvalidRequest(f"{name}: {text[:40]!r} is not a name")


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
    if name.startswith(BUCKET_SCHEME):
        bucket = parse_bucket(name)
        return VolumeMount(path=path, name=bucket.url, read_only=read_only, bucket=bucket)
    listed = name.startswith("@")
    name = name.removeprefix("@")
    if not NAME.fullmatch(name):
        raise InvalidRequest(f"volumes: {word[:80]!r} is not the name of a volume", hint=_NAME_HINT)
    return VolumeMount(path=path, name=name, volume=None if listed else "", read_only=read_only)


def parse_bucket(url: str) -> BucketForm:
    """Return a bucket from its URL: s3://BUCKET[/PREFIX][?endpoint=NAME][&secret=NAME]."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    try:
        pairs = parse_qsl(parts.query, strict_parsing=True, keep_blank_values=True) if parts.query else []
    except ValueError:
        raise InvalidRequest(f"volumes: {url[:80]!r} is not a bucket", hint=_BUCKET_HINT) from None
    query = dict(pairs)
    if (
        not url.isprintable()  # urlsplit drops line ends
        or not _BUCKET.fullmatch(parts.netloc)
        or ".." in parts.netloc
        or (prefix and not _PREFIX.fullmatch(prefix))
        or any(part in (".", "..") for part in prefix.split("/"))
        or parts.fragment
        or len(query) < len(pairs)
        or not query.keys() <= {"endpoint", "secret"}
        or not all(NAME.fullmatch(query[key]) for key in query.keys() & {"endpoint"})
        or not all(VARIABLE.fullmatch(query[key]) for key in query.keys() & {"secret"})
    ):
        raise InvalidRequest(f"volumes: {url[:80]!r} is not a bucket", hint=_BUCKET_HINT)
    return BucketForm(bucket=parts.netloc, prefix=prefix, **query)


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
