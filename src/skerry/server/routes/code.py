"""/v1/sandboxes/{ref}/code: run code and return its values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.engine.code.run import collect
from skerry.errors import SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.frames import FrameEncoder, JsonLineEncoder
from skerry.server.http.responses import FRAMES, JSON, NDJSON, LastPiece, StreamResponse, error_body
from skerry.types import CodeEnd, CodeOutput, CodeRequest

if TYPE_CHECKING:
    from skerry.engine.code.run import CodeRun

CODE_LIMIT = 40 << 20  # the code, and its stdin as base64
LARGE = 256 << 10  # characters of a result above which a thread encodes it


async def run(call: Call[Empty, CodeRequest]) -> CodeEnd | StreamResponse:
    """Return errors of the code in the answer; raise only if the code could not run."""
    call.log["command"] = "(code)"
    media_type = call.accepts(JSON, FRAMES, NDJSON)
    run = await call.start_run(call.engine.code.run(call.caller, call.ref, call.body))
    call.log["process_id"] = run.id
    if media_type != JSON:
        return StreamResponse(
            media_type,
            _stream(call, run, FrameEncoder() if media_type == FRAMES else JsonLineEncoder()),
            close=run.aclose,
        )
    try:
        return await call.until_disconnect(collect(run))
    finally:
        await run.aclose()


async def _stream(
    call: Call[Empty, CodeRequest], run: CodeRun, form: FrameEncoder | JsonLineEncoder
) -> AsyncGenerator[bytes, None]:
    """Stream the output. The status line has been sent, so later errors are reported in the stream."""
    started = run.id
    yield form.started(run.id, run.pid, run.offset)
    try:
        async for piece in run:
            if run.id != started:  # the program, after its compiler
                started = run.id
                yield form.started(run.id, run.pid, run.offset)
            if isinstance(piece, CodeOutput):
                large = sum(map(len, piece.data.values())) > LARGE
                yield await asyncio.to_thread(form.result, piece) if large else form.result(piece)
            elif piece[1] and (chunk := form.output(*piece)):
                yield chunk
        end = run.end()
        call.record_result(exit_code=end.exit_code, id=run.id)
        yield LastPiece(form.exit(end))
    except SkerryError as error:
        yield LastPiece(form.error(error_body(error)))
