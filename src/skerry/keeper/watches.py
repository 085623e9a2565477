"""Changes below a directory of a sandbox, as its keeper tells them. Every line is checked."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from skerry.errors import QuotaExceeded, SkerryError
from skerry.keeper import messages
from skerry.keeper.channel import MAX_JSON, Channel, decode, failure
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied
from skerry.types import FileEvent, told_path

_LINE: Final = 1 << 20
_Seq = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Path = Annotated[str, Meta(max_length=128 << 10)]
_Raw = Annotated[bytes, Meta(max_length=64 << 10)]


class _Standing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hello", tag_field="type"):
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


class _Kind(msgspec.Struct):
    type: str


_standing = msgspec.json.Decoder(_Standing)
_change = msgspec.json.Decoder(_Change)
_kind = msgspec.json.Decoder(_Kind)


class Changes:
    """`async for event in changes`, until the directory itself is gone. `token` is where the last one stands."""

    def __init__(self, connection: Connection, head: messages.Head, path: str) -> None:
        if head.length is not None:
            raise KeeperLied("the keeper's changes have a length")
        self._connection = connection
        self._pieces = connection.body(head)
        self._line = bytearray()
        self._path = path
        self._watcher = ""
        self._seq = 0
        self._lost = False  # to be told
        self._ended = False

    async def begin(self, channel: Channel) -> None:
        """Reads the first line: from now on nothing is missed. As long as it is looking at the directories, the keeper
        sends a blank now and then; an error that it meets after the first of them is all that it says."""
        while b"\n" not in self._line:
            piece = await channel.within(anext(self._pieces, None))
            if piece is None:
                raise _refusal(bytes(self._line))
            self._line += piece
            if len(self._line) > _LINE:
                raise KeeperLied("the keeper sent a change without end")
        self._stand(decode(_standing, await self._next()))

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
                if decode(_kind, line).type != "hello":
                    return self._event(decode(_change, line))
                self._stand(decode(_standing, line))
        except StopAsyncIteration:
            raise
        except BaseException:
            self._connection.close()
            raise
        self._lost = False
        path, raw_path = told_path(self._path)
        return FileEvent(type="overflow", path=path, token=self.token, directory=True, raw_path=raw_path)

    def _stand(self, standing: _Standing) -> None:
        if self._watcher and (standing.watcher != self._watcher or standing.seq <= self._seq or not standing.lost):
            raise KeeperLied("the keeper lost changes that it had not told of")
        self._watcher, self._seq, self._lost = standing.watcher, standing.seq, standing.lost

    def _event(self, change: _Change) -> FileEvent:
        if change.seq != self._seq + 1 or (change.type == "moved") != (change.to is not None):
            raise KeeperLied(f"the keeper gave change {change.seq} after {self._seq}")
        self._seq = change.seq
        path, raw_path = self._place(change.path, change.raw, may_be_root=change.type in ("removed", "overflow"))
        to, raw_to = (None, None) if change.to is None else self._place(change.to, change.raw_to)
        self._ended = change.type == "removed" and not change.path and change.raw is None
        return FileEvent(
            type=change.type, path=path, token=self.token, to=to, directory=change.directory,
            raw_path=raw_path, raw_to=raw_to,
        )  # fmt: skip

    def _place(self, relative: str, raw: bytes | None, *, may_be_root: bool = False) -> tuple[str, bytes | None]:
        """Where it is, from where the caller said that he watches."""
        below = relative.encode() if raw is None else raw
        if not below and may_be_root:
            return told_path(self._path)
        if any(part in (b"", b".", b"..") or b"\0" in part for part in below.split(b"/")):
            raise KeeperLied("the keeper told of a change that lies elsewhere")
        return told_path(posixpath.join(self._path, os.fsdecode(below)))

    async def _next(self) -> bytes:
        while (end := self._line.find(b"\n")) < 0:
            if len(self._line) > _LINE:
                raise KeeperLied("the keeper sent a change without end")
            try:
                self._line += await anext(self._pieces)
            except StopAsyncIteration:
                raise KeeperLied("the keeper's changes ended before their directory did") from None
        line = bytes(self._line[:end])
        del self._line[: end + 1]
        return line

    async def aclose(self) -> None:
        self._connection.close()


class Watches:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def watch(
        self,
        path: str,
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> Changes:
        """Changes below a directory, from now on or from a token on."""
        query = [("path", path), ("recursive", "1" if recursive else "0")]
        query += [("include", one) for one in include] + [("exclude", one) for one in exclude]
        query += [(name, value) for name, value in (("since", since), ("user", user)) if value is not None]
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("GET", "/v1/files/watch", query))
            head = await connection.head()
            text = await connection.whole(head, MAX_JSON) if head.status != 200 else b""
        if head.status != 200:
            self._channel.keep(connection)
            raise _refusal(text)
        try:
            changes = Changes(connection, head, path)
            await changes.begin(self._channel)
        except BaseException:
            connection.close()
            raise
        return changes


def _refusal(text: bytes) -> SkerryError:
    error = failure(text)
    if isinstance(error, QuotaExceeded):
        error.hint = "exclude what need not be watched, close other watches, or raise the host's limit with sysctl"
    return error
