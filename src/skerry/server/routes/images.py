"""/v1/images: the file systems that sandboxes start from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import NDJSON, StatusResponse, StreamResponse, error_body
from skerry.types import ImageInfo, ImageList, Progress, PruneResult, PullRequest, Value, VerifyResult


class CreateImage(Value, frozen=True, kw_only=True):
    """POST /v1/images. Without `snapshot`: build the built-in image `name` (default `base`); an existing image is
    rebuilt if this version builds it differently, or always with `rebuild`. With `snapshot`: create the image `name`
    from a snapshot's files, replacing an image of that name."""

    name: str | None = None
    rebuild: bool = False
    snapshot: str | None = None

    def __post_init__(self) -> None:
        if self.snapshot is None:
            return
        if self.name is None:
            raise InvalidRequest("name: missing", hint="the name of the image to create from the snapshot")
        if self.rebuild:
            raise InvalidRequest("rebuild: not allowed with snapshot")


async def list_(call: Call[Empty, Empty]) -> ImageList:
    return ImageList(images=await call.engine.images.shown())


async def get(call: Call[Empty, Empty]) -> ImageInfo:
    (image,) = await call.engine.images.shown(call.parameters["name"])
    return image


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.images.remove(call.parameters["name"])


async def create(call: Call[Empty, CreateImage]) -> StreamResponse | StatusResponse:
    body = call.body
    if body.snapshot is not None and body.name is not None:
        return StatusResponse(201, await call.engine.snapshots.to_image(call.caller, body.snapshot, body.name))
    return StreamResponse(NDJSON, progress_lines(call.engine.images.build(body.name or "base", body.rebuild)))


async def pull(call: Call[Empty, PullRequest]) -> StreamResponse:
    return StreamResponse(NDJSON, progress_lines(call.engine.images.pull(call.body)))


class PruneRequest(Value, frozen=True, kw_only=True):
    """`all`: also remove images without dependents, not only unused layers."""

    all: bool = False


async def prune(call: Call[Empty, PruneRequest]) -> PruneResult:
    return await call.engine.images.prune(call.body.all)


class VerifyRequest(Value, frozen=True, kw_only=True):
    """`name`: an image; default: every stored layer."""

    name: str | None = None


async def verify(call: Call[Empty, VerifyRequest]) -> StreamResponse:
    return StreamResponse(NDJSON, progress_lines(call.engine.images.verify(call.body.name)))


_WORDS = {Progress: "progress", ImageInfo: "image", VerifyResult: "verified"}


async def progress_lines(steps: AsyncIterator[Progress | ImageInfo | VerifyResult]) -> AsyncGenerator[bytes, None]:
    try:
        async for step in steps:
            yield msgspec.json.encode({_WORDS[type(step)]: step}) + b"\n"
    except SkerryError as error:
        yield error_body(error) + b"\n"
