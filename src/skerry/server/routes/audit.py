"""/v1/audit: records of actions and events, their verification, their export and their public keys."""

from __future__ import annotations

import math
import re
from typing import Annotated

from msgspec import Meta

from skerry.engine.records.audit.index import AuditFilter
from skerry.errors import InvalidRequest
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import NDJSON, StreamResponse
from skerry.types import NAME, AuditKeys, AuditPage, AuditReport, Value, check_text

MAX_PAGE = 1000
_TYPE = re.compile(r"[a-z]{1,20}(?:\.[a-z][a-z0-9_]{0,29})?")


class AuditQuery(Value, frozen=True, kw_only=True):
    """`type`: a type like process.run, or the part before its dot. `actor`: a token's ID, uid:N, server or sandbox.
    `sandbox`: an ID, also of a deleted sandbox, or a name. `since`: a Unix time. `before`: records below this number,
    the `next` of the last page."""

    sandbox: str | None = None
    actor: str | None = None
    owner: str | None = None
    type: str | None = None
    since: float | None = None
    before: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100

    def __post_init__(self) -> None:
        if self.sandbox is not None and not NAME.fullmatch(self.sandbox):
            raise InvalidRequest(f"sandbox: {self.sandbox[:80]!r} is neither an id nor a name")
        if self.type is not None and not _TYPE.fullmatch(self.type):
            raise InvalidRequest(f"type: {self.type[:40]!r} is not a record type", hint="like process.run, or process")
        if self.since is not None and not (math.isfinite(self.since) and 0 <= self.since < 1e11):
            raise InvalidRequest(f"since: {self.since!r} is out of range", hint="a Unix time in seconds")
        for name, value in (("actor", self.actor), ("owner", self.owner)):
            check_text(name, value or "")
            if len(value or "") > 200:
                raise InvalidRequest(f"{name}: longer than 200 characters")


async def list_(call: Call[AuditQuery, Empty]) -> AuditPage:
    query, engine = call.query, call.engine
    sandbox = engine.registry.id_of(call.caller, query.sandbox) if query.sandbox is not None else None
    wanted = AuditFilter(query.owner, sandbox, query.actor, query.type, query.since)
    return await engine.audit.list(call.caller, wanted, query.before, query.limit)


async def verify(call: Call[Empty, Empty]) -> AuditReport:
    return await call.engine.audit.verify()


async def export(call: Call[Empty, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    found = await call.engine.audit.export()
    return StreamResponse(NDJSON, found.chunks(), close=found.aclose)


async def keys(call: Call[Empty, Empty]) -> AuditKeys:
    return call.engine.audit.keys()


async def rotate(call: Call[Empty, Empty]) -> AuditKeys:
    return await call.engine.audit.rotate_key()
