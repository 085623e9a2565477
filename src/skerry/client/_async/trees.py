"""The part of `sandbox.files` that moves whole directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import file_requests as requests
from skerry.client._async.watching import AsyncWatch
from skerry.client.content import open_host_file
from skerry.client.file_requests import InsidePath
from skerry.client.frames import ERROR, EXIT, STDOUT, FrameDecoder
from skerry.client.landing import SingleFile
from skerry.client.packing import Packer, is_file, readable
from skerry.client.patterns import Patterns
from skerry.client.responses import decode, error_frame
from skerry.client.unpacking import Unpacker
from skerry.errors import FileNotDirectory, SandboxUnavailable
from skerry.types import FileInfo, Progress, Transfer, parse_size

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox

HostPath = str | os.PathLike[str]


class AsyncTrees:
    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    def watch(
        self,
        path: InsidePath = ".",
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> AsyncWatch:
        """The changes below a directory, as they come: created, modified, moved, removed.

        It stands once its `async with` block is entered or its first event is asked for. `include` and `exclude` are
        patterns like "*.py" or "node_modules". Each event has a `token`: with `since=token` a later watch first tells
        what happened after that event. An `overflow` says that changes were missed: look at all again."""
        wish = requests.WatchWish(path, recursive, Patterns(include, "include").texts, Patterns(exclude).texts, user)
        return AsyncWatch(self._sandbox, wish, since)

    async def upload(
        self,
        local: HostPath,
        remote: InsidePath,
        *,
        gitignore: bool = False,
        exclude: Sequence[str] = (),
        user: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Transfer:
        """Bring a directory of this host in: what is in `local` is in `remote` afterwards, with its modes, times and
        links. `remote` is made if it is missing; what is there already stays, unless a file of that name comes.

        With `gitignore`, only what git would take: tracked files, and others that no .gitignore names. `exclude` are
        patterns like "*.pyc" or "build/*.o". What could not be brought is in the answer's `skipped`. A `local` that is
        a file becomes the file `remote`."""
        sandbox = self._sandbox
        if is_file(local):
            return await self._upload_file(local, remote, user)
        packer = Packer(local, exclude=exclude, ignoring=gitignore, progress=progress)
        try:
            request = requests.upload_tree(sandbox.id, remote, backend.chunks(packer), user)
            return packer.told(await sandbox.client.value(request, Transfer))
        finally:
            packer.close()

    async def _upload_file(self, local: HostPath, remote: InsidePath, user: str | None) -> Transfer:
        sandbox = self._sandbox
        source, mode = open_host_file(local)
        with source:
            body = backend.chunks(source)
            request = requests.write_file(sandbox.id, remote, body, mode=mode, user=user, parents=True)
            info = await sandbox.client.value(request, FileInfo)
        return Transfer(files=1, directories=0, links=0, bytes=info.size)

    async def download(
        self,
        remote: InsidePath,
        local: HostPath,
        *,
        exclude: Sequence[str] = (),
        outside_links: bool = False,
        limit: int | str | None = None,
        user: str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Transfer:
        """Bring a directory out: what is in `remote` is in `local` afterwards. Nothing is ever written outside of
        `local`, whatever the sandbox says. Files of the same name are replaced, each in one step.

        Links that lead out of `remote` are left out unless `outside_links`; set-id bits don't come along. `limit`
        is the most bytes to take. What did not come is in the answer's `skipped`. A `remote` that is a file becomes
        the file `local`."""
        most = parse_size(limit, "limit") if limit is not None else None
        patterns = Patterns(exclude).texts
        try:
            return await self._download(
                remote,
                patterns,
                user,
                lambda: Unpacker(local, outside_links=outside_links, limit=most, progress=progress),
            )
        except FileNotDirectory:
            return await self._download_file(remote, local, most, user)

    async def _download(
        self, remote: InsidePath, exclude: Sequence[str], user: str | None, prepare: Callable[[], Unpacker]
    ) -> Transfer:
        sandbox, frames = self._sandbox, FrameDecoder()
        async with sandbox.client.stream(requests.download_tree(sandbox.id, remote, exclude, user)) as chunks:
            unpacker = prepare()  # only now that there is something to come
            try:
                async for chunk in chunks:
                    for kind, payload in frames.feed(chunk):
                        if kind == STDOUT:
                            await backend.in_thread(unpacker.feed, payload)
                        elif kind == EXIT:
                            return unpacker.finish(readable(decode(payload, Transfer)))
                        elif kind == ERROR:
                            raise error_frame(payload)
            finally:
                unpacker.close()
        raise SandboxUnavailable("the archive broke off", hint="`skerry show` tells the sandbox's state")

    async def _download_file(self, remote: InsidePath, local: HostPath, most: int | None, user: str | None) -> Transfer:
        sandbox = self._sandbox
        info = await sandbox.client.value(requests.look(sandbox.id, "stat", remote, user), FileInfo)
        async with sandbox.client.stream(requests.read_file(sandbox.id, remote, user=user)) as chunks:
            with SingleFile(local, info.mode if info.type == "file" else 0o644, most) as file:
                async for chunk in chunks:
                    file.write(chunk)
        return Transfer(files=1, directories=0, links=0, bytes=file.size)
