"""/v1/sandboxes/{ref}/sessions: shells that keep their state; commands run in them by …/processes with `session`."""

from __future__ import annotations

from skerry.errors import NotFound
from skerry.server.http.call import Call, Empty
from skerry.types import NAME, SessionInfo, SessionList, SessionRequest


async def open_(call: Call[Empty, SessionRequest]) -> SessionInfo:
    return await call.engine.sessions.open(call.caller, call.ref, call.body)


async def list_(call: Call[Empty, Empty]) -> SessionList:
    return SessionList(sessions=await call.engine.sessions.list(call.caller, call.ref))


async def get(call: Call[Empty, Empty]) -> SessionInfo:
    return await call.engine.sessions.get(call.caller, call.ref, _name(call))


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.sessions.remove(call.caller, call.ref, _name(call))


def _name(call: Call[Empty, Empty]) -> str:
    name = call.parameters["session"]
    if not NAME.fullmatch(name):
        raise NotFound(f"session {name[:80]!r} not found")
    return name
