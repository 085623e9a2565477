"""Files in a sandbox, through its keeper: with the rights of one of its users, whose refusals are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import msgspec

from skerry.errors import InvalidRequest
from skerry.keeper import messages
from skerry.keeper.channel import MAX_JSON, Channel, failure
from skerry.keeper.connection import Connection
from skerry.keeper.editing import Editing
from skerry.keeper.entries import file, info, octal, query
from skerry.keeper.failures import KeeperLied, KeeperSilent
from skerry.keeper.values import Checksum
from skerry.types import FileInfo

_checksum = msgspec.json.Decoder(Checksum)


class FileContent:
    """`async for piece in content`. `size` is the whole file's; a part may be shorter than asked for, never longer.
    `beyond`: there is nothing at that place. A file that says that it is empty is given whole: those of /proc do so."""

    def __init__(self, channel: Channel, connection: Connection, head: messages.Head, most: int | None) -> None:
        self.size = head.total
        self.part = head.status == 206
        self.beyond = head.status == 416
        self._channel = channel
        self._connection = connection
        self._pieces = connection.body(head)
        self._left = 0 if self.beyond else most

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


class Files(Editing):
    """`keeper.files`. `user` None: the configured one. Relative paths begin at the configured cwd."""

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> FileContent:
        """A regular file's content from `start` up to, not including, `end`."""
        headers, most = _range(start, end)
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("GET", "/v1/files", query(path, user), headers=headers))
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
        owner: str | None = None,
        size: int | None = None,
    ) -> FileInfo:
        """Replaces a file, all or nothing. One that is there keeps its owner and its mode unless others are given."""
        wish = query(path, user, mode=octal(mode), parents=parents, owner=owner)
        return info(await self._channel.upload(file, "/v1/files", wish, content, size), path)

    async def append(
        self, path: str, content: bytes | AsyncIterable[bytes], user: str | None = None, *, parents: bool = False
    ) -> FileInfo:
        """Adds to a file as the content comes, and makes it if there is none."""
        wish = query(path, user, append=True, parents=parents)
        return info(await self._channel.upload(file, "/v1/files", wish, content), path)

    async def checksum(self, path: str, algorithm: str, user: str | None = None) -> str:
        wish = query(path, user, algorithm=algorithm)
        return (await self._channel.ask(_checksum, "GET", "/v1/files/checksum", wish)).checksum


def _range(start: int | None, end: int | None) -> tuple[str, int | None]:
    if start is None and end is None:
        return "", None
    first = start or 0
    if first < 0 or (end is not None and end <= first):
        raise InvalidRequest(f"the range from {start} to {end} is empty or negative")
    if end is None:
        return f"Range: bytes={first}-\r\n", None
    return f"Range: bytes={first}-{end - 1}\r\n", end - first
