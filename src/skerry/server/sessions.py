"""/v1/sandboxes/{ref}/sessions: shells whose state lasts; their commands are …/processes with `session`."""

from __future__ import annotations

from skerry.errors import NotFound
from skerry.server.call import Call, Nothing
from skerry.types import NAME, Answer, SessionInfo, SessionRequest


class Sessions(Answer, frozen=True, kw_only=True):
    sessions: list[SessionInfo]


async def open_(call: Call[Nothing, SessionRequest]) -> SessionInfo:
    return await call.engine.sessions.open(call.caller, call.ref, call.body)


async def list_(call: Call[Nothing, Nothing]) -> Sessions:
    return Sessions(sessions=await call.engine.sessions.list(call.caller, call.ref))


async def get(call: Call[Nothing, Nothing]) -> SessionInfo:
    return await call.engine.sessions.get(call.caller, call.ref, _name(call))


async def remove(call: Call[Nothing, Nothing]) -> None:
    await call.engine.sessions.remove(call.caller, call.ref, _name(call))


def _name(call: Call[Nothing, Nothing]) -> str:
    name = call.parameters["session"]
    if not NAME.fullmatch(name):
        raise NotFound(f"there is no session {name[:80]!r}")
    return name
