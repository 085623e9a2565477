"""What host and keeper tell each other. What comes from the keeper is bounded here, value by value."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skerry.types import FileType, real_path

PROTOCOL = 1

Pid = Annotated[int, Meta(ge=0, le=1 << 22)]
Id = Annotated[int, Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 53)]
Cgroup = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signal = Annotated[str, Meta(pattern="^[A-Z0-9]{1,8}$")]
Code = Annotated[int, Meta(ge=0, le=255)]
OFFSET_MOST = 1 << 53
PROCESSES_MOST = 4096
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MOST)]
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
    max_rss: Bytes
    left: Annotated[tuple[Pid, ...], Meta(max_length=1024)]

    def __post_init__(self) -> None:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("one of exit_code and signal")


class Started(_Said, frozen=True, kw_only=True):
    """`cgroup`: the kernel's number of the cgroup in which it and all that it starts are; 0: it has none of its own."""

    pid: Pid
    cgroup: Cgroup = 0


class Gap(_Said, frozen=True, kw_only=True):
    """So many bytes of output were dropped before they could be read."""

    missing: Annotated[int, Meta(gt=0, le=OFFSET_MOST)]


class Opened(_Said, frozen=True, kw_only=True):
    """An output's first frame: where the byte that follows stands."""

    pid: Pid
    offset: Offset


class Paused(_Said, frozen=True, kw_only=True):
    """An output's last frame, if it is not the process's last: where to go on, and whether there is more already."""

    offset: Offset
    more: bool


class Process(_Said, frozen=True, kw_only=True):
    """A process as the keeper lists it. Its output is kept from byte `kept_from` up to byte `offset`."""

    id: Annotated[str, Meta(max_length=64)]
    argv: list[str] | None
    shell: str | None
    pid: Pid
    user: Text
    session: Text | None
    detach: bool
    pty: bool
    channel: bool = False
    state: Literal["running", "exited"]
    started_at: Seconds
    ended_at: Seconds | None
    duration_s: Seconds
    cpu_s: Seconds
    max_rss: Bytes
    exit_code: Code | None
    signal: Signal | None
    timed_out: bool
    children: Annotated[tuple[Pid, ...], Meta(max_length=1024)]
    kept_from: Offset
    offset: Offset
    cgroup: Cgroup = 0

    def __post_init__(self) -> None:
        ended = (self.ended_at is not None, (self.exit_code is None) != (self.signal is None))
        if ended != (self.state == "exited",) * 2 or self.kept_from > self.offset:
            raise ValueError("a process that runs and has ended, or whose output begins after its end")


class TurnBegun(_Said, frozen=True, kw_only=True):
    """A turn's first frame: where its output begins, and the time (ns) that what it changes is not older than."""

    pid: Pid
    cgroup: Cgroup
    offset: Offset
    clock: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class TurnUsage(_Said, frozen=True, kw_only=True):
    """What a turn took: the processor time of all that the process started, the most memory that itself had."""

    cpu_s: Seconds
    max_rss: Bytes
    duration_s: Seconds


class Nothing(_Said, frozen=True, kw_only=True):
    pass


class Processes(_Said, frozen=True, kw_only=True):
    processes: Annotated[list[Process], Meta(max_length=PROCESSES_MOST)]


class EventsHello(_Said, frozen=True, kw_only=True, tag="hello", tag_field="type"):
    """The first line of a keeper's events: the last event's number and how many processes ran after it. `lost`: not all
    events after the one that was asked for are known."""

    seq: Offset
    running: Annotated[int, Meta(ge=0, le=PROCESSES_MOST)]
    lost: bool


class ProcessEvent(_Said, frozen=True, kw_only=True):
    """A process started or ended."""

    seq: Offset
    at: Seconds
    type: Literal["process_started", "process_ended"]
    process: Process

    def __post_init__(self) -> None:
        if (self.process.state == "exited") != (self.type == "process_ended"):
            raise ValueError("an event that does not fit its process")


class PortState(_Said, frozen=True, kw_only=True):
    """Whether a port is open; if not, what was seen last. `status`: of the HTTP answer, if there was one."""

    open: bool
    status: Annotated[int, Meta(ge=100, le=599)] | None
    last: Annotated[str, Meta(max_length=256)]


class Failure(_Said, frozen=True, kw_only=True):
    code: Annotated[str, Meta(pattern="^[a-z_]{1,40}$")]
    message: Annotated[str, Meta(max_length=16384)]
    errno: Annotated[int, Meta(ge=0, le=4095)] = 0
    path: Annotated[str, Meta(max_length=16384)] | None = None
    details: dict[Annotated[str, Meta(max_length=40)], int | Annotated[list[int], Meta(max_length=100)]] | None = None


