"""/v1/reviews, and packs of a review's objects: what a git remote reads."""

from __future__ import annotations

from skerry.server.answers import PACK, Stream
from skerry.server.call import Call, Nothing
from skerry.types import Answer, PackRequest, ReviewRefs, Value, check_text


class RefsQuery(Value, frozen=True, kw_only=True):
    """`origin`: only of those that came from there."""

    origin: str | None = None

    def __post_init__(self) -> None:
        check_text("origin", self.origin or "")


class ReviewList(Answer, frozen=True, kw_only=True):
    reviews: list[ReviewRefs]


async def list_(call: Call[RefsQuery, Nothing]) -> ReviewList:
    return ReviewList(reviews=await call.engine.remotes.list(call.caller, call.query.origin))


async def pack(call: Call[Nothing, PackRequest]) -> Stream:
    call.accepts(PACK)
    pieces = await call.engine.remotes.pack(call.caller, call.ref, call.body)
    return Stream(PACK, pieces, pieces.aclose)
