"""Files in a sandbox, through its keeper: with the rights of one of its users, whose refusals are real."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.keeper import messages
from skerry.keeper.channel import MAX_JSON, Channel, failure
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied, KeeperSilent
from skerry.keeper.trees import Trees
from skerry.keeper.values import File, Listing
from skerry.types import FileInfo

MAX_LISTING: Final = 32 << 20

_file = msgspec.json.Decoder(File)
_listing = msgspec.json.Decoder(Listing)
_nothing = msgspec.json.Decoder(dict[str, int])


class FileContent:
    """`async for piece in content`. `size` is the whole file's; a part may be shorter than asked for, never longer."""

    def __init__(self, channel: Channel, connection: Connection, head: messages.Head, most: int | None) -> None:
        self.size = head.total
        self._channel = channel
        self._connection = connection
        self._pieces = connection.body(head)
        self._left = 0 if head.status == 416 else most

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout(self._channel.time_limit):
                piece = await anext(self._pieces)
        except TimeoutError:
            self._connection.close()
            raise KeeperSilent("the keeper stopped in the middle of a file") from None
        except StopAsyncIteration:
            self._channel.keep(self._connection)
            raise
        except BaseException:
            self._connection.close()
            raise
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                self._connection.close()
                raise KeeperLied("the keeper sent more of a file than was asked for")
        return piece

    async def read(self, limit: int) -> bytes:
        """All of it, if it is no more than the limit."""
        parts = bytearray()
        async for piece in self:
            parts += piece
            if len(parts) > limit:
                await self.aclose()
                raise InvalidRequest(f"the file is larger than {limit} bytes")
        return bytes(parts)

    async def aclose(self) -> None:
        self._connection.close()


class Files(Trees):
    """`keeper.files`. `user` None: the configured one. Relative paths begin at the configured cwd."""

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> FileContent:
        """A regular file's content from `start` up to, not including, `end`."""
        headers, most = _range(start, end)
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("GET", "/v1/files", _query(path, user), headers=headers))
            head = await connection.head()
            if head.status in (200, 206, 416):
                return FileContent(self._channel, connection, head, most if head.status == 206 else None)
            text = await connection.whole(head, MAX_JSON)
        self._channel.keep(connection)
        raise failure(text)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        mode: int | None = None,
        user: str | None = None,
        parents: bool = False,
    ) -> FileInfo:
        """Replaces a file, all or nothing. One that is there keeps its owner, and its mode unless one is given."""
        query = _query(path, user, mode="" if mode is None else f"{mode:o}", parents="1" if parents else "")
        return _info(await self._channel.upload(_file, "/v1/files", query, content), path)

    async def stat(self, path: str, user: str | None = None) -> FileInfo:
        return _info(await self._channel.call(_file, "GET", "/v1/files/stat", _query(path, user)), path)

    async def list(self, path: str, user: str | None = None) -> tuple[list[FileInfo], bool]:
        """A directory's entries by name, and whether there are more than are listed."""
        listing = await self._channel.call(_listing, "GET", "/v1/files/list", _query(path, user), limit=MAX_LISTING)
        return [_info(entry, posixpath.join(path, entry.name)) for entry in listing.entries], listing.more

    async def mkdir(
        self, path: str, parents: bool = False, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        body = {"path": path, "parents": parents, "mode": mode, "user": user}
        return _info(await self._channel.call(_file, "POST", "/v1/files/mkdir", body=body), path)

    async def remove(self, path: str, recursive: bool = False, user: str | None = None) -> None:
        query = _query(path, user, recursive="1" if recursive else "")
        await self._channel.call(_nothing, "DELETE", "/v1/files", query)


def _query(path: str, user: str | None, **more: str) -> dict[str, str]:
    query = {"path": path} | {name: value for name, value in more.items() if value}
    return query if user is None else query | {"user": user}


def _range(start: int | None, end: int | None) -> tuple[str, int | None]:
    if start is None and end is None:
        return "", None
    first = start or 0
    if first < 0 or (end is not None and end <= first):
        raise InvalidRequest(f"the range from {start} to {end} is empty or negative")
    if end is None:
        return f"Range: bytes={first}-\r\n", None
    return f"Range: bytes={first}-{end - 1}\r\n", end - first


def _info(file: File, path: str) -> FileInfo:
    return FileInfo(
        name=file.name,
        path=path,
        type=file.type,
        size=file.size,
        mode=file.mode,
        uid=file.uid,
        gid=file.gid,
        mtime=file.mtime,
        target=file.target,
    )
