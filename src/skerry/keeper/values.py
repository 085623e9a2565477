"""Values that host and keeper exchange. Every value from the keeper is bounded here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skerry.types import FileType, decode_path

# PROTOCOL: the version that this server and its keeper speak. A change that an older keeper would not understand, or
# whose effect the server relies on, is a new version. OLDEST_PROTOCOL: running sandboxes have the keeper that they were
# started with; the server uses keepers from this version on (tests/engine/sandboxes/test_upgrade.py runs one).
PROTOCOL = 1
OLDEST_PROTOCOL = 1

Pid = Annotated[int, Meta(ge=0, le=1 << 22)]
Id = Annotated[int, Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 53)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Cgroup = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signal = Annotated[str, Meta(pattern="^[A-Z0-9]{1,8}$")]
Code = Annotated[int, Meta(ge=0, le=255)]
MAX_OFFSET = 1 << 53
MAX_PROCESSES = 4096
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Text = Annotated[str, Meta(max_length=4096)]


class _KeeperValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value from a keeper."""


class UserAccount(_KeeperValue, frozen=True, kw_only=True):
    name: Text
    uid: Id
    gid: Id
    home: Text


class KeeperHello(_KeeperValue, frozen=True, kw_only=True):
    """The keeper's identity. `shell` and `user` are known after configure; an empty shell means that none exists."""

    build: Annotated[str, Meta(max_length=128)]
    protocol: int
    uptime_s: Seconds = 0.0
    processes: Annotated[int, Meta(ge=0, le=1 << 22)] = 0
    shell: Text = ""
    user: UserAccount | None = None


class ExitStatus(_KeeperValue, frozen=True, kw_only=True):
    """The end of a command. A signal leaves `exit_code` None; `left` are pids that outlived it."""

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


class ProcessStarted(_KeeperValue, frozen=True, kw_only=True):
    """`cgroup`: the kernel's number of the cgroup of the process and its children; 0: it has no separate cgroup."""

    pid: Pid
    cgroup: Cgroup = 0


class JournalGap(_KeeperValue, frozen=True, kw_only=True):
    """Output bytes that were dropped before they could be read."""

    missing: Annotated[int, Meta(gt=0, le=MAX_OFFSET)]


class JournalStarted(_KeeperValue, frozen=True, kw_only=True):
    """The first frame of an output: the position of the next byte."""

    pid: Pid
    offset: Offset


class OutputPaused(_KeeperValue, frozen=True, kw_only=True):
    """The last frame of an output while the process runs: the position to continue at; `more` is available."""

    offset: Offset
    more: bool


class Process(_KeeperValue, frozen=True, kw_only=True):
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
            raise ValueError("the state contradicts the exit status, or the output begins after its end")


class ExchangeStarted(_KeeperValue, frozen=True, kw_only=True):
    """The first frame of an exchange: the position of its output, and the time (ns) of its start: its changes are not
    older."""

    pid: Pid
    cgroup: Cgroup
    offset: Offset
    clock: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class ExchangeUsage(_KeeperValue, frozen=True, kw_only=True):
    """Resources of an exchange: CPU time and peak memory of the process and everything that it started, the memory of
    the process at its start, and the largest CPU time per second (0: too short to be sampled). An older keeper does not
    report the last two."""

    cpu_s: Seconds
    max_rss: Bytes
    duration_s: Seconds
    start_rss: Bytes | None = None
    peak_cpu: Seconds | None = None


class NoFields(_KeeperValue, frozen=True, kw_only=True):
    pass


class ProcessListing(_KeeperValue, frozen=True, kw_only=True):
    processes: Annotated[list[Process], Meta(max_length=MAX_PROCESSES)]


class EventsHello(_KeeperValue, frozen=True, kw_only=True, tag="hello", tag_field="type"):
    """The first line of a keeper's events: the number of the last event, and how many processes ran after it. `lost`:
    some events after the requested one are unknown."""

    seq: Offset
    running: Annotated[int, Meta(ge=0, le=MAX_PROCESSES)]
    lost: bool


class ProcessEvent(_KeeperValue, frozen=True, kw_only=True):
    """A process started or ended."""

    seq: Offset
    at: Seconds
    type: Literal["process_started", "process_ended"]
    process: Process

    def __post_init__(self) -> None:
        if (self.process.state == "exited") != (self.type == "process_ended"):
            raise ValueError("the event contradicts the state of its process")


class PortReply(_KeeperValue, frozen=True, kw_only=True):
    """Whether a port is open; if not, the last observation. `status`: of the HTTP response, if one was received."""

    open: bool
    status: Annotated[int, Meta(ge=100, le=599)] | None
    last: Annotated[str, Meta(max_length=256)]


