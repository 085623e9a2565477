"""Changes below a directory of a sandbox, as the keeper reports them. Every line is checked."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skerry.errors import QuotaExceeded, SkerryError
from skerry.keeper import http1
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.lines import LineReader
from skerry.keeper.transport import Transport, decode, failure
from skerry.types import FileEvent, encode_path

_Seq = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Path = Annotated[str, Meta(max_length=128 << 10)]
_Raw = Annotated[bytes, Meta(max_length=64 << 10)]


class _Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hello", tag_field="type"):
    watcher: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    seq: _Seq
    lost: bool


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seq: _Seq
    type: Literal["created", "modified", "moved", "removed", "overflow"]
    path: _Path
    to: _Path | None
    directory: bool
    raw: _Raw | None = None
    raw_to: _Raw | None = None


class _ChangeType(msgspec.Struct):
    type: str


_position = msgspec.json.Decoder(_Position)
_change = msgspec.json.Decoder(_Change)
_change_type = msgspec.json.Decoder(_ChangeType)


class ChangeStream:
    """`async for event in changes`, until the directory itself is removed. `token` is the position after the last."""

    def __init__(self, connection: KeeperConnection, head: http1.Head, path: str) -> None:
        if head.length is not None:
            raise KeeperProtocolError("the keeper's changes have a length")
        self._connection = connection
        self._lines = LineReader(connection.body(head))
        self._path = path
        self._watcher = ""
        self._seq = 0
        self._lost = False  # an overflow event is due
        self._ended = False

    async def read_header(self, transport: Transport) -> None:
        """Read the first line: from now on no change is missed. While the keeper scans the directories, it sends a
        blank now and then; if it fails after the first blank, the error is the whole body."""
        line = await self._lines.next(transport.in_time)
        if line is None:
            raise watch_error(self._lines.rest)
        self._move_to(decode(_position, line))

    @property
    def token(self) -> str:
        return f"{self._watcher}.{self._seq}"

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return self

    async def __anext__(self) -> FileEvent:
        try:
            while not self._lost:
                if self._ended:
                    self._connection.close()
                    raise StopAsyncIteration
                line = await self._next()
                if decode(_change_type, line).type != "hello":
                    return self._event(decode(_change, line))
                self._move_to(decode(_position, line))
        except StopAsyncIteration:
            raise
        except BaseException:
            self._connection.close()
            raise
        self._lost = False
        path, raw_path = encode_path(self._path)
        return FileEvent(type="overflow", path=path, token=self.token, directory=True, raw_path=raw_path)

    def _move_to(self, position: _Position) -> None:
        if self._watcher and (position.watcher != self._watcher or position.seq <= self._seq or not position.lost):
            raise KeeperProtocolError("the keeper lost changes without reporting them")
        self._watcher, self._seq, self._lost = position.watcher, position.seq, position.lost

    def _event(self, change: _Change) -> FileEvent:
        if change.seq != self._seq + 1 or (change.type == "moved") != (change.to is not None):
            raise KeeperProtocolError(f"the keeper sent change {change.seq} after {self._seq}")
        self._seq = change.seq
        path, raw_path = self._full_path(change.path, change.raw, may_be_root=change.type in ("removed", "overflow"))
        to, raw_to = (None, None) if change.to is None else self._full_path(change.to, change.raw_to)
        self._ended = change.type == "removed" and not change.path and change.raw is None
        return FileEvent(
            type=change.type, path=path, token=self.token, to=to, directory=change.directory,
            raw_path=raw_path, raw_to=raw_to,
        )  # fmt: skip

    def _full_path(self, relative: str, raw: bytes | None, *, may_be_root: bool = False) -> tuple[str, bytes | None]:
        """Return the path below the watched directory, as the caller named that directory."""
        below = relative.encode() if raw is None else raw
        if not below and may_be_root:
            return encode_path(self._path)
        if any(part in (b"", b".", b"..") or b"\0" in part for part in below.split(b"/")):
            raise KeeperProtocolError("the keeper reported a change outside the watched directory")
        return encode_path(posixpath.join(self._path, os.fsdecode(below)))

    async def _next(self) -> bytes:
        line = await self._lines.next()
        if line is None:
            raise KeeperProtocolError("the keeper's changes ended before the directory was removed")
        return line

    async def aclose(self) -> None:
        self._connection.close()


def watch_error(text: bytes) -> SkerryError:
    error = failure(text)
    if isinstance(error, QuotaExceeded):
        error.hint = "exclude directories that need not be watched, close other watches, or raise the sysctl limit"
    return error
