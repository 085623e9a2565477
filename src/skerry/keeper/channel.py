"""Requests and answers: what every call to a keeper has in common."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SandboxUnavailable,
    SkerryError,
    file_failure,
)
from skerry.keeper import messages
from skerry.keeper.connection import Connection
from skerry.keeper.failures import HostShort, KeeperLied, KeeperSilent
from skerry.keeper.values import Failed

Connect = Callable[[], Awaitable[socket.socket]]
T = TypeVar("T")

MAX_JSON: Final = 1 << 20
JSON: Final = "Content-Type: application/json\r\n"
_CHUNKED: Final = "Transfer-Encoding: chunked\r\n"
_PIECE: Final = 256 << 10
_SPARE: Final = 4
_SHORT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))

_CLASSES: dict[str, type[SkerryError]] = {
    "bad_cwd": InvalidRequest,
    "bad_range": InvalidRequest,
    "bad_request": InvalidRequest,
    "bad_signal": InvalidRequest,
    "busy": Conflict,
    "changed": Conflict,
    "conflict": Conflict,
    "interrupted": Conflict,
    "no_channel": Conflict,
    "no_match": Conflict,
    "no_process": NotFound,
    "no_room": QuotaExceeded,
    "no_shell": InvalidRequest,
    "no_terminal": Conflict,
    "no_tracker": NotFound,
    "not_running": Conflict,
    "running": Conflict,
    "stdin_closed": Conflict,
    "too_many": QuotaExceeded,
    "unknown_user": InvalidRequest,
}
_failed = msgspec.json.Decoder(Failed)
encode = msgspec.json.Encoder().encode


class Channel:
    """Requests and answers over a small set of kept connections."""

    def __init__(self, connect: Connect, time_limit: float) -> None:
        self.time_limit = time_limit
        self._connect = connect
        self._spare: list[Connection] = []
        self._closed = False

    async def open(self) -> Connection:
        while self._spare:
            connection = self._spare.pop()
            if connection.idle:
                return connection
            connection.close()
        if self._closed:
            raise KeeperSilent("this keeper's connections were closed")
        try:
            return await Connection.open(await self._connect())
        except OSError as error:
            if error.errno in _SHORT:
                raise HostShort(
                    f"the server can't open another connection: {error.strerror}",
                    hint="`skerry doctor` tells its limit of open files",
                ) from None
            raise KeeperSilent(f"the keeper can't be reached: {error}") from None

    def keep(self, connection: Connection) -> None:
        if connection.idle and not self._closed and len(self._spare) < _SPARE:
            self._spare.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._closed = True
        while self._spare:
            self._spare.pop().close()

    @asynccontextmanager
    async def exchange(self, limit: float | None = None) -> AsyncIterator[Connection]:
        """A connection for one exchange that has to be over in time; whatever goes wrong, it is not used again."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.time_limit if limit is None else limit):
                connection = await self.open()
                yield connection
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise KeeperSilent("the keeper did not answer in time") from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    async def call(
        self,
        answer: msgspec.json.Decoder[T],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        limit: int = MAX_JSON,
        takes_s: float = 0.0,
    ) -> T:
        """`takes_s`: how long the keeper may think before it answers."""
        data = b"" if body is None else encode(body)
        async with self.exchange(self.time_limit + takes_s) as connection:
            await connection.send(messages.request(method, path, query, headers=JSON if data else "", body=data))
            head = await connection.head()
            text = await connection.whole(head, limit)
        self.keep(connection)
        if head.status >= 300:
            raise failure(text)
        return decode(answer, text)

    async def ask(
        self,
        answer: msgspec.json.Decoder[T],
        method: str,
        path: str,
        query: messages.Query,
        *,
        limit: int = MAX_JSON,
        headers: str = "",
        body: bytes = b"",
    ) -> T:
        """A call that may take its time: as long as the keeper works, it sends a blank now and then. An error that it
        meets after the first of them is in the body of an answer that began well."""
        connection = await self.within(self.open())
        text = bytearray()
        try:
            await self.within(connection.send(messages.request(method, path, query, headers=headers, body=body)))
            head = await self.within(connection.head())
            pieces = connection.body(head)
            while (piece := await self.within(anext(pieces, None))) is not None:
                text += piece
                if len(text) > limit:
                    raise KeeperLied(f"the keeper sent an answer of more than {limit} bytes")
        except BaseException:
            connection.close()
            raise
        self.keep(connection)
        if head.status >= 300 or text.lstrip().startswith(b'{"error":'):
            raise failure(bytes(text))
        return decode(answer, bytes(text))

    async def upload(
        self,
        answer: msgspec.json.Decoder[T],
        path: str,
        query: messages.Query,
        content: bytes | AsyncIterable[bytes],
        size: int | None = None,
    ) -> T:
        """A PUT whose body may be long. How long it takes as a whole is the content's matter. `size`: that many bytes
        will come, which saves the framing of each piece."""
        connection = await self.within(self.open())
        whole = True
        try:
            if isinstance(content, bytes):
                await self.within(connection.send(messages.request("PUT", path, query, body=content)))
            else:
                headers = _CHUNKED if size is None else f"Content-Length: {size}\r\n"
                await connection.send(messages.request("PUT", path, query, headers=headers))
                whole = await self._send_all(connection, content, size)
            head = await self.within(connection.head())
            text = await self.within(connection.whole(head, MAX_JSON))
        except BaseException:
            connection.close()
            raise
        if head.status != 200:
            connection.close()  # it may still be reading the rest of what we sent
            raise failure(text)
        if whole:
            self.keep(connection)
        else:
            connection.close()  # another request would be taken for the rest of this one
        return decode(answer, text)

    async def _send_all(self, connection: Connection, content: AsyncIterable[bytes], size: int | None) -> bool:
        """Whether all was sent. An answer before the end is a refusal, or an archive's that is over before its last
        byte; a keeper that gave one need not be there any more. With a size, what comes beyond it would be taken for
        another request."""
        sent = 0
        async for data in content:
            if size is not None and sent + len(data) > size:
                break
            for start in range(0, len(data), _PIECE):
                if connection.buffer:
                    return False
                piece = data if len(data) <= _PIECE else data[start : start + _PIECE]
                frame = (f"{len(piece):x}\r\n".encode(), piece, b"\r\n") if size is None else (piece,)
                await self.within(connection.send(*frame))
            sent += len(data)
        else:
            if size is None and not connection.buffer:
                await self.within(connection.send(b"0\r\n\r\n"))
                return True
            if size is None or sent == size or connection.buffer:
                return sent == size
        raise InvalidRequest(f"the content is not of {size} bytes, as was said")

    async def within(self, work: Awaitable[T]) -> T:
        """The keeper has to take, or give, each piece in time."""
        try:
            async with asyncio.timeout(self.time_limit):
                return await work
        except TimeoutError:
            raise KeeperSilent("the keeper stopped in the middle of a file") from None


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeeperLied(f"the keeper sent a malformed answer: {str(error)[:200]}") from None


def failure(text: bytes) -> SkerryError:
    """The typed error for an error answer."""
    said = decode(_failed, text).error
    if said.code == "errno":
        return file_failure(said.errno, said.path or "", said.message)
    details: dict[str, Any] = {**(said.details or {}), **({} if said.path is None else {"path": said.path})}
    return _CLASSES.get(said.code, SandboxUnavailable)(said.message, details=details)
