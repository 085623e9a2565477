"""/v1/sandboxes/{ref}/review: what changed in a workspace, command by command, as its ledger tells it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from skerry.engine import review_reading as reading
from skerry.engine.pulling import pulled
from skerry.errors import InvalidRequest
from skerry.server.answers import DIFF, JSON, NDJSON, Stream
from skerry.server.call import Call, Nothing
from skerry.types import OBJECT_ID, BeginReview, DiffStat, History, PathText, Review, Value, check_path

if TYPE_CHECKING:
    from skerry.engine.onlookers import Onlooker

BEGIN_LIMIT = 32 << 20  # every line of a project's ignore files, and what counts in spite of them
_encoder = msgspec.json.Encoder()


class PathsQuery(Value, frozen=True, kw_only=True):
    """`paths`, which may come often: files or directories, relative to the workspace; none: all of it."""

    paths: tuple[PathText, ...] = ()

    def __post_init__(self) -> None:
        for path in self.paths:
            check_path("paths", path)
            if path.startswith("/") or ".." in path.split("/"):
                raise InvalidRequest(f"paths: {path[:80]!r} is not below the workspace", hint="like src/app.py")

    @property
    def spelled(self) -> Sequence[bytes]:
        """As git has them; the workspace itself is all of it."""
        named = [os.fsencode(posixpath.normpath(path)) for path in self.paths]
        return () if b"." in named else named


class DiffQuery(PathsQuery, frozen=True, kw_only=True):
    """`stat=true`: only which files differ, and by how much, as JSON."""

    stat: bool = False


class HistoryQuery(PathsQuery, frozen=True, kw_only=True):
    """`since`: those after this commit. `patch=true`: with what each changed. `limit`: the newest so many."""

    since: str | None = None
    patch: bool = False
    limit: Annotated[int, Meta(ge=1, le=reading.HISTORY_MOST)] = reading.HISTORY_MOST

    def __post_init__(self) -> None:
        PathsQuery.__post_init__(self)
        _check_commit(self.since)


class WatchQuery(Value, frozen=True, kw_only=True):
    """`since`: what came after this commit is told first."""

    since: str | None = None

    def __post_init__(self) -> None:
        _check_commit(self.since)


def _check_commit(commit: str | None) -> None:
    if commit is not None and not OBJECT_ID.fullmatch(commit):
        raise InvalidRequest(f"since: {commit[:80]!r} is no commit", hint="forty hexadecimal digits, as in `tip`")


async def begin(call: Call[Nothing, BeginReview]) -> Review:
    reviews = call.engine.reviews
    tracked = await reviews.begin(call.caller, call.ref, call.body)
    return await reviews.in_thread(reading.head, tracked)


async def diff(call: Call[DiffQuery, Nothing]) -> Stream | DiffStat:
    reviews, query = call.engine.reviews, call.query
    call.accepts(JSON if query.stat else DIFF)
    tracked = await reviews.settled(call.caller, call.ref)
    if query.stat:
        return await reviews.read(tracked, reading.stat, tracked, query.spelled)
    pieces = await reviews.in_thread(reading.diff, tracked, query.spelled)
    return Stream(DIFF, pulled(partial(reviews.read, tracked), pieces))


async def history(call: Call[HistoryQuery, Nothing]) -> History:
    reviews, query = call.engine.reviews, call.query
    tracked = await reviews.settled(call.caller, call.ref)
    return await reviews.read(
        tracked, reading.history, tracked, query.since, query.spelled, query.limit, query.patch
    )  # fmt: skip


async def watch(call: Call[WatchQuery, Nothing]) -> Stream:
    call.accepts(NDJSON)
    onlooker = await call.engine.reviews.watch(call.caller, call.ref, call.query.since)
    return Stream(NDJSON, _lines(onlooker), onlooker.aclose, endless=True)


async def _lines(onlooker: Onlooker) -> AsyncGenerator[bytes, None]:
    """First that the watch stands; last that its sandbox is gone, if it is."""
    yield _encoder.encode({"type": "ready", "tip": onlooker.tip}) + b"\n"
    async for event in onlooker:
        yield _encoder.encode(event) + b"\n"
    yield b'{"type":"end"}\n'
