"""/v1/sandboxes/{ref}/processes: runs, whose caller waits and ends them by leaving; and what goes on by itself."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.answers import FRAMES, JSON, NDJSON, Answered, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.frames import Frames, Lines
from skerry.types import Answer, ProcessInfo, Pty, RunRequest, RunResult, Value

if TYPE_CHECKING:
    from skerry.engine.runs import Run

_SIGNAL = re.compile(r"[A-Z][A-Z0-9+-]{0,15}")
RUN_LIMIT = 16 << 20  # a run's body may carry its stdin
WAIT_MOST = 60.0


class RunQuery(Value, frozen=True, kw_only=True):
    """`wait=true`: the answer comes when the command has ended, or, as a stream, while it runs."""

    wait: bool = False


class WaitQuery(Value, frozen=True, kw_only=True):
    """`timeout`: how many seconds the answer may take, at most 60; ask again then."""

    timeout: float = 30.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and 0 <= self.timeout <= WAIT_MOST):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint=f"0 to {WAIT_MOST:g} seconds")


class StdinQuery(Value, frozen=True, kw_only=True):
    """`close=true`: the command sees the end of its input after this."""

    close: bool = False


class SignalRequest(Value, frozen=True, kw_only=True):
    """A signal by name, without SIG; KILL takes the whole tree."""

    signal: str

    def __post_init__(self) -> None:
        if not _SIGNAL.fullmatch(self.signal):
            raise InvalidRequest(f"signal: {self.signal[:40]!r} is not a signal's name", hint="like TERM or KILL")


class ResizeRequest(Value, frozen=True, kw_only=True):
    """A terminal's new size, in characters."""

    cols: int
    rows: int

    @property
    def size(self) -> Pty:
        return Pty(cols=self.cols, rows=self.rows)


class Processes(Answer, frozen=True, kw_only=True):
    processes: list[ProcessInfo]


async def run(call: Call[RunQuery, RunRequest]) -> RunResult | Answered | Stream:
    cmd = call.body.cmd
    call.log["command"] = "(shell)" if isinstance(cmd, str) else cmd[0][:100] if cmd else "(image)"
    if not call.query.wait:
        return await _spawn(call)
    wish = call.accepts(JSON, FRAMES, NDJSON)
    if call.body.session is None:
        run = await call.engine.processes.run(call.caller, call.ref, call.body)
    else:
        run = await call.begun(call.engine.sessions.run(call.caller, call.ref, call.body))
    call.log["process_id"] = run.id
    if wish != JSON:
        return Stream(wish, _stream(run, Frames() if wish == FRAMES else Lines()), close=run.aclose)
    try:
        return await call.while_here(call.engine.processes.collect(run))
    finally:
        await run.aclose()


async def _spawn(call: Call[RunQuery, RunRequest]) -> Answered:
    call.accepts(JSON)
    info = await call.engine.processes.spawn(call.caller, call.ref, call.body)
    call.log["process_id"] = info.id
    return Answered(201, info)


async def _stream(run: Run, form: Frames | Lines) -> AsyncGenerator[bytes, None]:
    """The status line has gone out by now: what fails from here on is told in the stream itself."""
    yield form.started(run.id, run.pid)
    try:
        if isinstance(form, Frames):
            async for frames in run.frames():
                yield frames
        else:
            async for stream, data in run:
                if chunk := form.output(stream, data):
                    yield chunk
        yield form.exit(run.result())
    except SkerryError as error:
        yield form.error(error_body(error))


async def wait(call: Call[WaitQuery, Nothing]) -> RunResult | Answered:
    """204 if it still runs; also when the server is about to leave, so that nobody is kept waiting for that."""
    end = call.engine.processes.wait(call.caller, call.ref, call.process, call.query.timeout)
    result = await call.while_here(call.unless_stopping(end))
    return result if result is not None else Answered(204)


async def stdin(call: Call[StdinQuery, Nothing]) -> None:
    ref, process, close = call.ref, call.process, call.query.close
    await call.with_body(lambda body: call.engine.processes.send_stdin(call.caller, ref, process, body, close))


async def list_(call: Call[Nothing, Nothing]) -> Processes:
    return Processes(processes=await call.engine.processes.list(call.caller, call.ref))


async def get(call: Call[Nothing, Nothing]) -> ProcessInfo:
    return await call.engine.processes.get(call.caller, call.ref, call.process)


async def signal(call: Call[Nothing, SignalRequest]) -> None:
    await call.engine.processes.signal(call.caller, call.ref, call.process, call.body.signal)


async def resize(call: Call[Nothing, ResizeRequest]) -> None:
    await call.engine.processes.resize(call.caller, call.ref, call.process, call.body.size)


async def remove(call: Call[Nothing, Nothing]) -> None:
    await call.engine.processes.remove(call.caller, call.ref, call.process)