class ErrorDetail(_KeeperValue, frozen=True, kw_only=True):
    code: Annotated[str, Meta(pattern="^[a-z_]{1,40}$")]
    message: Annotated[str, Meta(max_length=16384)]
    errno: Annotated[int, Meta(ge=0, le=4095)] = 0
    path: Annotated[str, Meta(max_length=16384)] | None = None
    details: dict[Annotated[str, Meta(max_length=40)], int | Annotated[list[int], Meta(max_length=100)]] | None = None


class FailedRequest(_KeeperValue, frozen=True, kw_only=True):
    error: ErrorDetail


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a terminal, in characters."""

    cols: int
    rows: int


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command to start: `argv` or a `shell` line. In `env`, None unsets. `journal`: bytes of output to keep, 0 as
    configured. `show`: text that lists show instead of the command. `pty`: stdin, stdout and stderr are a
    terminal. `channel`: fd 3 is a channel for exchanges; spawned processes only. `auto_remove`: remove it, with its
    output, soon after its end. `Keeper` sets `detach`."""

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
    auto_remove: bool = False


def check_below(path: str) -> None:
    """Check that a relative path stays below its directory."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("the path leaves its directory")


class FileEntry(_KeeperValue, frozen=True, kw_only=True):
    """A file as the keeper describes it; the host knows its directory. In a recursive listing `path` is relative to
    the top. `raw` has the bytes of the path, or else of the name, if they are not UTF-8."""

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
    attributes: dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=65536)]] = {}

    @property
    def below(self) -> str:
        """The path relative to the listed directory."""
        return decode_path(self.path or self.name, self.raw)


class FileListing(_KeeperValue, frozen=True, kw_only=True):
    entries: Annotated[list[FileEntry], Meta(max_length=100_000)]
    more: bool
    skipped: Annotated[int, Meta(ge=0, le=1 << 53)] = 0

    def __post_init__(self) -> None:
        for entry in self.entries:
            check_below(entry.below)


class TextLines(_KeeperValue, frozen=True, kw_only=True):
    """Lines of a file as one text; `raw` has the bytes if they are not UTF-8."""

    text: Annotated[str, Meta(max_length=2 << 20)]
    start: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    count: Annotated[int, Meta(ge=0, le=2 << 20)]
    more: bool
    cut: bool
    raw: Annotated[bytes, Meta(max_length=2 << 20)] | None = None

    def __post_init__(self) -> None:
        if self.count and self.text.count("\n") != self.count - 1:
            raise ValueError("the number of lines is wrong")


class MatchingLine(_KeeperValue, frozen=True, kw_only=True):
    """A matching line; `path` is empty if the search named the file itself."""

    path: Annotated[str, Meta(max_length=256 << 10)]
    line: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    text: Text
    cut: bool
    before: Annotated[tuple[Text, ...], Meta(max_length=100)]
    after: Annotated[tuple[Text, ...], Meta(max_length=100)]
    raw: Annotated[bytes, Meta(max_length=256 << 10)] | None = None

    @property
    def below(self) -> str:
        return decode_path(self.path, self.raw)

    def __post_init__(self) -> None:
        if self.below:
            check_below(self.below)


class MatchingLines(_KeeperValue, frozen=True, kw_only=True):
    matches: Annotated[list[MatchingLine], Meta(max_length=10_000)]
    more: bool
    searched: Annotated[int, Meta(ge=0, le=1 << 53)]
    skipped: Annotated[int, Meta(ge=0, le=1 << 53)]


class Replacement(_KeeperValue, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=1 << 53)]
    lines: Annotated[tuple[int, ...], Meta(max_length=20)]


class PatchedEntry(_KeeperValue, frozen=True, kw_only=True):
    """`path` is empty if the patch named the file itself."""

    path: Annotated[str, Meta(max_length=16384)]
    action: Literal["created", "changed", "deleted"]
    added: Annotated[int, Meta(ge=0, le=1 << 31)]
    removed: Annotated[int, Meta(ge=0, le=1 << 31)]
    offsets: Annotated[tuple[int, ...], Meta(max_length=100_000)]
    raw: Annotated[bytes, Meta(max_length=16384)] | None = None

    @property
    def below(self) -> str:
        return decode_path(self.path, self.raw)

    def __post_init__(self) -> None:
        if self.below:
            check_below(self.below)


class PatchedEntries(_KeeperValue, frozen=True, kw_only=True):
    files: Annotated[list[PatchedEntry], Meta(max_length=1000)]


class FileChecksum(_KeeperValue, frozen=True, kw_only=True):
    checksum: Annotated[str, Meta(pattern="^[0-9a-f]{32,128}$")]
