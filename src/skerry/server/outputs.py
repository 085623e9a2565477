"""/v1/sandboxes/{ref}/processes/{process}/output: what was printed, from any byte on, and what is printed now."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.engine.outputs import View
from skerry.errors import InvalidRequest, SkerryError
from skerry.keeper import Gap
from skerry.server.answers import FRAMES, JSON, NDJSON, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.frames import Frames, Lines
from skerry.types import OutputPage, Value

if TYPE_CHECKING:
    from skerry.engine.outputs import Reading

PAGE = 1 << 20
PAGE_MOST = 16 << 20
OFFSET_MOST = 1 << 53


class OutputQuery(Value, frozen=True, kw_only=True):
    """From byte `since` on, counted over both streams; below 0, that many bytes before the end. At most `limit` bytes.
    `follow=true`: also what comes, to the end of the process, or for `timeout` seconds."""

    since: int = 0
    limit: int | None = None
    follow: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        if abs(self.since) > OFFSET_MOST:
            raise InvalidRequest(f"since: {self.since} is out of range")
        if self.limit is not None and not 0 < self.limit <= OFFSET_MOST:
            raise InvalidRequest(f"limit: {self.limit} is out of range", hint="at least 1 byte")
        if self.timeout is not None and not (math.isfinite(self.timeout) and 0 <= self.timeout <= 1e8):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint="seconds, or none")
        if self.timeout is not None and not self.follow:
            raise InvalidRequest("timeout: only what is followed takes time", hint="add follow=true")


async def get(call: Call[OutputQuery, Nothing]) -> OutputPage | Stream:
    wish, query = call.accepts(JSON, FRAMES, NDJSON), call.query
    if wish == JSON:
        return await _page(call)
    view = View(query.since, query.limit, query.follow, query.timeout)
    reading = await call.engine.processes.output(call.caller, call.ref, call.process, view)
    form = Frames() if wish == FRAMES else Lines()
    return Stream(wish, _stream(reading, form), close=reading.aclose, endless=query.follow)


async def _page(call: Call[OutputQuery, Nothing]) -> OutputPage:
    query = call.query
    if query.follow:
        raise InvalidRequest("follow: one JSON answer has an end", hint=f"Accept: {NDJSON}, or {FRAMES}")
    if query.limit is not None and query.limit > PAGE_MOST:
        raise InvalidRequest(f"limit: {query.limit} is out of range", hint=f"at most {PAGE_MOST} in one JSON answer")
    view = View(query.since, query.limit or PAGE)
    return await call.engine.processes.page(call.caller, call.ref, call.process, view)


async def _stream(reading: Reading, form: Frames | Lines) -> AsyncGenerator[bytes, None]:
    """The status line has gone out by now: what fails from here on is told in the stream itself."""
    yield form.started(reading.id, reading.pid, reading.start)
    try:
        async for piece in reading:
            if isinstance(piece, Gap):
                yield form.missing(piece.missing)
            elif chunk := form.output(*piece):
                yield chunk
        result = reading.result
        yield form.exit(result) if result is not None else form.pause(reading.offset, reading.more)
    except SkerryError as error:
        yield form.error(error_body(error))
