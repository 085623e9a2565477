"""/v1/sandboxes/{ref}/previews: ports exposed at a URL."""

from __future__ import annotations

from skerry.server.http.call import Call, Empty
from skerry.server.routes.ports import port_of
from skerry.types import PreviewInfo, PreviewList, PreviewRequest


async def create(call: Call[Empty, PreviewRequest]) -> PreviewInfo:
    return call.engine.previews.create(call.caller, call.ref, call.body)


async def list_(call: Call[Empty, Empty]) -> PreviewList:
    return PreviewList(previews=call.engine.previews.list(call.caller, call.ref))


async def remove(call: Call[Empty, Empty]) -> None:
    call.engine.previews.remove(call.caller, call.ref, port_of(call))
