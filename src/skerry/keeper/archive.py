"""Directories of a sandbox as archives, packed by its keeper with the permissions of a user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.codecs.frames import take
from skerry.errors import file_error
from skerry.keeper import frames
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.transport import Transport, decode
from skerry.keeper.values import Count, ErrorDetail
from skerry.types import Skipped, TransferResult


class _SkippedPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(max_length=8192)]
    reason: Annotated[str, Meta(max_length=1024)]
    raw: Annotated[bytes, Meta(max_length=8192)] | None = None


class TransferSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: Count
    directories: Count
    links: Count
    bytes: Count
    skipped: Annotated[list[_SkippedPath], Meta(max_length=1000)]
    more: Count

    def result(self) -> TransferResult:
        return TransferResult(
            files=self.files,
            directories=self.directories,
            links=self.links,
            bytes=self.bytes,
            skipped=tuple(Skipped(path=one.path, reason=one.reason, raw_path=one.raw) for one in self.skipped),
            more=self.more,
        )


class _PackSummary(TransferSummary, frozen=True, kw_only=True, forbid_unknown_fields=True):
    error: ErrorDetail | None


_summary = msgspec.json.Decoder(_PackSummary)


class ArchiveStream:
    """`async for piece in archive`; afterwards `moved` counts its entries. An archive that cannot be finished, because
    a file changed while the keeper read it, ends with that error."""

    def __init__(self, transport: Transport, connection: KeeperConnection) -> None:
        self.moved: TransferResult | None = None
        self._transport = transport
        self._connection = connection

    async def read_header(self) -> None:
        kind, _ = await self._frame()
        if kind != frames.STARTED:
            raise KeeperProtocolError("the keeper's first frame is not a started frame")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.moved is not None:
            raise StopAsyncIteration
        try:
            kind, payload = await self._frame()
            while kind == frames.STARTED:  # the keeper is still scanning
                kind, payload = await self._frame()
            if kind == frames.STDOUT:
                return payload
            if kind != frames.EXIT:
                raise KeeperProtocolError(f"the keeper sent a frame of type {kind} in an archive")
            end = decode(_summary, payload)
        except BaseException:
            self._connection.close()
            raise
        self.moved = end.result()
        self._transport.release(self._connection)
        if (error := end.error) is not None:
            raise file_error(error.errno, error.path or "", error.message)
        raise StopAsyncIteration

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := take(self._connection.buffer, frames.RUN)) is None:
            await self._transport.in_time(self._connection.more())
        return frame

    async def aclose(self) -> None:
        if self.moved is None:
            self._connection.close()
