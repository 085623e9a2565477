"""Commands: requests, running processes, results."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from skerry.errors import InvalidRequest
from skerry.types.files import FileInfo
from skerry.types.network import NetworkAttempt
from skerry.types.usage import Usage
from skerry.types.values import Answer, Value, check_env, check_name, check_path, check_text, check_user, parse_size

OUTPUT_KEPT = 1 << 20  # bytes of a stream that a result keeps: half of it the head, half the tail
MAX_WORDS = 1 << 16
MAX_PTY = 10_000
PROCESS_ID = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")  # generated ones begin with p-
ProcessStatus = Literal["starting", "running", "completed", "failed", "killed"]


class Pty(Value, frozen=True, kw_only=True):
    """A terminal's size in characters."""

    cols: int = 80
    rows: int = 24

    def __post_init__(self) -> None:
        for name, value in (("cols", self.cols), ("rows", self.rows)):
            if not 1 <= value <= MAX_PTY:
                raise InvalidRequest(f"{name}: {value} is out of range", hint=f"between 1 and {MAX_PTY:,}")


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (math.isfinite(timeout) and 0 < timeout <= 1e8):
        raise InvalidRequest(f"timeout: {timeout!r} is out of range", hint="seconds above 0, or none")


def check_cwd(cwd: str | None) -> None:
    if cwd is not None:
        check_text("cwd", cwd)
        check_path("cwd", cwd)


class RunRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/processes. `cmd`: a string is a shell line, a list is an argv; None is the image's
    command.

    stdin: text, or bytes as base64, or (`stdin_stream`) data sent to …/processes/{id}/stdin afterwards. `pty`: start it
    in a terminal. `session`: run it in that session's shell. `journal`: the amount of output to keep. `id`: its ID;
    taken ones are a conflict. `auto_remove`: remove a background process, with its output, some seconds after its
    end."""

    id: str | None = None
    cmd: str | list[str] | None = None
    env: dict[str, str | None] = {}
    cwd: str | None = None
    user: str | None = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    stdin_stream: bool = False
    timeout: float | None = None
    pty: Pty | None = None
    session: str | None = None
    journal: str | int | None = None
    auto_remove: bool = False

    def __post_init__(self) -> None:
        if self.journal is not None:
            parse_size(self.journal, "journal")
        check_name(self.session, "session")
        if self.id is not None and (not PROCESS_ID.fullmatch(self.id) or self.id.startswith(("p-", "on-start-"))):
            raise InvalidRequest(
                f"id: {self.id[:80]!r} is not allowed",
                hint="3 to 63 characters of a-z, 0-9 and '-', first and last a letter or digit, not p-… or on-start-…",
            )
        self._check_command()
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)
        _check_timeout(self.timeout)
        if sum((self.stdin is not None, self.stdin_base64 is not None, self.stdin_stream)) > 1:
            raise InvalidRequest("stdin, stdin_base64 and stdin_stream exclude each other")

    def _check_command(self) -> None:
        if self.cmd is None:
            if self.session is not None:
                raise InvalidRequest("cmd: a session needs a command", hint="give a shell line")
            return
        words = [self.cmd] if isinstance(self.cmd, str) else self.cmd
        if not words or not words[0].strip():
            raise InvalidRequest("the command is empty", hint="give a shell line or a list of arguments")
        if len(words) > MAX_WORDS:
            raise InvalidRequest(f"cmd: more than {MAX_WORDS} arguments", hint="put them into a file")
        check_text("cmd", *words)


class ProcessInfo(Answer, frozen=True, kw_only=True):
    """A process as …/processes lists it. `children`: running pids that it left behind. Its output is kept from byte
    `kept_from` to byte `offset`, counted over stdout and stderr together. `status`: its state and
    its end in one word."""

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
    pty: bool = False
    session: str | None = None
    offset: int = 0
    kept_from: int = 0
    ended_at: float | None = None
    status: ProcessStatus = "running"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "status", self._status())

    def _status(self) -> ProcessStatus:
        if self.state == "running":
            return "running" if self.pid else "starting"
        return _end_status(self.exit_code, self.signal, self.timed_out)


def _end_status(exit_code: int | None, signal: str | None, timed_out: bool) -> ProcessStatus:
    if signal is not None or timed_out:
        return "killed"
    return "completed" if exit_code == 0 else "failed"


class ProcessList(Answer, frozen=True, kw_only=True):
    processes: list[ProcessInfo]


class OutputPage(Answer, frozen=True, kw_only=True):
    """GET …/processes/{process}/output: the output from an offset, both streams in order. `offset` is the start of the
    next page, `missing` the number of dropped bytes before it. Output that is not UTF-8 comes as base64 beside a lossy
    text. `more`: the journal holds more."""

    data: str
    offset: int
    data_base64: bytes | None = None
    missing: int = 0
    more: bool = False
    state: Literal["running", "exited"] = "running"


class SessionRequest(Value, frozen=True, kw_only=True):
    """POST …/sessions: get or create the session of that name. The other fields apply to a new session: its user, its
    first directory, variables that override the sandbox's (null unsets one), and the timeout of its commands in
    seconds."""

    name: str
    user: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)
        _check_timeout(self.timeout)


class PortState(Answer, frozen=True, kw_only=True):
    """Whether a process inside listens on a port; if not, `last` is the last observation. `status`: of its HTTP
    response, if one was requested. `ended`: the process that should open it has ended."""

    open: bool
    status: int | None = None
    last: str = ""
    ended: bool = False


class SessionInfo(Answer, frozen=True, kw_only=True):
    """A shell that keeps its state between commands. `busy`: a command is running; `waiting`: the number of queued
    commands. `timeout`: of commands without another one; None: the caller's default."""

    name: str
    cwd: str
    user: str
    created_at: float
    busy: bool = False
    waiting: int = 0
    timeout: float | None = None


