"""/v1/sandboxes/{ref}/network: what may leave a sandbox, what was tried, and questions about what no rule names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.server.answers import NDJSON, Stream
from skerry.server.call import Call, Nothing
from skerry.types import Attempt, Network, NetworkChange, NetworkInfo, Question, Reply, Value

LIMIT = 2 << 20  # a policy of many hosts, and presets with their certificates
LOG_MOST = 100_000
_QUESTION = re.compile(r"q-[a-z2-7]{10}")
_encoder = msgspec.json.Encoder()


class LogQuery(Value, frozen=True, kw_only=True):
    """`since`: what came after this number. `follow=true`: go on as it comes. `denied=true`: only what was refused.
    `limit`: at most so many lines, the newest ones; none: all that is kept."""

    since: int = 0
    follow: bool = False
    denied: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.since < 1 << 53:
            raise InvalidRequest(f"since: {self.since} is out of range", hint="an attempt's seq, or 0 for all")
        if self.limit is not None and not 1 <= self.limit <= LOG_MOST:
            raise InvalidRequest(f"limit: {self.limit} is out of range", hint=f"1 to {LOG_MOST:,}")
        if self.limit is not None and self.follow:
            raise InvalidRequest("limit: a log that is followed has no end", hint="leave `limit` or `follow` out")


async def show(call: Call[Nothing, Nothing]) -> NetworkInfo:
    return call.engine.network.show(call.caller, call.ref)


async def set_(call: Call[Nothing, Network]) -> NetworkInfo:
    return await call.engine.network.set(call.caller, call.ref, call.body)


async def change(call: Call[Nothing, NetworkChange]) -> NetworkInfo:
    return await call.engine.network.change(call.caller, call.ref, call.body)


async def log(call: Call[LogQuery, Nothing]) -> Stream:
    call.accepts(NDJSON)
    query = call.query
    pages = await call.engine.network.log(call.caller, call.ref, query.since, query.follow, query.denied)
    lines = _lines(pages) if query.limit is None else _last(pages, query.limit)
    return Stream(NDJSON, lines, endless=query.follow)


async def learn(call: Call[Nothing, Nothing]) -> Network:
    return await call.engine.network.learn(call.caller, call.ref)


async def questions(call: Call[Nothing, Nothing]) -> Stream:
    call.accepts(NDJSON)
    return Stream(NDJSON, _lines(call.engine.network.questions(call.caller, call.ref)), endless=True)


async def reply(call: Call[Nothing, Reply]) -> None:
    question = call.parameters["question"]
    if not _QUESTION.fullmatch(question):
        raise NotFound(f"there is no question {question[:40]!r}")
    await call.engine.network.reply(call.caller, call.ref, question, call.body)


async def _lines(
    pages: AsyncGenerator[list[Attempt], None] | AsyncGenerator[list[Question], None],
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pages) as told:
        async for page in told:
            yield _encoded(page)


async def _last(pages: AsyncGenerator[list[Attempt], None], limit: int) -> AsyncGenerator[bytes, None]:
    kept: list[Attempt] = []
    async with contextlib.aclosing(pages) as told:
        async for page in told:
            kept = [*kept, *page][-limit:]
    yield _encoded(kept)


def _encoded(values: Iterable[Attempt] | Iterable[Question]) -> bytes:
    return b"".join(_encoder.encode(value) + b"\n" for value in values)
