"""/v1/sandboxes/{ref}/code: run code for its values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.engine.code_runs import collect
from skerry.errors import SkerryError
from skerry.server.answers import FRAMES, JSON, NDJSON, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.frames import Frames, Lines
from skerry.types import CodeEnd, CodeOutput, CodeRequest

if TYPE_CHECKING:
    from skerry.engine.code_runs import CodeRun

CODE_LIMIT = 40 << 20  # the code, and its stdin as base64
LARGE = 256 << 10  # characters of a result above which it is encoded beside


async def run(call: Call[Nothing, CodeRequest]) -> CodeEnd | Stream:
    """What the code does wrong is in the answer; only what kept it from running is an error."""
    call.log["command"] = "(code)"
    wish = call.accepts(JSON, FRAMES, NDJSON)
    run = await call.begun(call.engine.code.run(call.caller, call.ref, call.body))
    call.log["process_id"] = run.id
    if wish != JSON:
        return Stream(wish, _stream(run, Frames() if wish == FRAMES else Lines()), close=run.aclose)
    try:
        return await call.while_here(collect(run))
    finally:
        await run.aclose()


async def _stream(run: CodeRun, form: Frames | Lines) -> AsyncGenerator[bytes, None]:
    """The status line has gone out by now: what fails from here on is told in the stream itself."""
    yield form.started(run.id, run.pid, run.offset)
    try:
        async for piece in run:
            if isinstance(piece, CodeOutput):
                large = sum(map(len, piece.data.values())) > LARGE
                yield await asyncio.to_thread(form.result, piece) if large else form.result(piece)
            elif chunk := form.output(*piece):
                yield chunk
        yield form.exit(run.end())
    except SkerryError as error:
        yield form.error(error_body(error))
