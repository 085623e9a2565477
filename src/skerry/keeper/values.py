"""What host and keeper tell each other. What comes from the keeper is bounded here, value by value."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skerry.types import FileType

PROTOCOL = 1

Pid = Annotated[int, Meta(ge=0, le=1 << 22)]
Id = Annotated[int, Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Signal = Annotated[str, Meta(pattern="^[A-Z0-9]{1,8}$")]
Code = Annotated[int, Meta(ge=0, le=255)]
Text = Annotated[str, Meta(max_length=4096)]


class _Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that came from a keeper."""


class Account(_Said, frozen=True, kw_only=True):
    name: Text
    uid: Id
    gid: Id
    home: Text


class Hello(_Said, frozen=True, kw_only=True):
    """Who the keeper is. `shell` and `user` are known after configure; shell "" means that there is none."""

    build: Annotated[str, Meta(max_length=128)]
    protocol: int
    uptime_s: Seconds = 0.0
    processes: Annotated[int, Meta(ge=0, le=1 << 22)] = 0
    shell: Text = ""
    user: Account | None = None


class ExitStatus(_Said, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is None exactly when a signal ended it; `left` are pids that outlived it."""

    exit_code: Code | None
    signal: Signal | None
    timed_out: bool
    duration_s: Seconds
    cpu_s: Seconds
    max_rss: Annotated[int, Meta(ge=0, lt=1 << 53)]
    left: Annotated[tuple[Pid, ...], Meta(max_length=1024)]

    def __post_init__(self) -> None:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("one of exit_code and signal")


class Started(_Said, frozen=True, kw_only=True):
    pid: Pid


class Process(_Said, frozen=True, kw_only=True):
    """A process as the keeper lists it."""

    id: Annotated[str, Meta(max_length=64)]
    argv: list[str] | None
    shell: str | None
    pid: Pid
    user: Text
    state: Literal["running", "exited"]
    started_at: Seconds
    exit_code: Code | None
    signal: Signal | None
    timed_out: bool
    children: Annotated[tuple[Pid, ...], Meta(max_length=1024)]


class Processes(_Said, frozen=True, kw_only=True):
    processes: Annotated[list[Process], Meta(max_length=4096)]


class Failure(_Said, frozen=True, kw_only=True):
    code: Annotated[str, Meta(pattern="^[a-z_]{1,40}$")]
    message: Annotated[str, Meta(max_length=16384)]
    errno: Annotated[int, Meta(ge=0, le=4095)] = 0
    path: Annotated[str, Meta(max_length=16384)] | None = None


class Failed(_Said, frozen=True, kw_only=True):
    error: Failure


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command to start: `argv` or a `shell` line. In `env`, None unsets. `detach`: it outlives its connection."""

    id: str
    argv: list[str] | None = None
    shell: str | None = None
    env: dict[str, str | None] = {}
    cwd: str | None = None
    user: str | None = None
    stdin: Literal["none", "pipe"] = "none"
    timeout_s: float | None = None
    detach: bool = False


class File(_Said, frozen=True, kw_only=True):
    """A file as the keeper describes it; its path is the host's own knowledge."""

    name: Annotated[str, Meta(pattern=r"\A[^/\x00]+\Z", max_length=1024)]
    type: FileType
    size: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    uid: Id
    gid: Id
    mtime: Annotated[float, Meta(ge=-1e12, le=1e12)]
    target: Annotated[str, Meta(max_length=16384)] | None


class Listing(_Said, frozen=True, kw_only=True):
    entries: Annotated[list[File], Meta(max_length=100_000)]
    more: bool

    def __post_init__(self) -> None:
        if any(entry.name in (".", "..") for entry in self.entries):
            raise ValueError("an entry that is no entry")
