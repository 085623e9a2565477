"""/v1/sandboxes/{ref}/network: the network policy, the log of attempts, and approval requests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import BYTES, JSON, NDJSON, StreamResponse
from skerry.types import (
    Approval,
    ApprovalRequest,
    CassetteInfo,
    HandlerCall,
    HandlerDecision,
    Network,
    NetworkAttempt,
    NetworkChange,
    NetworkInfo,
    Value,
)

LIMIT = 2 << 20  # room for many hosts and for presets with certificates
MAX_LOG = 100_000
_APPROVAL = re.compile(r"q-[a-z2-7]{10}")
_CALL = re.compile(r"h-[a-z2-7]{10}")
_encoder = msgspec.json.Encoder()


class AttemptLogQuery(Value, frozen=True, kw_only=True):
    """`since`: attempts after this number. `follow=true`: stream new attempts. `denied=true`: only denied attempts.
    `limit`: the maximum number of lines, newest kept; default: all stored lines."""

    since: int = 0
    follow: bool = False
    denied: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.since < 1 << 53:
            raise InvalidRequest(f"since: {self.since} is out of range", hint="an attempt's seq, or 0 for all")
        if self.limit is not None and not 1 <= self.limit <= MAX_LOG:
            raise InvalidRequest(f"limit: {self.limit} is out of range", hint=f"1 to {MAX_LOG:,}")
        if self.limit is not None and self.follow:
            raise InvalidRequest("limit: a log that is followed has no end", hint="leave `limit` or `follow` out")


class HandlerQuery(Value, frozen=True, kw_only=True):
    """`host`: of the handler, as the policy has it. `client`: a random text that is the same when a client connects
    again; a client that another one has replaced gets an error then."""

    host: str
    client: str = ""

    def __post_init__(self) -> None:
        if len(self.client) > 64:
            raise InvalidRequest("client: longer than 64 characters")


async def show(call: Call[Empty, Empty]) -> NetworkInfo:
    return call.engine.network.show(call.caller, call.ref)


async def set_(call: Call[Empty, Network]) -> NetworkInfo:
    return await call.engine.network.set(call.caller, call.ref, call.body)


async def change(call: Call[Empty, NetworkChange]) -> NetworkInfo:
    return await call.engine.network.change(call.caller, call.ref, call.body)


async def log(call: Call[AttemptLogQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    query = call.query
    pages = await call.engine.network.log(call.caller, call.ref, query.since, query.follow, query.denied)
    lines = _lines(pages) if query.limit is None else _last(pages, query.limit)
    return StreamResponse(NDJSON, lines, endless=query.follow)


async def suggested_policy(call: Call[Empty, Empty]) -> Network:
    return await call.engine.network.learn(call.caller, call.ref)


async def cassette(call: Call[Empty, Empty]) -> CassetteInfo | StreamResponse:
    if call.accepts(JSON, BYTES) == JSON:
        return await call.engine.network.cassette_info(call.caller, call.ref)
    pieces = await call.engine.network.cassette(call.caller, call.ref)
    return StreamResponse(BYTES, pieces, pieces.aclose)


async def load_cassette(call: Call[Empty, Empty]) -> CassetteInfo:
    return await call.stream_body(lambda body: call.engine.network.load_cassette(call.caller, call.ref, body))


async def approvals(call: Call[Empty, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    return StreamResponse(NDJSON, _lines(call.engine.network.questions(call.caller, call.ref)), endless=True)


async def handler_calls(call: Call[HandlerQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    return StreamResponse(
        NDJSON,
        _lines(call.engine.handlers.read(call.caller, call.ref, call.query.host, call.query.client)),
        endless=True,
    )


async def decide_call(call: Call[Empty, HandlerDecision]) -> None:
    name = call.parameters["call"]
    if not _CALL.fullmatch(name):
        raise NotFound(f"handler call {name[:40]!r} not found")
    call.engine.handlers.decide(call.caller, call.ref, name, call.body)


async def answer_approval(call: Call[Empty, Approval]) -> None:
    approval = call.parameters["approval"]
    if not _APPROVAL.fullmatch(approval):
        raise NotFound(f"approval request {approval[:40]!r} not found")
    await call.engine.network.reply(call.caller, call.ref, approval, call.body)


async def _lines(
    pages: AsyncGenerator[list[NetworkAttempt], None]
    | AsyncGenerator[list[ApprovalRequest], None]
    | AsyncGenerator[list[HandlerCall], None],
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pages) as stream:
        async for page in stream:
            yield _encoded(page)


async def _last(pages: AsyncGenerator[list[NetworkAttempt], None], limit: int) -> AsyncGenerator[bytes, None]:
    kept: list[NetworkAttempt] = []
    async with contextlib.aclosing(pages) as stream:
        async for page in stream:
            kept = [*kept, *page][-limit:]
    yield _encoded(kept)


def _encoded(values: Iterable[NetworkAttempt | ApprovalRequest | HandlerCall]) -> bytes:
    return b"".join(_encoder.encode(value) + b"\n" for value in values)
