"""/v1/images/{export,import}, /v1/snapshots/…: export and import file systems as archives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.errors import SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.frames import FrameEncoder
from skerry.server.http.responses import FRAMES, TAR, StreamResponse, error_body
from skerry.server.routes.snapshots import ref_of
from skerry.types import ImportedImage, ImportedSnapshot, Value

if TYPE_CHECKING:
    from skerry.engine.images.archives import ArchiveExport


class ImageQuery(Value, frozen=True, kw_only=True):
    """`name`: the name of the image."""

    name: str


async def export_image(call: Call[ImageQuery, Empty]) -> StreamResponse:
    media_type = call.accepts(TAR, FRAMES)
    return stream(media_type, await call.engine.archives.image(call.caller, call.query.name))


async def export_snapshot(call: Call[Empty, Empty]) -> StreamResponse:
    media_type = call.accepts(TAR, FRAMES)
    return stream(media_type, await call.engine.archives.snapshot(call.caller, ref_of(call)))


class ImportQuery(Value, frozen=True, kw_only=True):
    """`name`: the name of the new image. `replace`: replace an existing image of that name."""

    name: str
    replace: bool = False


class ImportSnapshotQuery(Value, frozen=True, kw_only=True):
    """`name`: an optional name for the new snapshot."""

    name: str | None = None


async def import_image(call: Call[ImportQuery, Empty]) -> ImportedImage:
    name, replace = call.query.name, call.query.replace
    return await call.stream_body(lambda body: call.engine.archives.import_image(call.caller, name, replace, body))


async def import_snapshot(call: Call[ImportSnapshotQuery, Empty]) -> ImportedSnapshot:
    return await call.stream_body(lambda body: call.engine.archives.import_snapshot(call.caller, call.query.name, body))


def stream(media_type: str, export: ArchiveExport) -> StreamResponse:
    """Return a response with an archive, plain or in frames with its totals."""
    return StreamResponse(media_type, _frames(export) if media_type == FRAMES else _pieces(export), export.aclose)


async def _pieces(export: ArchiveExport) -> AsyncGenerator[bytes, None]:
    async for piece in export:
        yield piece


async def _frames(export: ArchiveExport) -> AsyncGenerator[bytes, None]:
    """Send the archive, then a frame with the totals or the error that ended it."""
    form = FrameEncoder()
    try:
        async for piece in export:
            yield form.output("stdout", piece)
        yield form.exit(export.moved)
    except SkerryError as error:
        yield form.error(error_body(error))
