"""A command: how it is asked for, what is known of it while it runs, how it ended."""

from __future__ import annotations

import math
from typing import Literal

from skerry.errors import InvalidRequest
from skerry.types.files import FileInfo
from skerry.types.network import Attempt
from skerry.types.sandboxes import Usage
from skerry.types.values import Answer, Value, check_env, check_name, check_path, check_text, check_user, parse_size

OUTPUT_KEPT = 1 << 20  # bytes of a stream that a result keeps: half of it the head, half the tail
WORDS_MOST = 1 << 16
PTY_MOST = 10_000


class Pty(Value, frozen=True, kw_only=True):
    """A terminal's size in characters."""

    cols: int = 80
    rows: int = 24

    def __post_init__(self) -> None:
        for name, value in (("cols", self.cols), ("rows", self.rows)):
            if not 1 <= value <= PTY_MOST:
                raise InvalidRequest(f"{name}: {value} is out of range", hint=f"between 1 and {PTY_MOST:,}")


def check_cwd(cwd: str | None) -> None:
    if cwd is not None:
        check_text("cwd", cwd)
        check_path("cwd", cwd)
        if not cwd.startswith("/"):
            raise InvalidRequest(f"cwd: {cwd[:80]!r} is not absolute", hint="start it with /")


class RunRequest(Value, frozen=True, kw_only=True):
    """POST /v1/sandboxes/{id}/processes. `cmd`: a string is a shell line, a list is an argv; none is what the
    image says.

    stdin: text, or bytes as base64, or (`stdin_stream`) what is sent to …/processes/{id}/stdin afterwards.
    `pty`: it gets a terminal. `session`: it runs in that shell's state. `journal`: how much of its output is kept."""

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

    def __post_init__(self) -> None:
        if self.journal is not None:
            parse_size(self.journal, "journal")
        check_name(self.session, "session")
        self._check_command()
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 < self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds above 0, or none")
        if sum((self.stdin is not None, self.stdin_base64 is not None, self.stdin_stream)) > 1:
            raise InvalidRequest("stdin, stdin_base64 and stdin_stream exclude each other")

    def _check_command(self) -> None:
        if self.cmd is None:
            if self.session is not None:
                raise InvalidRequest("cmd: a session runs no command by itself", hint="give a shell line")
            return
        words = [self.cmd] if isinstance(self.cmd, str) else self.cmd
        if not words or not words[0].strip():
            raise InvalidRequest("the command is empty", hint="give a shell line or a list of arguments")
        if len(words) > WORDS_MOST:
            raise InvalidRequest(f"cmd: more than {WORDS_MOST} arguments", hint="put them into a file")
        check_text("cmd", *words)


class ProcessInfo(Answer, frozen=True, kw_only=True):
    """A process as …/processes lists it. `children`: pids that it left behind and that still live. Its output is kept
    from byte `kept_from` up to byte `offset`, counted over stdout and stderr together."""

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


class OutputPage(Answer, frozen=True, kw_only=True):
    """GET …/processes/{process}/output: what was printed from a byte on, both streams as they came. `offset` is where
    the next page begins, `missing` how many bytes up to there are gone. What is not UTF-8 comes as
    base64 beside a lossy text. `more`: the journal holds more already."""

    data: str
    offset: int
    data_base64: bytes | None = None
    missing: int = 0
    more: bool = False
    state: Literal["running", "exited"] = "running"


class SessionRequest(Value, frozen=True, kw_only=True):
    """POST …/sessions: the session of that name, made if there is none. What else is given is for a new one: its user,
    its first directory, and variables over the sandbox's; null unsets one."""

    name: str
    user: str | None = None
    cwd: str | None = None
    env: dict[str, str | None] = {}

    def __post_init__(self) -> None:
        check_name(self.name)
        check_user(self.user)
        check_env(self.env)
        check_cwd(self.cwd)


class PortState(Answer, frozen=True, kw_only=True):
    """Whether something inside listens on a port; if not, what was seen last. `status`: of its HTTP answer, if it was
    asked for one."""

    open: bool
    status: int | None = None
    last: str = ""


class SessionInfo(Answer, frozen=True, kw_only=True):
    """A shell whose state lasts between commands. `busy`: a command of it runs now; `waiting`: so many stand behind."""

    name: str
    cwd: str
    user: str
    created_at: float
    busy: bool = False
    waiting: int = 0


class Event(Answer, frozen=True, kw_only=True):
    """Something happened to a sandbox. `seq` grows by each event of this server; ask from it on again after a break.

    `type`: sandbox.created .running .paused .stopped .failed .deleted, process.started, process.ended; `hello`: the
    first line of a followed stream, everything after its `seq` follows; `lost`: events are gone that were asked for, so
    look again at what you care about."""

    seq: int
    at: float
    type: str
    sandbox: str | None = None
    name: str | None = None
    reason: str | None = None
    process: ProcessInfo | None = None


class RunResult(Answer, frozen=True, kw_only=True):
    """How a run ended, on the wire. A stream that is not UTF-8 comes as base64 beside a lossy text. `cwd`: where its
    session stands now. `denied`: what it tried to reach and was refused."""

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
    denied: tuple[Attempt, ...] = ()
    hint: str | None = None
    cwd: str | None = None


class Result(Value, frozen=True, kw_only=True):
    """How a command ended: `ok` is exit code 0. `cwd`: where its session stands now. `denied`: what it tried to reach
    and was refused. `cost` is filled by a later part."""

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
    denied: tuple[Attempt, ...] = ()
    files: tuple[FileInfo, ...] = ()
    cost: float | None = None
    hint: str | None = None
    cwd: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")
