"""Archives of images and snapshots: out of a server into a file of this host, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client.archive_files import ArchiveFile, HostFile
from skerry.client.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.client.packing import readable
from skerry.client.responses import decode, error_frame
from skerry.errors import SkerryError
from skerry.types import Transfer

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient
    from skerry.client.requests import Request


async def export(client: AsyncClient, request: Request, target: HostFile) -> Transfer:
    frames = FrameDecoder()
    async with client.stream(request) as chunks:
        with ArchiveFile(target) as file:
            async for chunk in chunks:
                for kind, payload in frames.feed(chunk):
                    if kind == STDOUT:
                        await backend.in_thread(file.write, payload)
                    elif kind == EXIT:
                        return readable(decode(payload, Transfer))
                    elif kind == ERROR:
                        raise error_frame(payload)
            raise SkerryError("the archive broke off", hint="`skerry server logs` may tell why")
