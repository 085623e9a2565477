"""/v1/sandboxes/{ref}/review: hunks, what is decided about them, and what is to land."""

from __future__ import annotations

from typing import Any

from skerry.errors import NotFound
from skerry.server.answers import BYTES, Stream
from skerry.server.call import Call, Nothing
from skerry.server.review import PathsQuery
from skerry.types import (
    HUNK_ID,
    OBJECT_ID,
    Accepted,
    AppliedRequest,
    Decided,
    DecideRequest,
    Hunk,
    HunkState,
    Review,
    Why,
)

DECIDE_LIMIT = 12 << 20  # ten thousand hunks, or edits of 8 MiB


class ReviewQuery(PathsQuery, frozen=True, kw_only=True):
    """`state`: only hunks that are so."""

    state: HunkState | None = None


async def show(call: Call[ReviewQuery, Nothing]) -> Review:
    return await call.engine.decisions.review(call.caller, call.ref, call.query.spelled, call.query.state)


async def hunk(call: Call[Nothing, Nothing]) -> Hunk:
    return await call.engine.decisions.hunk(call.caller, call.ref, hunk_of(call))


async def why(call: Call[Nothing, Nothing]) -> Why:
    return await call.engine.decisions.why(call.caller, call.ref, hunk_of(call))


async def decide(call: Call[Nothing, DecideRequest]) -> Decided:
    return await call.engine.decisions.decide(call.caller, call.ref, call.body)


async def accepted(call: Call[PathsQuery, Nothing]) -> Accepted:
    return await call.engine.decisions.accepted(call.caller, call.ref, call.query.spelled)


async def blob(call: Call[Nothing, Nothing]) -> Stream:
    oid = call.parameters["oid"]
    if not OBJECT_ID.fullmatch(oid):
        raise NotFound(f"there is no content {oid[:80]!r}")
    call.accepts(BYTES)
    size, pieces = await call.engine.decisions.blob(call.caller, call.ref, oid)
    return Stream(BYTES, pieces, pieces.aclose, length=size)


async def applied(call: Call[Nothing, AppliedRequest]) -> None:
    await call.engine.decisions.applied(call.caller, call.ref, call.body)


async def unapplied(call: Call[Nothing, AppliedRequest]) -> None:
    await call.engine.decisions.unapplied(call.caller, call.ref, call.body)


def hunk_of(call: Call[Any, Any]) -> str:
    """The hunk in the path; what can't be an id can't be found."""
    name = call.parameters["hunk"]
    if not HUNK_ID.fullmatch(name):
        raise NotFound(f"there is no hunk {name[:80]!r}")
    return name
