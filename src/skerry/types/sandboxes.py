"""Sandboxes and their saved states: snapshots, differences, forks, rollback, archives; the pool of ready sandboxes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from skerry.errors import InvalidRequest
from skerry.types.budgets import Budget
from skerry.types.host import ImageInfo
from skerry.types.network import MAX_SECRETS, Network, SecretForm, SecretValue
from skerry.types.usage import Usage
from skerry.types.values import (
    MAX_ENV,
    Answer,
    Value,
    check_env,
    check_labels,
    check_line,
    check_name,
    check_path,
    check_port,
    check_text,
    check_user,
    parse_clock,
    parse_lifetime,
    parse_size,
    parse_span,
)
from skerry.types.volumes import parse_volumes

State = Literal["creating", "running", "paused", "stopped", "failed"]
STATES: tuple[str, ...] = get_args(State)


class Limits(Value, frozen=True, kw_only=True):
    """The resources of a sandbox. Defaults: 1 CPU, 2 GiB of memory, 5 GiB of disk, 512 processes, 65,536 open files,
    unless the operator set others."""

    cpus: float | None = None
    memory: str | int | None = None
    disk: str | int | None = None
    pids: int | None = None
    open_files: int | None = None

    def __post_init__(self) -> None:
        if self.cpus is not None and not (math.isfinite(self.cpus) and 0.01 <= self.cpus <= 4096):
            raise InvalidRequest(f"limits.cpus: {self.cpus!r} is out of range", hint="between 0.01 and 4096")
        if self.memory is not None and parse_size(self.memory, "limits.memory") < 16 << 20:
            raise InvalidRequest(f"limits.memory: {self.memory!r} is too little", hint="at least 16M")
        if self.disk is not None and parse_size(self.disk, "limits.disk") < 1 << 20:
            raise InvalidRequest(f"limits.disk: {self.disk!r} is too little", hint="at least 1M")
        if self.pids is not None and not 64 <= self.pids <= 1 << 22:  # includes the keeper's threads
            raise InvalidRequest(f"limits.pids: {self.pids!r} is out of range", hint="between 64 and 4194304")
        if self.open_files is not None and not 64 <= self.open_files <= 1 << 30:
            raise InvalidRequest(f"limits.open_files: {self.open_files!r} is out of range", hint="at least 64")

    @classmethod
    def size(cls, name: str) -> Limits:
        """Return a named size: "small" (½ CPU, 512M), "medium" (1 CPU, 2G), "large" (4 CPUs, 8G)."""
        if name not in SIZES:
            raise InvalidRequest(f"unknown size {name!r}", hint=f"one of {', '.join(SIZES)}")
        return SIZES[name]

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory or DEFAULT_LIMITS.memory or 0, "limits.memory")

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk or DEFAULT_LIMITS.disk or 0, "limits.disk")


DEFAULT_LIMITS = Limits(cpus=1, memory="2G", disk="5G", pids=512, open_files=65536)
SIZES = {
    "small": Limits(cpus=0.5, memory="512M", disk="2G", pids=256),
    "medium": Limits(cpus=1, memory="2G", disk="5G", pids=512),
    "large": Limits(cpus=4, memory="8G", disk="20G", pids=2048),
}


START_ID = "on-start-"  # the IDs of processes of `on_start` commands begin with this
MAX_START_COMMANDS = 16
MAX_READY_TIMEOUT_S = 3600.0
_READY_URL = re.compile(r"http://(?:localhost|127\.0\.0\.1):([0-9]{1,5})(/[!-~]{0,1023})?")


@dataclass(frozen=True)
class ReadyPort:
    """A program listens on the port; with a path, HTTP returns a status below 500."""

    port: int
    path: str | None = None

    def __str__(self) -> str:
        return f"port {self.port}" if self.path is None else f"http://localhost:{self.port}{self.path}"


@dataclass(frozen=True)
class ReadyCommand:
    """A shell line that succeeds."""

    command: str

    def __str__(self) -> str:
        return f"`{self.command[:200]}`"


def parse_ready(ready: str | int | None) -> ReadyPort | ReadyCommand | None:
    """Parse a port, an `http://localhost:PORT/PATH`, or a shell line; None and an empty text are no condition."""
    if ready is None or ready == "":
        return None
    if isinstance(ready, int) or ready.isdecimal():
        try:
            check_port(int(ready))
        except InvalidRequest as error:
            raise InvalidRequest(f"ready: {error.message.removeprefix('port: ')}", hint=error.hint) from None
        return ReadyPort(int(ready))
    if not ready.startswith(("http://", "https://")):
        check_text("ready", ready)
        return ReadyCommand(ready)
    if (found := _READY_URL.fullmatch(ready)) is None or not 0 < int(found[1]) < 1 << 16:
        raise InvalidRequest(f"ready: {ready[:80]!r} is not allowed", hint="like http://localhost:8000/health")
    return ReadyPort(int(found[1]), found[2] or "/")


class Lifecycle(Value, frozen=True, kw_only=True):
    """The automatic start and end of a sandbox. Idle: no call, no process, no terminal, no traffic. A time may be
    "never".

    `on_start`: shell lines that are started in the background at each start and resume. `ready`: the condition for
    which starts wait, at most `ready_timeout` (60 s): a port, `http://localhost:PORT/PATH`, or a shell line that
    succeeds. Empty values remove them."""

    idle_timeout: str | int | float | None = None
    max_lifetime: str | int | float | None = None
    on_idle: Literal["pause", "stop", "delete"] | None = None
    auto_resume: bool | None = None
    on_start: tuple[str, ...] | None = None
    ready: str | int | None = None
    ready_timeout: str | int | float | None = None

    def __post_init__(self) -> None:
        if self.idle_timeout is not None:
            parse_lifetime(self.idle_timeout, "lifecycle.idle_timeout")
        if self.max_lifetime is not None:
            parse_lifetime(self.max_lifetime, "lifecycle.max_lifetime")
        _check_start(self.on_start)
        parse_ready(self.ready)
        if self.ready_timeout is not None and not 0 < parse_span(self.ready_timeout, "ready_timeout") <= (
            MAX_READY_TIMEOUT_S
        ):
            raise InvalidRequest(f"ready_timeout: {self.ready_timeout!r} is out of range", hint="at most 1h")

    @property
    def starts_commands(self) -> bool:
        """Return whether a start has commands to run or a condition to wait for."""
        return bool(self.on_start) or parse_ready(self.ready) is not None


def _check_start(commands: tuple[str, ...] | None) -> None:
    if isinstance(commands, str):
        raise InvalidRequest("on_start: a text is not a list of commands", hint='on_start=["npm run dev"]')
    if len(commands or ()) > MAX_START_COMMANDS:
        raise InvalidRequest(f"on_start: more than {MAX_START_COMMANDS} commands")
    for command in commands or ():
        if not isinstance(command, str) or not command.strip():
            raise InvalidRequest(f"on_start: {command!r} is not a shell line")
        check_text("on_start", command)
        if len(command) > MAX_ENV:
            raise InvalidRequest("on_start: a command is too long", hint="put it into a file")


class Options(Value, frozen=True, kw_only=True):
    """Rarely needed options. `waive_guarantees` names guarantees that this host may lack; `isolation` then shows them.
    `git_name`, `git_email`: the author of commits made inside; a user's configuration inside has precedence.
    `reproducible`: fix the host name, machine id, locale, time zone, hash seed and dates: runs can be repeated.
    `clock` also stops the clock at this time, like "2026-01-01T00:00:00Z".
    `read_only_root`: only /workspace, /tmp, the home directories and volumes can be written, also by root inside.
    `default_session`: `run` runs commands in the session `default`, which keeps the directory and variables."""

    runtime: str | None = None
    use_pool: bool = True
    reproducible: bool = False
    clock: str | None = None
    auto_snapshot: bool = False
    sudo: bool = True
    waive_guarantees: tuple[str, ...] = ()
    git_name: str | None = None
    git_email: str | None = None
    default_session: bool = False
    read_only_root: bool = False

    def __post_init__(self) -> None:
        for name, value in (("options.git_name", self.git_name), ("options.git_email", self.git_email)):
            if value is not None:
                check_line(name, value)
        if self.clock is not None:
            parse_clock(self.clock)
            if not self.reproducible:
                raise InvalidRequest(
                    "options.clock: only a reproducible sandbox has a fixed clock",
                    hint="set reproducible too: Options(reproducible=True, clock=…)",
                )


class CreateRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes. In `env`, null unsets a variable of the image. Without `network`, the operator's default
    applies: no access, unless it was set. `volumes`: by path inside, the name of a volume, like "data" or "data:ro", or
    of a directory that the operator lists, like "@datasets"."""

    image: str = "base"
    name: str | None = None
    env: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    limits: Limits = Limits()
    network: Network | None = None
    secrets: tuple[SecretValue, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    budget: Budget | None = None
    options: Options = Options()
    volumes: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_name(self.name)
        parse_volumes(self.volumes)
        _check_secrets(self.secrets)
        check_env(self.env)
        check_labels(self.labels)


class UpdateRequest(Value, frozen=True, kw_only=True):
    """PATCH /v1/sandboxes/{id}: given fields replace the old ones, in `env`, `limits` and `lifecycle` one by one; in
    `env`, null unsets a variable, also one of the image. An empty `budget` removes the sandbox's budget."""

    limits: Limits | None = None
    env: dict[str, str | None] | None = None
    labels: dict[str, str] | None = None
    lifecycle: Lifecycle | None = None
    budget: Budget | None = None
    secrets: tuple[SecretValue, ...] | None = None

    def __post_init__(self) -> None:
        check_env(self.env or {})
        check_labels(self.labels or {})
        _check_secrets(self.secrets or ())


class RenameRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/rename."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)


def _check_secrets(secrets: tuple[SecretValue, ...]) -> None:
    names = [secret.name for secret in secrets]
    if len(names) > MAX_SECRETS:
        raise InvalidRequest(f"secrets: more than {MAX_SECRETS}")
    if len(set(names)) < len(names):
        raise InvalidRequest("secrets: a name is given twice")


class Isolation(Answer, frozen=True, kw_only=True):
    """The isolation between a sandbox and the host, and the waived guarantees."""

    runtime: str
    runtime_version: str
    guarantees: tuple[str, ...]
    waived: tuple[str, ...] = ()
    details: dict[str, Any] = {}


class SandboxInfo(Answer, frozen=True, kw_only=True):
    """A sandbox as the API shows it."""

    id: str
    state: State
    image: str
    limits: Limits
    lifecycle: Lifecycle
    created_at: float
    name: str | None = None
    reason: str | None = None
    owner: str = "local"
    env: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    network: Network = Network()
    secrets: tuple[SecretForm, ...] = ()
    budget: Budget | None = None
    options: Options = Options()
    isolation: Isolation | None = None
    volumes: dict[str, str] = {}
    image_digest: str | None = None
    started_at: float | None = None
    ends_at: float | None = None


class SandboxList(Answer, frozen=True, kw_only=True):
    sandboxes: list[SandboxInfo]


class SandboxStats(Answer, frozen=True, kw_only=True):
    """The current resource usage of a sandbox, with its limits. `at`: the time of the measurement. `sent` and
    `received`: bytes to and from other hosts since the sandbox was created."""

    id: str
    state: State
    at: float
    usage: Usage
    limits: Limits
    name: str | None = None
    sent: int = 0
    received: int = 0


class SandboxStatsList(Answer, frozen=True, kw_only=True):
    sandboxes: list[SandboxStats]


# -- saved states ----------------------------------------------------------------------------------------------------

MAX_FORKS = 100
MAX_POOL = 1000
SNAPSHOT_ID = re.compile(r"sn-[a-z2-7]{10}")


class SnapshotInfo(Answer, frozen=True, kw_only=True):
    """The files of a sandbox at one moment. Usable wherever an image is, by its id or name.

    `own` is its disk space beyond the layers below it; None: not known yet. `sync_s` and `frozen_s`: the time to write
    out pending data, and the time that the sandbox was frozen. `unit`: the tree that the snapshot was taken of; a
    rollback gives a sandbox another tree. `step` numbers the snapshots before each command
    (`Options(auto_snapshot=True)`). `path`: it holds this directory only, and is restored into a sandbox instead of
    being used as an image. `expires_at`: it is removed then, or when nothing needs it any more."""

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
    path: str | None = None
    expires_at: float | None = None
    sync_s: float | None = None
    frozen_s: float | None = None
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


class SnapshotList(Answer, frozen=True, kw_only=True):
    snapshots: list[SnapshotInfo]


class SnapshotRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/snapshots. `key`: identifies a step of a build, which needs no name; an existing snapshot
    of that key is returned, unless `replace`: then the new one takes the key. The other fields override the image's
    defaults for sandboxes that start from it; `env` is added to the image's. `path`: of this directory only, absolute
    or relative to the sandbox's working directory. `ttl`: remove it after this time, once nothing needs it."""

    name: str | None = None
    path: str | None = None
    ttl: str | int | float | None = None
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
            raise InvalidRequest(f"name: {self.name!r} is not allowed", hint="it looks like a snapshot's id")
        if self.path is not None:
            check_path("path", self.path)
            check_text("path", self.path)
            if self.key is not None or any((self.env, self.user, self.cwd, self.entrypoint, self.cmd)):
                raise InvalidRequest("path: a snapshot of a directory is no image", hint="only with name and ttl")
        if self.ttl is not None and parse_span(self.ttl, "ttl") <= 0:
            raise InvalidRequest(f"ttl: {self.ttl!r} is out of range", hint='like "7d"')
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
    if len(words) > 1024 or sum(map(len, words)) > MAX_ENV:
        raise InvalidRequest("entrypoint and cmd: too long")


class RollbackRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/rollback: to a snapshot, or a number of commands back."""

    snapshot: str | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.snapshot is None) == (self.steps is None):
            raise InvalidRequest("rollback: name a snapshot or a number of steps, and not both")
        if self.steps is not None and self.steps < 1:
            raise InvalidRequest(f"steps: {self.steps!r} is not a whole number above 0")


class ForkRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/fork. A `name` is for a single fork."""

    n: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name is not None and self.n != 1:
            raise InvalidRequest("name: only a single fork can have a name", hint="leave n or the name out")
        if not 1 <= self.n <= MAX_FORKS:
            raise InvalidRequest(f"n: {self.n!r} is out of range", hint=f"between 1 and {MAX_FORKS}")


class SnapshotChange(Answer, frozen=True, kw_only=True):
    """A path that differs between two states; `type` is its present type, or the former type of a deleted path. Paths
    that are not UTF-8 are encoded as in `FileInfo`."""

    path: str
    kind: Literal["added", "modified", "deleted"]
    type: Literal["file", "directory", "link", "other"] = "file"
    raw_path: bytes | None = None


class SnapshotDiff(Answer, frozen=True, kw_only=True):
    """Parents before their content, names in byte order; iterable as a list. `truncated`: the list is incomplete."""

    changes: tuple[SnapshotChange, ...]
    truncated: bool = False

    def __iter__(self) -> Iterator[SnapshotChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


class ImportedSnapshot(Answer, frozen=True, kw_only=True):
    """`notices`: parts of the archive that were skipped, with the reason."""

    snapshot: SnapshotInfo
    notices: tuple[str, ...] = ()


class ImportedImage(Answer, frozen=True, kw_only=True):
    """An imported image; `notices` as for a snapshot."""

    image: ImageInfo
    notices: tuple[str, ...] = ()


class PoolImage(Answer, frozen=True, kw_only=True):
    """The ready sandboxes of one image. `hits` and `misses`: creates since the server's start with and without a ready
    sandbox."""

    image: str
    size: int
    ready: int
    making: int = 0
    hits: int = 0
    misses: int = 0


class PoolRequest(Value, frozen=True, kw_only=True):
    """PUT /v1/pool: the number of ready sandboxes of an image, until the server stops."""

    image: str
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_POOL:
            raise InvalidRequest(f"size: {self.size!r} is out of range", hint=f"between 0 and {MAX_POOL}")


class PoolInfo(Answer, frozen=True, kw_only=True):
    """`paused`: the reason why none is being prepared (low memory, disabled)."""

    size: int
    images: tuple[PoolImage, ...] = ()
    paused: str | None = None
