"""What came of a command: its output gathered within bounds, its `Result`, and the errors of `check=True`."""

from __future__ import annotations

from collections import deque
from typing import AnyStr, Literal

import msgspec

from skerry.client.search import Search
from skerry.errors import CommandFailed, CommandTimeout
from skerry.types import OUTPUT_KEPT, FileInfo, ProcessInfo, Result, RunResult, Value

StreamName = Literal["stdout", "stderr"]
_QUOTED = 2000


class Output(Value, frozen=True):
    """A piece of a command's output as it came; it may end in the middle of a character. `offset` is where the next
    byte stands, counted over both streams; `missing` bytes that stood before it are gone."""

    stream: StreamName | Literal["both"]
    data: bytes
    offset: int = 0
    missing: int = 0

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Kept:
    """One stream: its first and last bytes, and how many were left out between them."""

    def __init__(self, limit: int = OUTPUT_KEPT) -> None:
        self._head_room = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def add(self, data: bytes) -> None:
        if self._head_room:
            self._head += data[: self._head_room]
            data, self._head_room = data[self._head_room :], max(0, self._head_room - len(data))
        if data:
            self._tail.append(data)
            self._tail_size += len(data)
            while self._tail_size - len(self._tail[0]) >= self._tail_limit:  # whole pieces: none is copied
                self._tail_size -= len(self._tail[0])
                self._dropped += len(self._tail.popleft())

    @property
    def omitted(self) -> int:
        return self._dropped + max(0, self._tail_size - self._tail_limit)

    def value(self) -> bytes:
        mark = f"\n[skerry: {self.omitted} bytes left out here]\n".encode() if self.omitted else b""
        return bytes(self._head) + mark + b"".join(self._tail)[-self._tail_limit :]


class Gathered:
    """The output of one run, and what its exit makes of it."""

    def __init__(self) -> None:
        self.streams: dict[StreamName, Kept] = {"stdout": Kept(), "stderr": Kept()}

    def add(self, stream: StreamName, data: bytes) -> None:
        self.streams[stream].add(data)

    def result(self, end: RunResult) -> Result:
        stdout, stderr = self.streams["stdout"], self.streams["stderr"]
        return Result(
            id=end.id,
            exit_code=end.exit_code,
            stdout_bytes=stdout.value(),
            stderr_bytes=stderr.value(),
            signal=end.signal,
            duration_s=end.duration_s,
            timed_out=end.timed_out,
            oom_killed=end.oom_killed,
            truncated=end.truncated or bool(stdout.omitted or stderr.omitted),
            usage=end.usage,
            denied=end.denied,
            hint=end.hint or hint_for(end),
            cwd=end.cwd,
        )


def result_of(end: RunResult) -> Result:
    """A result whose output the server has gathered."""
    return Result(
        id=end.id,
        exit_code=end.exit_code,
        stdout_bytes=end.stdout.encode() if end.stdout_base64 is None else end.stdout_base64,
        stderr_bytes=end.stderr.encode() if end.stderr_base64 is None else end.stderr_base64,
        signal=end.signal,
        duration_s=end.duration_s,
        timed_out=end.timed_out,
        oom_killed=end.oom_killed,
        truncated=end.truncated,
        usage=end.usage,
        denied=end.denied,
        hint=end.hint or hint_for(end),
    )


def joined(pieces: list[Output], offset: int) -> Output:
    """Many pieces as one, up to `offset`."""
    data = b"".join(piece.data for piece in pieces)
    return Output(stream="both", data=data, offset=offset, missing=sum(piece.missing for piece in pieces))


def hint_for(end: RunResult | Result) -> str | None:
    if end.timed_out:
        return "it ran out of time: give it more with timeout= (--timeout)"
    if end.oom_killed:
        return "it ran out of memory: give the sandbox more with limits=Limits(memory=…) (--memory)"
    return None


def with_files(result: Result, files: tuple[FileInfo, ...]) -> Result:
    return msgspec.structs.replace(result, files=files)


def checked(result: Result, cmd: str | list[str] | None) -> Result:
    """The result if the command ended with 0, else the error that `check=True` asked for."""
    if result.ok:
        return result
    shown = shortened(cmd)
    error: CommandTimeout | CommandFailed
    if result.timed_out:
        error = CommandTimeout(f"{shown!r} ran out of time after {result.duration_s:.1f} s", hint=result.hint)
    else:
        said = result.stderr[-_QUOTED:].strip()
        error = CommandFailed(f"{shown!r} {how_it_ended(result)}" + (f"\n{said}" if said else ""), hint=result.hint)
    error.result = result
    raise error


def shortened(cmd: str | list[str] | None) -> str:
    if cmd is None:
        return "the image's command"
    shown = cmd if isinstance(cmd, str) else " ".join(cmd)
    return shown if len(shown) <= 100 else shown[:99] + "…"


def how_it_ended(result: Result) -> str:
    return f"was ended by SIG{result.signal}" if result.signal else f"ended with exit code {result.exit_code}"


def still_runs(process: ProcessInfo, timeout: float | None) -> CommandTimeout:
    return CommandTimeout(
        f"{shortened(process.cmd)!r} ({process.id}) still runs after {timeout or 0:g} s",
        hint="it goes on: wait again, or kill() it",
    )


def never_came(process: ProcessInfo, search: Search[AnyStr], timeout: float | None) -> CommandTimeout:
    return CommandTimeout(
        f"{search} did not come from {shortened(process.cmd)!r} within {timeout or 0:g} s; {_saw(search)}",
        hint="the process goes on: wait longer with timeout=, or look at .output()",
    )


def never_opened(port: int, timeout: float | None, last: str) -> CommandTimeout:
    return CommandTimeout(
        f"port {port} was not open within {timeout or 0:g} s; last seen: {last or 'nothing'}",
        hint="does the program listen, and on that port? wait longer with timeout=",
    )


def ended_too_early(process: ProcessInfo, search: Search[AnyStr], result: Result) -> CommandFailed:
    what = f"{shortened(process.cmd)!r} {how_it_ended(result)} before {search} came"
    error = CommandFailed(f"{what}; {_saw(search)}", hint=result.hint)
    error.result = result
    return error


def _saw(search: Search[AnyStr]) -> str:
    last = search.seen_last.strip()
    return f"its output ended with:\n{last}" if last else "it printed nothing"
