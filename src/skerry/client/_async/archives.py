"""Archives of images and snapshots: out of a server into a file of this host, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry.client import archive_requests as requests
from skerry.client import backend_async as backend
from skerry.client.archive_files import ArchiveFile, HostFile, Watcher, source
from skerry.client.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.client.packing import readable
from skerry.client.responses import decode, error_frame
from skerry.errors import SkerryError
from skerry.types import ImageInfo, ImportedImage, ImportedSnapshot, Progress, SnapshotInfo, Transfer

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient
    from skerry.client.requests import Request


async def export(client: AsyncClient, request: Request, target: HostFile, progress: Watcher | None = None) -> Transfer:
    frames, done = FrameDecoder(), 0
    async with client.stream(request) as chunks:
        with ArchiveFile(target) as file:
            async for chunk in chunks:
                for kind, payload in frames.feed(chunk):
                    if kind == STDOUT:
                        await backend.in_thread(file.write, payload)
                        done += len(payload)
                        if progress is not None:
                            progress(Progress(stage="export", done=done))
                    elif kind == EXIT:
                        return readable(decode(payload, Transfer))
                    elif kind == ERROR:
                        raise error_frame(payload)
            raise SkerryError("the archive broke off", hint="`skerry server logs` may tell why")


async def import_image(
    client: AsyncClient,
    name: str,
    replace: bool,
    given: HostFile,
    on_notice: Callable[[str], None] | None,
    progress: Watcher | None,
) -> ImageInfo:
    with source(given, progress) as pieces:
        request = requests.import_image(name, replace, backend.chunks(pieces))
        answer = await client.value(request, ImportedImage)
    _tell(answer.notices, on_notice)
    return answer.image


async def import_snapshot(
    client: AsyncClient,
    name: str | None,
    given: HostFile,
    on_notice: Callable[[str], None] | None,
    progress: Watcher | None,
) -> SnapshotInfo:
    with source(given, progress) as pieces:
        request = requests.import_snapshot(name, backend.chunks(pieces))
        answer = await client.value(request, ImportedSnapshot)
    _tell(answer.notices, on_notice)
    return answer.snapshot


def _tell(notices: tuple[str, ...], on_notice: Callable[[str], None] | None) -> None:
    if on_notice is not None:
        for notice in notices:
            on_notice(notice)