class Failed(_Said, frozen=True, kw_only=True):
    error: Failure


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Of a terminal, in characters."""

    cols: int
    rows: int


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command to start: `argv` or a `shell` line. In `env`, None unsets. `journal`: bytes of output to keep, 0 as
    configured. `show`: what lists show instead of the command. `pty`: stdin, stdout and stderr are a terminal.
    `channel`: fd 3 is one, for turns; of what is spawned alone. `detach` is for the keeper's client to say."""

    id: str
    argv: list[str] | None = None
    shell: str | None = None
    env: dict[str, str | None] = {}
    cwd: str | None = None
    user: str | None = None
    stdin: Literal["none", "pipe"] = "none"
    timeout_s: float | None = None
    detach: bool = False
    journal: int = 0
    show: str | None = None
    session: str | None = None
    pty: Size | None = None
    channel: bool = False


def check_below(path: str) -> None:
    """A path that stays below the directory that it begins at."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("an entry that is no entry")


class File(_Said, frozen=True, kw_only=True):
    """A file as the keeper describes it; where it is, is the host's own knowledge. In a listing of several levels
    `path` is the way from its top. `raw` has the bytes of the path, or else of the name, where they are not UTF-8."""

    name: Annotated[str, Meta(pattern=r"\A[^/\x00]+\Z", max_length=1024)]
    type: FileType
    size: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    uid: Id
    gid: Id
    mtime: Annotated[float, Meta(ge=-1e12, le=1e12)]
    target: Annotated[str, Meta(max_length=16384)] | None
    path: Annotated[str, Meta(max_length=256 << 10)] | None = None
    raw: Annotated[bytes, Meta(max_length=256 << 10)] | None = None
    raw_target: Annotated[bytes, Meta(max_length=4096)] | None = None

    @property
    def below(self) -> str:
        """Its way from the directory that was listed."""
        return real_path(self.path or self.name, self.raw)


class Listing(_Said, frozen=True, kw_only=True):
    entries: Annotated[list[File], Meta(max_length=100_000)]
    more: bool
    skipped: Annotated[int, Meta(ge=0, le=1 << 53)] = 0

    def __post_init__(self) -> None:
        for entry in self.entries:
            check_below(entry.below)


class Lines(_Said, frozen=True, kw_only=True):
    """Lines of a file as one text; `raw` are its bytes where they are not UTF-8."""

    text: Annotated[str, Meta(max_length=2 << 20)]
    start: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    count: Annotated[int, Meta(ge=0, le=2 << 20)]
    more: bool
    cut: bool
    raw: Annotated[bytes, Meta(max_length=2 << 20)] | None = None

    def __post_init__(self) -> None:
        if self.count and self.text.count("\n") != self.count - 1:
            raise ValueError("another number of lines")


class Found(_Said, frozen=True, kw_only=True):
    """A line that was found; `path` is empty for a file that was named itself."""

    path: Annotated[str, Meta(max_length=256 << 10)]
    line: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    text: Text
    cut: bool
    before: Annotated[tuple[Text, ...], Meta(max_length=100)]
    after: Annotated[tuple[Text, ...], Meta(max_length=100)]
    raw: Annotated[bytes, Meta(max_length=256 << 10)] | None = None

    @property
    def below(self) -> str:
        return real_path(self.path, self.raw)

    def __post_init__(self) -> None:
        if self.below:
            check_below(self.below)


class Search(_Said, frozen=True, kw_only=True):
    matches: Annotated[list[Found], Meta(max_length=10_000)]
    more: bool
    searched: Annotated[int, Meta(ge=0, le=1 << 53)]
    skipped: Annotated[int, Meta(ge=0, le=1 << 53)]


class Replaced(_Said, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=1 << 53)]
    lines: Annotated[tuple[int, ...], Meta(max_length=20)]


class PatchedFile(_Said, frozen=True, kw_only=True):
    """`path` is empty for a file that was named itself."""

    path: Annotated[str, Meta(max_length=16384)]
    action: Literal["created", "changed", "deleted"]
    added: Annotated[int, Meta(ge=0, le=1 << 31)]
    removed: Annotated[int, Meta(ge=0, le=1 << 31)]
    offsets: Annotated[tuple[int, ...], Meta(max_length=100_000)]
    raw: Annotated[bytes, Meta(max_length=16384)] | None = None

    @property
    def below(self) -> str:
        return real_path(self.path, self.raw)

    def __post_init__(self) -> None:
        if self.below:
            check_below(self.below)


class Patched(_Said, frozen=True, kw_only=True):
    files: Annotated[list[PatchedFile], Meta(max_length=1000)]


class Checksum(_Said, frozen=True, kw_only=True):
    checksum: Annotated[str, Meta(pattern="^[0-9a-f]{32,128}$")]
