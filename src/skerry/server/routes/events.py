"""/v1/events: events of sandboxes and their processes, as lines of JSON."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator

import msgspec

from skerry.engine.events import EventFilter
from skerry.errors import InvalidRequest
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import NDJSON, StreamResponse
from skerry.types import NAME, Event, Value

_TYPE = re.compile(r"[a-z]{1,20}(?:\.[a-z][a-z0-9_]{0,29})?")
_encoder = msgspec.json.Encoder()


class EventStreamQuery(Value, frozen=True, kw_only=True):
    """`since`: events after this number. `follow=true`: stream new events. `sandbox`: an ID or a name. `type`: one
    type, or `sandbox` or `process` for all of their types."""

    follow: bool = False
    since: int | None = None
    sandbox: str | None = None
    type: str | None = None

    def __post_init__(self) -> None:
        if self.since is not None and not 0 <= self.since < 1 << 53:
            raise InvalidRequest(f"since: {self.since} is out of range", hint="an event's seq, or 0 for all")
        if self.sandbox is not None and not NAME.fullmatch(self.sandbox):
            raise InvalidRequest(f"sandbox: {self.sandbox[:80]!r} is neither an id nor a name")
        if self.type is not None and not _TYPE.fullmatch(self.type):
            raise InvalidRequest(
                f"type: {self.type[:40]!r} is not an event type", hint="like process.ended, or process"
            )


async def list_(call: Call[EventStreamQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    return StreamResponse(NDJSON, _lines(call), endless=call.query.follow)


async def _lines(call: Call[EventStreamQuery, Empty]) -> AsyncGenerator[bytes, None]:
    query = call.query
    wanted = EventFilter(call.caller, query.sandbox, query.type)
    async with contextlib.aclosing(call.engine.events.read(wanted, query.since, query.follow)) as pages:
        async for page in pages:
            yield b"".join(map(_line, page))


def _line(event: Event) -> bytes:
    return _encoder.encode(event) + b"\n"
