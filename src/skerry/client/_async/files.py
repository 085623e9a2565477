"""`sandbox.files`: the file system inside, through the keeper. Paths are absolute, or relative to the sandbox's cwd."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator

from skerry.client import backend_async as backend
from skerry.client import requests
from skerry.client._async.trees import AsyncTrees
from skerry.client.content import check_source, whole
from skerry.client.requests import InsidePath
from skerry.client.responses import EntryList
from skerry.errors import FileMissing, FileNotDirectory
from skerry.types import FileInfo


class AsyncFiles(AsyncTrees):
    """Each call acts with the rights of `user` (the image's user unless named); errors are also the builtins they are:
    FileNotFoundError, IsADirectoryError, PermissionError …"""

    async def read_bytes(self, path: InsidePath, *, user: str | None = None) -> bytes:
        return b"".join([piece async for piece in self.stream(path, user=user)])

    async def read_text(self, path: InsidePath, *, encoding: str = "utf-8", user: str | None = None) -> str:
        return (await self.read_bytes(path, user=user)).decode(encoding)

    async def stream(self, path: InsidePath, *, user: str | None = None) -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece: for what does not fit into memory."""
        sandbox = self._sandbox
        async with sandbox.client.stream(requests.read_file(sandbox.id, path, user)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def write(
        self,
        path: InsidePath,
        content: backend.AnySource,
        *,
        mode: int | None = None,
        user: str | None = None,
        parents: bool = True,
    ) -> FileInfo:
        """Write a file in one step: readers see the old content or the new. File objects and iterables are streamed."""
        check_source(content)
        sandbox = self._sandbox
        known = whole(content)
        body = known if known is not None else backend.chunks(content)
        request = requests.write_file(sandbox.id, path, body, mode=mode, user=user, parents=parents)
        return await sandbox.client.value(request, FileInfo)

    async def list(self, path: InsidePath = ".", *, user: str | None = None) -> builtins.list[FileInfo]:
        """The entries of a directory, at most 100,000."""
        sandbox = self._sandbox
        return (await sandbox.client.value(requests.list_files(sandbox.id, path, user), EntryList)).entries

    async def stat(self, path: InsidePath, *, user: str | None = None) -> FileInfo:
        """One path; a link is not followed."""
        sandbox = self._sandbox
        return await sandbox.client.value(requests.stat_file(sandbox.id, path, user), FileInfo)

    async def exists(self, path: InsidePath, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except (FileMissing, FileNotDirectory):
            return False
        return True

    async def mkdir(
        self, path: InsidePath, *, parents: bool = True, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Make a directory; with `parents` also those above it, and one that is there already is fine."""
        sandbox = self._sandbox
        request = requests.make_directory(sandbox.id, path, parents=parents, mode=mode, user=user)
        return await sandbox.client.value(request, FileInfo)

    async def remove(self, path: InsidePath, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file or an empty directory; with `recursive`, a directory and all that is in it."""
        sandbox = self._sandbox
        await sandbox.client.done(requests.remove_file(sandbox.id, path, recursive=recursive, user=user))