class SessionList(Answer, frozen=True, kw_only=True):
    sessions: list[SessionInfo]


class Event(Answer, frozen=True, kw_only=True):
    """An event of a sandbox. `seq` increases with each event of this server; pass it as `since` to continue after a
    break.

    `type`: sandbox.created .running .ready (its `on_start` commands run, and `ready` holds) .paused .stopped .failed
    .renamed .deleted, process.started, process.ended, limit.memory (processes were killed because the memory was used
    up), limit.pids (a process could not start), limit.disk (a command failed and the disk was full), limit.timeout,
    review.decided .applied .undone .kept, budget.warning, budget.exceeded, alert.NAME (a rule of the operator);
    `hello`: the first line of a followed stream, events after its `seq` follow; `lost`: requested events are gone, so
    check the current state again."""

    seq: int
    at: float
    type: str
    sandbox: str | None = None
    name: str | None = None
    reason: str | None = None
    process: ProcessInfo | None = None


class RunResult(Answer, frozen=True, kw_only=True):
    """The end of a run, on the wire. A stream that is not UTF-8 comes as base64 beside a lossy text. `cwd`: the
    session's current directory. `denied`: network attempts that the policy denied."""

    id: str
    exit_code: int | None
    duration_s: float
    started_at: float | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_base64: bytes | None = None
    stderr_base64: bytes | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool | None = False
    truncated: bool = False
    usage: Usage = Usage()
    denied: tuple[NetworkAttempt, ...] = ()
    hint: str | None = None
    cwd: str | None = None


class Result(Value, frozen=True, kw_only=True):
    """The result of a command: `ok` is exit code 0. `cwd`: the session's current directory. `denied`: network attempts
    that the policy denied. `command` and `started_at` (in the server's time): None for code. `cost`: by the operator's
    prices; None: none is set."""

    id: str
    exit_code: int | None
    command: str | list[str] | None = None
    started_at: float | None = None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    signal: str | None = None
    duration_s: float = 0.0
    timed_out: bool = False
    oom_killed: bool | None = False
    truncated: bool = False
    usage: Usage = Usage()
    denied: tuple[NetworkAttempt, ...] = ()
    files: tuple[FileInfo, ...] = ()
    hint: str | None = None
    cwd: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def status(self) -> ProcessStatus:
        """Its end in one word: `completed`, `failed` or `killed`."""
        return _end_status(self.exit_code, self.signal, self.timed_out)

    @property
    def cost(self) -> float | None:
        return self.usage.cost

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")
