"""/v1/images/{export,import}, /v1/snapshots/…: file systems as archives that other tools read and write."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.errors import SkerryError
from skerry.server.answers import FRAMES, TAR, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.frames import Frames
from skerry.server.snapshots import ref_of
from skerry.types import ImportedImage, ImportedSnapshot, Value

if TYPE_CHECKING:
    from skerry.engine.archives import Export


class ImageQuery(Value, frozen=True, kw_only=True):
    """`name`: of the image."""

    name: str


async def export_image(call: Call[ImageQuery, Nothing]) -> Stream:
    wish = call.accepts(TAR, FRAMES)
    return _stream(wish, await call.engine.archives.image(call.caller, call.query.name))


async def export_snapshot(call: Call[Nothing, Nothing]) -> Stream:
    wish = call.accepts(TAR, FRAMES)
    return _stream(wish, await call.engine.archives.snapshot(call.caller, ref_of(call)))


class ImportQuery(Value, frozen=True, kw_only=True):
    """`name`: of the image to be. `replace`: also if there is one of that name."""

    name: str
    replace: bool = False


class ImportSnapshotQuery(Value, frozen=True, kw_only=True):
    """`name`: of the snapshot to be; it needs none."""

    name: str | None = None


async def import_image(call: Call[ImportQuery, Nothing]) -> ImportedImage:
    name, replace = call.query.name, call.query.replace
    return await call.with_body(lambda body: call.engine.archives.import_image(call.caller, name, replace, body))


async def import_snapshot(call: Call[ImportSnapshotQuery, Nothing]) -> ImportedSnapshot:
    return await call.with_body(lambda body: call.engine.archives.import_snapshot(call.caller, call.query.name, body))


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
