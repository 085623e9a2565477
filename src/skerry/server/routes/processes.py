"""/v1/sandboxes/{ref}/processes: runs, which end when the waiting caller disconnects, background processes, output."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.engine.processes.output import OutputRange
from skerry.errors import InvalidRequest, SkerryError
from skerry.keeper import JournalGap
from skerry.server.http.call import Call, Empty
from skerry.server.http.frames import FrameEncoder, JsonLineEncoder
from skerry.server.http.responses import FRAMES, JSON, NDJSON, LastPiece, StatusResponse, StreamResponse, error_body
from skerry.types import OutputPage, ProcessInfo, ProcessList, Pty, ReportedCalls, RunRequest, RunResult, Value

if TYPE_CHECKING:
    from skerry.engine.processes.output import OutputReader
    from skerry.engine.processes.run import Run

_SIGNAL = re.compile(r"[A-Z][A-Z0-9+-]{0,15}")
RUN_LIMIT = 16 << 20  # a run's body may carry its stdin
MAX_WAIT_S = 60.0
PAGE = 1 << 20
MAX_PAGE = 16 << 20
MAX_OFFSET = 1 << 53


class RunQuery(Value, frozen=True, kw_only=True):
    """`wait=true`: answer when the command has ended, or stream while it runs."""

    wait: bool = False


class WaitQuery(Value, frozen=True, kw_only=True):
    """`timeout`: the maximum time to wait in seconds, at most 60; then call again."""

    timeout: float = 30.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and 0 <= self.timeout <= MAX_WAIT_S):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint=f"0 to {MAX_WAIT_S:g} seconds")


class StdinQuery(Value, frozen=True, kw_only=True):
    """`close=true`: close standard input afterwards."""

    close: bool = False


class SignalRequest(Value, frozen=True, kw_only=True):
    """A signal name without SIG; KILL ends the whole process tree."""

    signal: str

    def __post_init__(self) -> None:
        if not _SIGNAL.fullmatch(self.signal):
            raise InvalidRequest(f"signal: {self.signal[:40]!r} is not a signal's name", hint="like TERM or KILL")


class ResizeRequest(Value, frozen=True, kw_only=True):
    """The new size of a terminal in characters."""

    cols: int
    rows: int

    @property
    def size(self) -> Pty:
        return Pty(cols=self.cols, rows=self.rows)


async def run(call: Call[RunQuery, RunRequest]) -> RunResult | StatusResponse | StreamResponse:
    cmd = call.body.cmd
    call.log["command"] = "(shell)" if isinstance(cmd, str) else cmd[0][:100] if cmd else "(image)"
    if not call.query.wait:
        return await _spawn(call)
    media_type = call.accepts(JSON, FRAMES, NDJSON)
    if call.body.auto_remove:
        raise InvalidRequest("auto_remove: only for background processes", hint="leave out wait=true")
    request = await call.engine.sessions.in_default(call.caller, call.ref, call.body)
    if request.session is None:
        run = await call.engine.processes.run(call.caller, call.ref, request)
    else:
        run = await call.start_run(call.engine.sessions.start(call.caller, call.ref, request, record=call.body))
    call.log["process_id"] = run.id
    if media_type != JSON:
        return StreamResponse(
            media_type,
            _stream(call, run, FrameEncoder() if media_type == FRAMES else JsonLineEncoder()),
            close=run.aclose,
        )
    try:
        return await call.until_disconnect(call.engine.processes.collect(run))
    finally:
        await run.aclose()


async def _spawn(call: Call[RunQuery, RunRequest]) -> StatusResponse:
    call.accepts(JSON)
    service = call.engine.processes if call.body.session is None else call.engine.sessions
    info = await service.spawn(call.caller, call.ref, call.body)
    call.log["process_id"] = info.id
    return StatusResponse(201, info)


async def _stream(
    call: Call[RunQuery, RunRequest], run: Run, form: FrameEncoder | JsonLineEncoder
) -> AsyncGenerator[bytes, None]:
    """Stream the output. The status line has been sent, so later errors are reported in the stream."""
    yield form.started(run.id, run.pid)
    try:
        if isinstance(form, FrameEncoder):
            async for frames in run.frames():
                yield frames
        else:
            async for stream, data in run:
                if chunk := form.output(stream, data):
                    yield chunk
        end = run.result()
        call.record_result(exit_code=end.exit_code, id=run.id)
        yield LastPiece(form.exit(end))
    except SkerryError as error:
        yield LastPiece(form.error(error_body(error)))


async def wait(call: Call[WaitQuery, Empty]) -> RunResult | StatusResponse:
    """Return 204 if the process is still running, also when the server is about to stop: no caller delays it."""
    end = call.engine.processes.wait(call.caller, call.ref, call.process, call.query.timeout)
    result = await call.until_disconnect(call.until_shutdown(end))
    return result if result is not None else StatusResponse(204)


async def stdin(call: Call[StdinQuery, Empty]) -> None:
    ref, process, close = call.ref, call.process, call.query.close
    if call.headers.body_size == 0:
        await call.until_disconnect(call.engine.processes.send_stdin(call.caller, ref, process, None, close))
        return
    await call.stream_body(lambda body: call.engine.processes.send_stdin(call.caller, ref, process, body, close))


async def list_(call: Call[Empty, Empty]) -> ProcessList:
    return ProcessList(processes=await call.engine.processes.list(call.caller, call.ref))


async def get(call: Call[Empty, Empty]) -> ProcessInfo:
    return await call.engine.processes.get(call.caller, call.ref, call.process)


async def signal(call: Call[Empty, SignalRequest]) -> None:
    await call.engine.processes.signal(call.caller, call.ref, call.process, call.body.signal)


async def resize(call: Call[Empty, ResizeRequest]) -> None:
    await call.engine.processes.resize(call.caller, call.ref, call.process, call.body.size)


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.processes.remove(call.caller, call.ref, call.process)


class OutputQuery(Value, frozen=True, kw_only=True):
    """`since`: the offset over both streams; negative: bytes before the end. `limit`: the maximum number of bytes.
    `follow=true`: also stream new output until the process ends, or for `timeout` seconds."""

    since: int = 0
    limit: int | None = None
    follow: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        if abs(self.since) > MAX_OFFSET:
            raise InvalidRequest(f"since: {self.since} is out of range")
        if self.limit is not None and not 0 < self.limit <= MAX_OFFSET:
            raise InvalidRequest(f"limit: {self.limit} is out of range", hint="at least 1 byte")
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 <= self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds, or none")
        if self.timeout is not None and not self.follow:
            raise InvalidRequest("timeout: only allowed with follow", hint="add follow=true")


async def output(call: Call[OutputQuery, Empty]) -> OutputPage | StreamResponse:
    media_type, query = call.accepts(JSON, FRAMES, NDJSON), call.query
    if media_type == JSON:
        return await _output_page(call)
    view = OutputRange(query.since, query.limit, query.follow, query.timeout)
    reading = await call.engine.processes.output(call.caller, call.ref, call.process, view)
    form = FrameEncoder() if media_type == FRAMES else JsonLineEncoder()
    return StreamResponse(media_type, _output_stream(reading, form), close=reading.aclose, endless=query.follow)


async def _output_page(call: Call[OutputQuery, Empty]) -> OutputPage:
    query = call.query
    if query.follow:
        raise InvalidRequest("follow: not available as one JSON response", hint=f"Accept: {NDJSON}, or {FRAMES}")
    if query.limit is not None and query.limit > MAX_PAGE:
        raise InvalidRequest(f"limit: {query.limit} is out of range", hint=f"at most {MAX_PAGE} in one JSON response")
    view = OutputRange(query.since, query.limit or PAGE)
    return await call.engine.processes.page(call.caller, call.ref, call.process, view)


async def _output_stream(reading: OutputReader, form: FrameEncoder | JsonLineEncoder) -> AsyncGenerator[bytes, None]:
    """Stream the output. The status line has been sent, so later errors are reported in the stream."""
    yield form.started(reading.id, reading.pid, reading.start)
    try:
        async for piece in reading:
            if isinstance(piece, JournalGap):
                yield form.missing(piece.missing)
            elif chunk := form.output(*piece):
                yield chunk
        result = reading.result
        yield LastPiece(form.exit(result) if result is not None else form.pause(reading.offset, reading.more))
    except SkerryError as error:
        yield LastPiece(form.error(error_body(error)))


async def tool_calls(call: Call[Empty, ReportedCalls]) -> None:
    await call.engine.reviews.report(call.caller, call.ref, call.parameters["process"], call.body.calls)
