"""/v1/images/export, /v1/snapshots/{snapshot}/export: file systems as archives that other tools read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.errors import SkerryError
from skerry.server.answers import FRAMES, TAR, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.frames import Frames
from skerry.server.snapshots import ref_of
from skerry.types import Value

if TYPE_CHECKING:
    from skerry.engine.archives import Export


class ImageQuery(Value, frozen=True, kw_only=True):
    """`name`: of the image."""

    name: str


async def export_image(call: Call[ImageQuery, Nothing]) -> Stream:
    wish = call.accepts(TAR, FRAMES)
    return _stream(wish, await call.engine.archives.image(call.query.name))


async def export_snapshot(call: Call[Nothing, Nothing]) -> Stream:
    wish = call.accepts(TAR, FRAMES)
    return _stream(wish, await call.engine.archives.snapshot(call.caller, ref_of(call)))


def _stream(wish: str, export: Export) -> Stream:
    return Stream(wish, _frames(export) if wish == FRAMES else _pieces(export), export.aclose)


async def _pieces(export: Export) -> AsyncGenerator[bytes, None]:
    async for piece in export:
        yield piece


async def _frames(export: Export) -> AsyncGenerator[bytes, None]:
    """The archive with its end told: what was in it, or what cut it short."""
    form = Frames()
    try:
        async for piece in export:
            yield form.output("stdout", piece)
        yield form.exit(export.moved)
    except SkerryError as error:
        yield form.error(error_body(error))
