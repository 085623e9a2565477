"""State as a thing of its own: snapshots, what changed between two, forks, rollback; the pool of ready sandboxes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from skerry.errors import InvalidRequest
from skerry.types.host import ImageInfo
from skerry.types.values import ENV_MOST, Answer, Value, check_env, check_name, check_path, check_text, check_user

FORKS_MOST = 100
POOL_MOST = 1000
SNAPSHOT_ID = re.compile(r"sn-[a-z2-7]{10}")


class SnapshotInfo(Answer, frozen=True, kw_only=True):
    """A sandbox's files as they were at one moment. Usable wherever an image is, by its id or its name.

    `own` is what it takes on disk beyond the layers that it stands on; None: not told yet. `sync_s` and `frozen_s`: how
    long writing out what was unwritten took before, and how long the sandbox stood still. `unit`: the tree that it was
    taken of; a rollback gives a sandbox another one. `step` numbers those that
    were taken before each command (`Options(auto_snapshot=True)`).
    """

    id: str
    digest: str
    layers: tuple[str, ...]
    created_at: float
    name: str | None = None
    owner: str = "local"
    kind: Literal["kept", "auto", "build"] = "kept"
    sandbox: str | None = None
    image: str | None = None
    unit: str | None = None
    step: int | None = None
    own: int | None = None
    sync_s: float | None = None
    frozen_s: float | None = None
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


class SnapshotRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/snapshots. `key`: a step of a build, found again by it; such ones need no name; one
    that is known is given as it is, unless `replace`: then this one is found by it from now on. The rest is what a
    start from it goes by where that is to differ from the sandbox's image; `env` is added to that one's."""

    name: str | None = None
    key: str | None = None
    env: dict[str, str] | None = None
    user: str | None = None
    cwd: str | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name is not None and SNAPSHOT_ID.fullmatch(self.name):
            raise InvalidRequest(f"name: {self.name!r} can't be used", hint="it looks like a snapshot's id")
        check_env(self.env or {})
        check_user(self.user)
        if self.cwd is not None:
            check_path("cwd", self.cwd)
        for words in (self.entrypoint, self.cmd):
            _check_words(words or ())
        if self.key is not None and not (0 < len(self.key) <= 128 and self.key.isascii() and self.key.isalnum()):
            raise InvalidRequest("key: not letters and digits, at most 128")


def _check_words(words: tuple[str, ...]) -> None:
    check_text("entrypoint and cmd", *words)
    if len(words) > 1024 or sum(map(len, words)) > ENV_MOST:
        raise InvalidRequest("entrypoint and cmd: too long")


class RollbackRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/rollback: to a snapshot, or so many commands back."""

    snapshot: str | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) == (self.steps is None):
            raise InvalidRequest("rollback: name a snapshot or a number of steps, and not both")
        if self.steps is not None and self.steps < 1:
            raise InvalidRequest(f"steps: {self.steps!r} is not a whole number above 0")


class ForkRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/fork."""

    n: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.n <= FORKS_MOST:
            raise InvalidRequest(f"n: {self.n!r} is out of range", hint=f"between 1 and {FORKS_MOST}")


class Change(Answer, frozen=True, kw_only=True):
    """One path that differs between two points; `type` is what is there, of a deleted one what was. A path that is not
    UTF-8 is told as files' paths are."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    type: Literal["file", "directory", "link", "other"] = "file"
    raw_path: bytes | None = None


class Changes(Answer, frozen=True, kw_only=True):
    """Parents before what is in them, names in byte order; to be gone through as a list. `truncated`: there are more
    than were told."""

    changes: tuple[Change, ...]
    truncated: bool = False

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


class ImportedSnapshot(Answer, frozen=True, kw_only=True):
    """`notices`: what of the archive was left out, and why."""

    snapshot: SnapshotInfo
    notices: tuple[str, ...] = ()


class ImportedImage(Answer, frozen=True, kw_only=True):
    """The same of an image."""

    image: ImageInfo
    notices: tuple[str, ...] = ()


class PoolImage(Answer, frozen=True, kw_only=True):
    """The ready sandboxes of one image. `hits` and `misses`: creates since the server began that found one, or none."""

    image: str
    wanted: int
    ready: int
    making: int = 0
    hits: int = 0
    misses: int = 0


class PoolRequest(Value, frozen=True, kw_only=True):
    """PUT /v1/pool: how many ready sandboxes there are to be of an image, as long as this server runs."""

    image: str
    wanted: int

    def __post_init__(self) -> None:
        if not 0 <= self.wanted <= POOL_MOST:
            raise InvalidRequest(f"wanted: {self.wanted!r} is out of range", hint=f"between 0 and {POOL_MOST}")


class PoolInfo(Answer, frozen=True, kw_only=True):
    """`paused`: why none is being made now (short of memory, off)."""

    size: int
    images: tuple[PoolImage, ...] = ()
    paused: str | None = None
