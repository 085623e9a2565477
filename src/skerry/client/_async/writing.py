"""Writing files of a sandbox."""

from __future__ import annotations

from skerry.client import backend_async as backend
from skerry.client import file_requests as requests
from skerry.client._async.reading import AsyncFileReading
from skerry.client.content import check_source, size_of, whole
from skerry.client.file_requests import InsidePath
from skerry.client.listing import real
from skerry.client.requests import Body
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
        body, size = _body(content)
        request = requests.write_file(
            self._sandbox.id, path, body, size=size, mode=mode, owner=owner, user=user, parents=parents
        )  # fmt: skip
        return real(await self._sandbox.client.value(request, FileInfo))

    async def append(
        self, path: InsidePath, content: backend.AnySource, *, user: str | None = None, parents: bool = True
    ) -> FileInfo:
        """Add to a file's end, as the content comes; one that is missing is made."""
        body, size = _body(content)
        request = requests.append_file(self._sandbox.id, path, body, size=size, user=user, parents=parents)
        return real(await self._sandbox.client.value(request, FileInfo))


def _body(content: backend.AnySource) -> tuple[Body, int | None]:
    """What is sent, and how much of it is known to come."""
    check_source(content)
    known = whole(content)
    return (known, None) if known is not None else (backend.chunks(content), size_of(content))
