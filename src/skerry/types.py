"""The values that cross every border: SDK, HTTP, engine. Frozen; strict when decoded (an unknown field is refused).

A field that is None was not asked for: the operator's default applies, and what came of it is in `SandboxInfo`.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, get_args

import msgspec

from skerry.errors import InvalidRequest

State = Literal["creating", "running", "paused", "stopped", "failed"]
STATES: tuple[str, ...] = get_args(State)
Scope = Literal["use", "review", "admin"]
FileType = Literal["file", "directory", "link", "fifo", "socket", "device", "other"]

OUTPUT_KEPT = 1 << 20  # bytes of a stream that a result keeps: half of it the head, half the tail
ENV_MOST = 128 << 10  # bytes of a sandbox's or a command's variables; Linux takes no more in any single one
WORDS_MOST = 1 << 16
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
SANDBOX_ID = re.compile(r"sb-[a-z2-7]{10}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: str | int, what: str = "size") -> int:
    """Bytes from 1048576, "512M", "2G", "1.5GiB"; units are powers of 1024."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidRequest(f"{what}: {value!r} is not a size", hint='write it like "512M" or "2G"')
    if isinstance(value, int):
        number = value
    else:
        match = _SIZE.fullmatch(value.strip()) if len(value) < 40 else None
        if match is None:
            raise InvalidRequest(f"{what}: {value[:60]!r} is not a size", hint='write it like "512M" or "2G"')
        number = int(float(match[1]) * _SIZE_UNITS[match[2].upper()])
    if not 0 < number < 1 << 53:
        raise InvalidRequest(f"{what}: {value!r} is out of range", hint='write it like "512M" or "2G"')
    return number


def parse_span(value: str | int | float, what: str = "time") -> float:
    """Seconds from 90, "90", "15m", "24h", "500ms"."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidRequest(f"{what}: {value!r} is not a time", hint='write it like "90s", "15m" or "24h"')
    if isinstance(value, str):
        match = _SPAN.fullmatch(value.strip()) if len(value) < 40 else None
        if match is None:
            raise InvalidRequest(f"{what}: {value[:60]!r} is not a time", hint='write it like "90s", "15m" or "24h"')
        seconds = float(match[1]) * _SPAN_UNITS[(match[2] or "s").lower()]
    else:
        seconds = float(value) if abs(value) < 1e9 else math.inf  # an int may be too long for a float
    if not (math.isfinite(seconds) and 0 < seconds < 1e9):
        raise InvalidRequest(f"{what}: {value!r} is out of range", hint='write it like "90s", "15m" or "24h"')
    return seconds


def format_size(number: int) -> str:
    """The shortest form that `parse_size` reads back exactly: 2147483648 → "2G"."""
    for unit in ("T", "G", "M", "K"):
        if number >= _SIZE_UNITS[unit] and number % _SIZE_UNITS[unit] == 0:
            return f"{number // _SIZE_UNITS[unit]}{unit}"
    return str(number)


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A strict, immutable value."""


class Answer(Value, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False):
    """A value that the server gives: every field is there, also an empty one. A client takes one with more fields, so
    that it can talk to a newer server."""


class Limits(Value, frozen=True, kw_only=True):
    """What a sandbox may use. Left out: 1 CPU, 2 GiB of memory, 5 GiB of disk, 512 processes, 65,536 open files,
    unless the operator set other defaults."""

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
        if self.pids is not None and not 64 <= self.pids <= 1 << 22:  # the keeper's own threads are among them
            raise InvalidRequest(f"limits.pids: {self.pids!r} is out of range", hint="between 64 and 4194304")
        if self.open_files is not None and not 64 <= self.open_files <= 1 << 30:
            raise InvalidRequest(f"limits.open_files: {self.open_files!r} is out of range", hint="at least 64")

    @classmethod
    def size(cls, name: str) -> Limits:
        """A named size: "small" (½ CPU, 512M), "medium" (1 CPU, 2G), "large" (4 CPUs, 8G)."""
        if name not in SIZES:
            raise InvalidRequest(f"there is no size {name!r}", hint=f"one of {', '.join(SIZES)}")
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


