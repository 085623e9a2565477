"""/v1/images: what sandboxes start from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from skerry.errors import SkerryError
from skerry.server.answers import NDJSON, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.types import Answer, ImageInfo, Progress, Pruned, PullRequest, Value, Verified


class BuildRequest(Value, frozen=True, kw_only=True):
    """Make an image that Skerry knows how to make. One that is there already is made
    again if this version makes it otherwise; with `rebuild` in any case."""

    name: str = "base"
    rebuild: bool = False


class FromSnapshot(Value, frozen=True, kw_only=True):
    """An image of that name with a snapshot's files; one that has the name is replaced."""

    snapshot: str
    name: str


class Images(Answer, frozen=True, kw_only=True):
    images: list[ImageInfo]


async def list_(call: Call[Nothing, Nothing]) -> Images:
    return Images(images=await call.engine.images.shown())


async def get(call: Call[Nothing, Nothing]) -> ImageInfo:
    (image,) = await call.engine.images.shown(call.parameters["name"])
    return image


async def remove(call: Call[Nothing, Nothing]) -> None:
    await call.engine.images.remove(call.parameters["name"])


async def from_snapshot(call: Call[Nothing, FromSnapshot]) -> ImageInfo:
    return await call.engine.snapshots.to_image(call.caller, call.body.snapshot, call.body.name)


async def build(call: Call[Nothing, BuildRequest]) -> Stream:
    return Stream(NDJSON, _lines(call.engine.images.build(call.body.name, call.body.rebuild)))


async def pull(call: Call[Nothing, PullRequest]) -> Stream:
    return Stream(NDJSON, _lines(call.engine.images.pull(call.body)))


class PruneRequest(Value, frozen=True, kw_only=True):
    """`all`: images that nothing stands on too, and not only what is left of others."""

    all: bool = False


async def prune(call: Call[Nothing, PruneRequest]) -> Pruned:
    return await call.engine.images.prune(call.body.all)


class VerifyRequest(Value, frozen=True, kw_only=True):
    """`name`: an image; none: every layer that there is."""

    name: str | None = None


async def verify(call: Call[Nothing, VerifyRequest]) -> Stream:
    return Stream(NDJSON, _lines(call.engine.images.verify(call.body.name)))


_WORDS = {Progress: "progress", ImageInfo: "image", Verified: "verified"}


async def _lines(steps: AsyncIterator[Progress | ImageInfo | Verified]) -> AsyncGenerator[bytes, None]:
    try:
        async for step in steps:
            yield msgspec.json.encode({_WORDS[type(step)]: step}) + b"\n"
    except SkerryError as error:
        yield error_body(error) + b"\n"
