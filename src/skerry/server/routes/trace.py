"""/v1/sandboxes/{ref}/trace: the steps of a sandbox, also of a deleted one, their contents, and the exported trace."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from skerry.errors import SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import BYTES, NDJSON, TAR, StreamResponse
from skerry.types import Value


class TraceQuery(Value, frozen=True, kw_only=True):
    """`follow=true`: also stream new lines, until the sandbox is deleted."""

    follow: bool = False


async def show(call: Call[TraceQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    sandbox_id = call.engine.registry.id_of(call.caller, call.ref)
    follow = call.query.follow and call.engine.registry.get(sandbox_id) is not None
    return StreamResponse(
        NDJSON, await call.engine.traces.lines(call.caller, sandbox_id, follow=follow), endless=call.query.follow
    )


async def blob(call: Call[Empty, Empty]) -> StreamResponse:
    call.accepts(BYTES)
    sandbox_id = call.engine.registry.id_of(call.caller, call.ref)
    data = await call.engine.traces.blob(call.caller, sandbox_id, call.parameters["sha256"])
    return StreamResponse(BYTES, _once(data), length=len(data))


async def export(call: Call[Empty, Empty]) -> StreamResponse:
    call.accepts(TAR)
    sandbox_id = call.engine.registry.id_of(call.caller, call.ref)
    with contextlib.suppress(SkerryError):  # no review, or a deleted sandbox
        await call.engine.reviews.settled(call.caller, sandbox_id)  # changes of the last command belong to its trace
    return StreamResponse(TAR, await call.engine.traces.export(call.caller, sandbox_id))


async def _once(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
