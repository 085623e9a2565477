"""/v1/sandboxes/{ref}/contexts: interpreters that keep variables between runs; …/code runs code in them."""

from __future__ import annotations

from typing import Any

from skerry.server.http.call import Call, Empty
from skerry.types import ContextInfo, ContextList, ContextRequest


async def create(call: Call[Empty, ContextRequest]) -> ContextInfo:
    return await call.engine.contexts.open(call.caller, call.ref, call.body)


async def list_(call: Call[Empty, Empty]) -> ContextList:
    return ContextList(contexts=call.engine.contexts.list(call.caller, call.ref))


async def get(call: Call[Empty, Empty]) -> ContextInfo:
    return call.engine.contexts.get(call.caller, call.ref, _name(call))


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.contexts.delete(call.caller, call.ref, _name(call))


async def interrupt(call: Call[Empty, Empty]) -> ContextInfo:
    return await call.engine.contexts.interrupt(call.caller, call.ref, _name(call))


async def restart(call: Call[Empty, Empty]) -> ContextInfo:
    return await call.engine.contexts.restart(call.caller, call.ref, _name(call))


def _name(call: Call[Any, Any]) -> str:
    return call.parameters["context"]
