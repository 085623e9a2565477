"""Writing files of a sandbox."""

from __future__ import annotations

from skerry.client import backend_async as backend
from skerry.client import file_requests as requests
from skerry.client._async.reading import AsyncFileReading
from skerry.client.content import check_source, whole
from skerry.client.file_requests import InsidePath
from skerry.client.listing import real
from skerry.types import FileInfo


class AsyncFileWriting(AsyncFileReading):
    async def write(
        self,
        path: InsidePath,
        content: backend.AnySource,
        *,
        mode: int | None = None,
        owner: str | int | None = None,
        user: str | None = None,
        parents: bool = True,
    ) -> FileInfo:
        """Write a file in one step: readers see the old content or the new. File objects and iterables are streamed.

        A file that is there keeps its mode and owner, unless others are given. `owner` is "user", "user:group" or an
        id; only root may give a file away."""
        check_source(content)
        known = whole(content)
        body = known if known is not None else backend.chunks(content)
        request = requests.write_file(
            self._sandbox.id, path, body, mode=mode, owner=owner, user=user, parents=parents
        )  # fmt: skip
        return real(await self._sandbox.client.value(request, FileInfo))

    async def append(
        self, path: InsidePath, content: backend.AnySource, *, user: str | None = None, parents: bool = True
    ) -> FileInfo:
        """Add to a file's end, as the content comes; one that is missing is made."""
        check_source(content)
        known = whole(content)
        body = known if known is not None else backend.chunks(content)
        request = requests.append_file(self._sandbox.id, path, body, user=user, parents=parents)
        return real(await self._sandbox.client.value(request, FileInfo))
