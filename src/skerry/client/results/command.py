"""Results of commands: the bounded output, the `Result`, and the errors of `check=True`."""

from __future__ import annotations

import re
from typing import AnyStr, Literal

import msgspec

from skerry.client.results.search import OutputSearch
from skerry.codecs.output import HeadAndTail
from skerry.errors import CommandFailed, CommandTimeout, NetworkDenied, OutOfMemory, SkerryError
from skerry.types import FileInfo, ProcessInfo, Result, RunResult, Value

StreamName = Literal["stdout", "stderr"]
_QUOTED = 2000


class Output(Value, frozen=True):
    """A piece of a command's output; it may end within a character. `offset`: the position of the next byte, counted
    over both streams; `missing`: the number of dropped bytes before it."""

    stream: StreamName | Literal["both"]
    data: bytes
    offset: int = 0
    missing: int = 0

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class OutputCollector:
    """The output of one run, combined with its end."""

    def __init__(self) -> None:
        self.streams: dict[StreamName, HeadAndTail] = {"stdout": HeadAndTail(), "stderr": HeadAndTail()}

    def add(self, stream: StreamName, data: bytes) -> None:
        self.streams[stream].add(data)

    def result(self, end: RunResult, command: str | list[str] | None = None) -> Result:
        stdout, stderr = self.streams["stdout"], self.streams["stderr"]
        return Result(
            id=end.id,
            exit_code=end.exit_code,
            command=command,
            started_at=end.started_at,
            stdout_bytes=stdout.value(),
            stderr_bytes=stderr.value(),
            signal=end.signal,
            duration_s=end.duration_s,
            timed_out=end.timed_out,
            oom_killed=end.oom_killed,
            truncated=end.truncated or bool(stdout.omitted or stderr.omitted),
            usage=end.usage,
            denied=end.denied,
            hint=end.hint or hint_for(end, stderr.value()),
            cwd=end.cwd,
        )


def result_of(end: RunResult, process: ProcessInfo) -> Result:
    """Return a result with the output that the server collected."""
    stderr = end.stderr.encode() if end.stderr_base64 is None else end.stderr_base64
    return Result(
        id=end.id,
        exit_code=end.exit_code,
        command=process.cmd,
        started_at=process.started_at,
        stdout_bytes=end.stdout.encode() if end.stdout_base64 is None else end.stdout_base64,
        stderr_bytes=stderr,
        signal=end.signal,
        duration_s=end.duration_s,
        timed_out=end.timed_out,
        oom_killed=end.oom_killed,
        truncated=end.truncated,
        usage=end.usage,
        denied=end.denied,
        hint=end.hint or hint_for(end, stderr),
    )


def unknown_end(process: ProcessInfo, error: SkerryError) -> Result:
    """Return the result of a process whose end the server does not report, for example after its removal."""
    hint = f"the end of the process is unknown: {error.message}"
    return Result(id=process.id, exit_code=None, command=process.cmd, started_at=process.started_at, hint=hint)


def join_output(pieces: list[Output], offset: int) -> Output:
    """Return several pieces as one, up to `offset`."""
    data = b"".join(piece.data for piece in pieces)
    return Output(stream="both", data=data, offset=offset, missing=sum(piece.missing for piece in pieces))


# A user's processes reach the limit of their user before the cgroup counts a failure, so only the program reports it.
_NO_PROCESS = re.compile(
    rb"Resource temporarily unavailable|[Cc]annot fork|can't start new thread|unable to create (?:native )?thread"
)


def hint_for(end: RunResult | Result, stderr: bytes = b"") -> str | None:
    if end.timed_out:
        return "it timed out: use a larger timeout= (--timeout)"
    if end.oom_killed:
        return "it ran out of memory: use limits=Limits(memory=…) (--memory)"
    if end.exit_code != 0 and _NO_PROCESS.search(stderr[-_QUOTED:]):
        return "if it could not start a process or thread: use a higher limits=Limits(pids=…) (--pids)"
    return None


def with_files(result: Result, files: tuple[FileInfo, ...]) -> Result:
    return msgspec.structs.replace(result, files=files)


def check_result(result: Result, cmd: str | list[str] | None) -> Result:
    """Return the result if the command ended with 0, otherwise raise the error of `check=True`."""
    if result.ok:
        return result
    shown = short_command(cmd)
    error: CommandTimeout | CommandFailed
    if result.timed_out:
        error = CommandTimeout(f"{shown!r} timed out after {result.duration_s:.1f} s", hint=result.hint)
    else:
        said = result.stderr[-_QUOTED:].strip()
        error = failure_class(result)(
            f"{shown!r} {describe_end(result)}" + (f"\n{said}" if said else ""), hint=result.hint
        )
    error.result = result
    raise error


def failure_class(result: Result) -> type[CommandFailed]:
    return OutOfMemory if result.oom_killed else NetworkDenied if result.denied else CommandFailed


def output_end(result: Result) -> str:
    """Return the end of a command's output, for an error message: stdout, where test runners report, then stderr."""
    return "\n".join(text for data in (result.stdout, result.stderr) if (text := data[-_QUOTED:].strip()))


def short_command(cmd: str | list[str] | None) -> str:
    if cmd is None:
        return "the image's command"
    shown = cmd if isinstance(cmd, str) else " ".join(cmd)
    return shown if len(shown) <= 100 else shown[:99] + "…"


def describe_end(result: Result) -> str:
    return f"was killed by SIG{result.signal}" if result.signal else f"ended with exit code {result.exit_code}"


def still_running(process: ProcessInfo, timeout: float | None) -> CommandTimeout:
    return CommandTimeout(
        f"{short_command(process.cmd)!r} ({process.id}) is still running after {timeout or 0:g} s",
        hint="it continues: wait again, or call kill()",
    )


def pattern_timeout(process: ProcessInfo, search: OutputSearch[AnyStr], timeout: float | None) -> CommandTimeout:
    return CommandTimeout(
        f"{search} was not printed by {short_command(process.cmd)!r} within {timeout or 0:g} s; {_last_output(search)}",
        hint="the process continues: use a larger timeout=, or check .output()",
    )


def port_timeout(port: int, timeout: float | None, last: str) -> CommandTimeout:
    return CommandTimeout(
        f"port {port} was not open within {timeout or 0:g} s; last seen: {last or 'nothing'}",
        hint="does the program listen on that port? use a larger timeout=",
    )


def ended_before_port(process: ProcessInfo, port: int, result: Result) -> CommandFailed:
    said = output_end(result)
    what = f"{short_command(process.cmd)!r} {describe_end(result)} before port {port} was open"
    error = failure_class(result)(f"{what}\n{said}" if said else what, hint=result.hint)
    error.result = result
    return error


def ended_early(process: ProcessInfo, search: OutputSearch[AnyStr], result: Result) -> CommandFailed:
    what = f"{short_command(process.cmd)!r} {describe_end(result)} before {search} came"
    error = CommandFailed(f"{what}; {_last_output(search)}", hint=result.hint)
    error.result = result
    return error


def _last_output(search: OutputSearch[AnyStr]) -> str:
    last = search.seen_last.strip()
    return f"its output ended with:\n{last}" if last else "it printed nothing"