class Lifecycle(Value, frozen=True, kw_only=True):
    """When a sandbox ends by itself. Idle: no call, no running process, no terminal, no traffic."""

    idle: str | int | float | None = None
    life: str | int | float | None = None
    on_idle: Literal["pause", "stop", "delete"] | None = None
    wake: bool | None = None

    def __post_init__(self) -> None:
        if self.idle is not None:
            parse_span(self.idle, "lifecycle.idle")
        if self.life is not None:
            parse_span(self.life, "lifecycle.life")


class Network(Value, frozen=True, kw_only=True):
    """What may leave a sandbox. Nothing, unless it is named here."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    peers: dict[str, str] = {}
    on_unknown: Literal["deny", "ask", "learn"] = "deny"

    @classmethod
    def open(cls) -> Network:
        return cls(allow=("*",))

    @property
    def closed(self) -> bool:
        return not (self.allow or self.presets or self.peers or self.on_unknown != "deny")


class Options(Value, frozen=True, kw_only=True):
    """Rarely needed switches. `waive` names guarantees that this host may lack; `isolation` then shows them."""

    runtime: str | None = None
    pool: bool = True
    reproducible: bool = False
    auto_snapshot: bool = False
    sudo: bool = True
    waive: tuple[str, ...] = ()


class Caller(Value, frozen=True, kw_only=True):
    """Who calls: whose sandboxes these are, and what the token may do."""

    owner: str
    scope: Scope


class CreateRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes."""

    image: str = "base"
    name: str | None = None
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    limits: Limits = Limits()
    network: Network = Network()
    lifecycle: Lifecycle = Lifecycle()
    options: Options = Options()

    def __post_init__(self) -> None:
        check_name(self.name)
        check_env(self.env)
        check_labels(self.labels)


class UpdateRequest(Value, frozen=True, kw_only=True):
    """PATCH /v1/sandboxes/{id}: what is given replaces what was, in `env` and `lifecycle` one by one; in `env`,
    null unsets a variable."""

    env: dict[str, str | None] | None = None
    labels: dict[str, str] | None = None
    lifecycle: Lifecycle | None = None

    def __post_init__(self) -> None:
        check_env(self.env or {})
        check_labels(self.labels or {})


class Isolation(Answer, frozen=True, kw_only=True):
    """What stands between a sandbox and the host, and what was waived."""

    runtime: str
    runtime_version: str
    guarantees: tuple[str, ...]
    waived: tuple[str, ...] = ()
    details: dict[str, Any] = {}


class SandboxInfo(Answer, frozen=True, kw_only=True):
    """One sandbox as the API shows it."""

    id: str
    state: State
    image: str
    limits: Limits
    lifecycle: Lifecycle
    created_at: float
    name: str | None = None
    reason: str | None = None
    owner: str = "local"
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    network: Network = Network()
    options: Options = Options()
    isolation: Isolation | None = None
    image_digest: str | None = None
    started_at: float | None = None
    ends_at: float | None = None


class RunRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/processes. `cmd`: a string is a shell line, a list is an argv.

    stdin: text, or bytes as base64, or (`stdin_stream`) what is sent to …/processes/{id}/stdin afterwards."""

    cmd: str | list[str]
    env: dict[str, str | None] = {}
    cwd: str | None = None
    user: str | None = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    stdin_stream: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        words = [self.cmd] if isinstance(self.cmd, str) else self.cmd
        if not words or not words[0].strip():
            raise InvalidRequest("the command is empty", hint="give a shell line or a list of arguments")
        if len(words) > WORDS_MOST:
            raise InvalidRequest(f"cmd: more than {WORDS_MOST} arguments", hint="put them into a file")
        check_text("cmd", *words)
        check_user(self.user)
        check_env(self.env)
        if self.cwd is not None:
            check_path("cwd", self.cwd)
            if not self.cwd.startswith("/"):
                raise InvalidRequest(f"cwd: {self.cwd[:80]!r} is not absolute", hint="start it with /")
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 < self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds above 0, or none")
        if sum((self.stdin is not None, self.stdin_base64 is not None, self.stdin_stream)) > 1:
            raise InvalidRequest("stdin, stdin_base64 and stdin_stream exclude each other")


class Usage(Answer, frozen=True, kw_only=True):
    """What a command, or a sandbox, used."""

    cpu_s: float = 0.0
    memory_peak: int | None = None
    disk: int | None = None
    pids_peak: int | None = None


class ProcessInfo(Answer, frozen=True, kw_only=True):
    """A process as …/processes lists it. `children`: pids that it left behind and that still live."""

    id: str
    cmd: str | list[str]
    state: Literal["running", "exited"]
    pid: int
    user: str = ""
    started_at: float = 0.0
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    children: tuple[int, ...] = ()


class RunResult(Answer, frozen=True, kw_only=True):
    """How a run ended, on the wire. A stream that is not UTF-8 comes as base64 beside a lossy text."""

    id: str
    exit_code: int | None
    duration_s: float
    stdout: str = ""
    stderr: str = ""
    stdout_base64: bytes | None = None
    stderr_base64: bytes | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool | None = False
    truncated: bool = False
    usage: Usage = Usage()
    hint: str | None = None


class FileInfo(Answer, frozen=True, kw_only=True):
    """One entry of a directory, or one path's stat. Links are not followed; `target` says where one points."""

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None


