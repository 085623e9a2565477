"""/v1/sandboxes/{ref}/previews: ports that people may look at."""

from __future__ import annotations

from skerry.server.call import Call, Nothing
from skerry.server.ports import port_of
from skerry.types import Answer, PreviewInfo, PreviewRequest


class PreviewList(Answer, frozen=True, kw_only=True):
    previews: list[PreviewInfo]


async def create(call: Call[Nothing, PreviewRequest]) -> PreviewInfo:
    return call.engine.previews.create(call.caller, call.ref, call.body)


async def list_(call: Call[Nothing, Nothing]) -> PreviewList:
    return PreviewList(previews=call.engine.previews.list(call.caller, call.ref))


async def remove(call: Call[Nothing, Nothing]) -> None:
    call.engine.previews.remove(call.caller, call.ref, port_of(call))
