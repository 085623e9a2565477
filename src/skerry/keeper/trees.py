"""Whole directories in a sandbox as archives, packed and unpacked by its keeper with a user's rights."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.errors import SkerryError, file_failure
from skerry.keeper import frames, messages
from skerry.keeper.channel import MAX_JSON, Channel, decode, failure
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied
from skerry.keeper.values import Failure
from skerry.keeper.watches import Watches
from skerry.types import Skipped, Transfer

_UPGRADE: Final = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\n"
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Left(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(max_length=8192)]
    reason: Annotated[str, Meta(max_length=1024)]
    raw: Annotated[bytes, Meta(max_length=8192)] | None = None


class _Moved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: _Count
    directories: _Count
    links: _Count
    bytes: _Count
    skipped: Annotated[list[_Left], Meta(max_length=1000)]
    more: _Count

    def told(self) -> Transfer:
        return Transfer(
            files=self.files,
            directories=self.directories,
            links=self.links,
            bytes=self.bytes,
            skipped=tuple(Skipped(path=one.path, reason=one.reason, raw_path=one.raw) for one in self.skipped),
            more=self.more,
        )


class _Packed(_Moved, frozen=True, kw_only=True, forbid_unknown_fields=True):
    error: Failure | None


_moved = msgspec.json.Decoder(_Moved)
_packed = msgspec.json.Decoder(_Packed)


class Archive:
    """`async for piece in archive`; afterwards `moved` says what was in it. An archive that can't be finished, because
    a file changed under the keeper's hands, ends with that error."""

    def __init__(self, channel: Channel, connection: Connection) -> None:
        self.moved: Transfer | None = None
        self._channel = channel
        self._connection = connection

    async def begin(self) -> None:
        kind, _ = await self._frame()
        if kind != frames.STARTED:
            raise KeeperLied("the keeper did not begin with a started frame")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.moved is not None:
            raise StopAsyncIteration
        try:
            kind, payload = await self._frame()
            while kind == frames.STARTED:  # it is still looking
                kind, payload = await self._frame()
            if kind == frames.STDOUT:
                return payload
            if kind != frames.EXIT:
                raise KeeperLied(f"the keeper sent a frame of type {kind} in an archive")
            end = decode(_packed, payload)
        except BaseException:
            self._connection.close()
            raise
        self.moved = end.told()
        self._channel.keep(self._connection)
        if end.error is not None:
            raise _told(end.error)
        raise StopAsyncIteration

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := frames.decode(self._connection.buffer)) is None:
            await self._channel.within(self._connection.more())
        return frame

    async def aclose(self) -> None:
        if self.moved is None:
            self._connection.close()


def _told(said: Failure) -> SkerryError:
    return file_failure(said.errno, said.path or "", said.message)


class Trees(Watches):
    async def pack(self, path: str, exclude: Sequence[str] = (), user: str | None = None) -> Archive:
        """A directory as an archive, without what the patterns exclude."""
        query = [("path", path), *(("exclude", one) for one in exclude)]
        if user is not None:
            query.append(("user", user))
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("GET", "/v1/files/tree", query, headers=_UPGRADE))
            head = await connection.head()
            if head.status == 101:
                archive = Archive(self._channel, connection)
                await archive.begin()
                return archive
            text = await connection.whole(head, MAX_JSON)
        self._channel.keep(connection)
        if head.status < 400:
            raise KeeperLied(f"the keeper answered for an archive with {head.status}")
        raise failure(text)

    async def unpack(self, path: str, archive: AsyncIterable[bytes], user: str | None = None) -> Transfer:
        """Makes what an archive holds below a directory, which is made too if it is missing."""
        query = {"path": path} if user is None else {"path": path, "user": user}
        return (await self._channel.upload(_moved, "/v1/files/tree", query, archive)).told()