class ImageInfo(Answer, frozen=True, kw_only=True):
    """An image in the store. `size` is what it takes on disk."""

    name: str
    digest: str
    layers: tuple[str, ...]
    size: int
    created_at: float
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}


class Progress(Answer, frozen=True, kw_only=True):
    """One step of long work. `done` and `total` in bytes or steps; total 0: not known."""

    stage: str
    message: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None


class TokenInfo(Answer, frozen=True, kw_only=True):
    """A token without its secret. `owner` is whose sandboxes it sees."""

    id: str
    scope: Scope
    owner: str
    created_at: float
    note: str = ""
    secret: str | None = None  # only in the answer to its creation


class Check(Answer, frozen=True):
    """One line of `skerry doctor`. `ok` None: it could not be told, or something else would be better."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None


class Result(Value, frozen=True, kw_only=True):
    """How a command ended: `ok` is exit code 0. `denied`, `files` and `cost` are filled by later parts."""

    id: str
    exit_code: int | None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    signal: str | None = None
    duration_s: float = 0.0
    timed_out: bool = False
    oom_killed: bool | None = False
    truncated: bool = False
    usage: Usage = Usage()
    denied: tuple[Any, ...] = ()
    files: tuple[FileInfo, ...] = ()
    cost: float | None = None
    hint: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


def check_text(what: str, *values: str) -> None:
    for value in values:
        if "\0" in value:
            raise InvalidRequest(f"{what}: a NUL byte is not allowed")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{what}: not valid Unicode") from None


def check_path(what: str, path: str) -> None:
    if not path or len(path) > 4096:
        raise InvalidRequest(f"{what}: {'longer than 4,096 characters' if path else 'it is empty'}")
    check_text(what, path)


def check_user(user: str | None) -> None:
    if user is None:
        return
    if not user or len(user) > 256:
        problem = "longer than 256 characters" if user else "it is empty"
        raise InvalidRequest(f"user: {problem}", hint="leave it out for the image's user")
    check_text("user", user)


def check_name(name: str | None) -> None:
    if name is None:
        return
    if not NAME.fullmatch(name) or SANDBOX_ID.fullmatch(name):
        raise InvalidRequest(
            f"name: {name[:80]!r} can't be used",
            hint="1 to 63 characters of a-z, 0-9, '.', '_', '-'; the first and last a letter or digit; not like an id",
        )


def check_env(env: dict[str, str] | dict[str, str | None]) -> None:
    size = 0
    for name, value in env.items():
        shown = name[:80]
        if not name or "=" in name or "\0" in name:
            raise InvalidRequest(f"env: {shown!r} is not a variable's name", hint="no '=', no NUL, not empty")
        check_text(f"env.{shown}", name, value or "")
        size += len(name.encode()) + len((value or "").encode()) + 2
        if size > ENV_MOST:
            raise InvalidRequest(f"env: more than {ENV_MOST >> 10} KiB", hint="put what is large into a file")


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise InvalidRequest("labels: more than 64")
    for key, value in labels.items():
        if not key or "=" in key or len(key) > 128 or len(value) > 1024:
            raise InvalidRequest(f"labels: {key[:140]!r} can't be used", hint="keys to 128, no '='; values to 1,024")
        check_text("labels", key, value)
