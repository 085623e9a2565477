"""/v1/sandboxes/{ref}/contexts: memories of languages that last from run to run; code runs in them at …/code."""

from __future__ import annotations

from typing import Any

from skerry.server.call import Call, Nothing
from skerry.types import Answer, ContextInfo, ContextRequest


class Contexts(Answer, frozen=True, kw_only=True):
    contexts: list[ContextInfo]


async def create(call: Call[Nothing, ContextRequest]) -> ContextInfo:
    return await call.engine.contexts.open(call.caller, call.ref, call.body)


async def list_(call: Call[Nothing, Nothing]) -> Contexts:
    return Contexts(contexts=call.engine.contexts.list(call.caller, call.ref))


async def get(call: Call[Nothing, Nothing]) -> ContextInfo:
    return call.engine.contexts.get(call.caller, call.ref, _name(call))


async def remove(call: Call[Nothing, Nothing]) -> None:
    await call.engine.contexts.delete(call.caller, call.ref, _name(call))


async def interrupt(call: Call[Nothing, Nothing]) -> ContextInfo:
    return await call.engine.contexts.interrupt(call.caller, call.ref, _name(call))


async def restart(call: Call[Nothing, Nothing]) -> ContextInfo:
    return await call.engine.contexts.restart(call.caller, call.ref, _name(call))


def _name(call: Call[Any, Any]) -> str:
    return call.parameters["context"]
