"""Requests to a keeper and its responses, over a small set of kept connections."""

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
    file_error,
)
from skerry.keeper import http1
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import HostResourceError, KeeperProtocolError, KeeperTimeout
from skerry.keeper.values import FailedRequest
from skerry.telemetry import keeper_span

Connect = Callable[[], Awaitable[socket.socket]]
T = TypeVar("T")

MAX_JSON: Final = 1 << 20
UPGRADE: Final = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\n"
JSON: Final = "Content-Type: application/json\r\n"
_CHUNKED: Final = "Transfer-Encoding: chunked\r\n"
_PIECE: Final = 256 << 10
_MAX_SPARE: Final = 32  # of commands that run at the same time
_KEPT_SPARE: Final = 4  # longer than a moment: each takes memory of the keeper
_TRIM_AFTER_S: Final = 2.0
_RESOURCE_ERRNOS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))

_CLASSES: dict[str, type[SkerryError]] = {
    "bad_cwd": InvalidRequest,
    "bad_range": InvalidRequest,
    "bad_request": InvalidRequest,
    "bad_signal": InvalidRequest,
    "busy": Conflict,
    "changed": Conflict,
    "conflict": Conflict,
    "interrupted": Conflict,
    "limit_exceeded": QuotaExceeded,
    "no_channel": Conflict,
    "no_match": Conflict,
    "no_process": NotFound,
    "no_shell": InvalidRequest,
    "no_terminal": Conflict,
    "no_tracker": NotFound,
    "not_running": Conflict,
    "resource_exhausted": QuotaExceeded,
    "running": Conflict,
    "stdin_closed": Conflict,
    "unknown_user": InvalidRequest,
}
_error = msgspec.json.Decoder(FailedRequest)
encode = msgspec.json.Encoder().encode


class Transport:
    """Send requests over a small set of kept connections."""

    def __init__(self, connect: Connect, timeout: float) -> None:
        self.timeout = timeout
        self._connect = connect
        self._spare: list[KeeperConnection] = []
        self._trimming: asyncio.TimerHandle | None = None
        self._closed = False

    async def acquire(self) -> KeeperConnection:
        """Return an idle connection, or open one."""
        while self._spare:
            connection = self._spare.pop()
            if connection.idle:
                return connection
            connection.close()
        if self._closed:
            raise KeeperTimeout("the connections to this keeper were closed")
        try:
            return await KeeperConnection.open(await self._connect())
        except OSError as error:
            if error.errno in _RESOURCE_ERRNOS:
                raise HostResourceError(
                    f"the server cannot open another connection: {error.strerror}",
                    hint="`skerry doctor` shows the limit of open files",
                ) from None
            raise KeeperTimeout(f"the keeper cannot be reached: {error}") from None

    def release(self, connection: KeeperConnection) -> None:
        """Keep a connection for the next request, or close it if it is not idle."""
        if connection.idle and not self._closed and len(self._spare) < _MAX_SPARE:
            self._spare.append(connection)
            if len(self._spare) > _KEPT_SPARE and self._trimming is None:
                self._trimming = asyncio.get_running_loop().call_later(_TRIM_AFTER_S, self._trim)
        else:
            connection.close()

    def _trim(self) -> None:
        self._trimming = None
        surplus, self._spare = self._spare[:-_KEPT_SPARE], self._spare[-_KEPT_SPARE:]
        for connection in surplus:
            connection.close()

    def close(self) -> None:
        self._closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        while self._spare:
            self._spare.pop().close()

    @asynccontextmanager
    async def exchange(self, limit: float | None = None) -> AsyncIterator[KeeperConnection]:
        """Yield a connection for one request and its response, which must finish in time. Close it on any error."""
        connection: KeeperConnection | None = None
        try:
            async with asyncio.timeout(self.timeout if limit is None else limit):
                connection = await self.acquire()
                yield connection
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise KeeperTimeout("the keeper did not answer in time") from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    async def call(
        self,
        response: msgspec.json.Decoder[T],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        limit: int = MAX_JSON,
        takes_s: float = 0.0,
    ) -> T:
        """Send a request and decode the response. The keeper may work for `takes_s` before it answers."""
        data = b"" if body is None else encode(body)
        request = http1.request(method, path, query, headers=JSON if data else "", body=data)
        with keeper_span(request):
            return await self._call(response, request, limit, takes_s)

    async def _call(self, response: msgspec.json.Decoder[T], request: bytes, limit: int, takes_s: float) -> T:
        async with self.exchange(self.timeout + takes_s) as connection:
            await connection.send(request)
            head = await connection.head()
            text = await connection.whole(head, limit)
        self.release(connection)
        if head.status >= 300:
            raise failure(text)
        return decode(response, text)

    async def call_slow(
        self,
        response: msgspec.json.Decoder[T],
        method: str,
        path: str,
        query: http1.Query,
        *,
        limit: int = MAX_JSON,
        headers: str = "",
        body: bytes = b"",
    ) -> T:
        """Send a request that may take long. While the keeper works, it sends a blank now and then. An error after the
        first blank is in the body of a response with status 200."""
        request = http1.request(method, path, query, headers=headers, body=body)
        with keeper_span(request):
            return await self._call_slow(response, request, limit)

    async def _call_slow(self, response: msgspec.json.Decoder[T], request: bytes, limit: int) -> T:
        connection = await self.in_time(self.acquire())
        text = bytearray()
        try:
            await self.in_time(connection.send(request))
            head = await self.in_time(connection.head())
            pieces = connection.body(head)
            while (piece := await self.in_time(anext(pieces, None))) is not None:
                text += piece
                if len(text) > limit:
                    raise KeeperProtocolError(f"the keeper sent a response of more than {limit} bytes")
        except BaseException:
            connection.close()
            raise
        self.release(connection)
        if head.status >= 300 or text.lstrip().startswith(b'{"error":'):
            raise failure(bytes(text))
        return decode(response, bytes(text))

    async def upload(
        self,
        response: msgspec.json.Decoder[T],
        path: str,
        query: http1.Query,
        content: bytes | AsyncIterable[bytes],
        size: int | None = None,
    ) -> T:
        """Send a PUT with a long body. Only each piece has a timeout, not the whole upload. With `size`, the number of
        bytes to come, pieces need no chunk framing."""
        connection = await self.in_time(self.acquire())
        whole = True
        try:
            if isinstance(content, bytes):
                await self.in_time(connection.send(http1.request("PUT", path, query, body=content)))
            else:
                headers = _CHUNKED if size is None else f"Content-Length: {size}\r\n"
                await connection.send(http1.request("PUT", path, query, headers=headers))
                whole = await self._send_all(connection, content, size)
            head = await self.in_time(connection.head())
            text = await self.in_time(connection.whole(head, MAX_JSON))
        except BaseException:
            connection.close()
            raise
        if head.status != 200:
            connection.close()  # the keeper may still be reading the rest of the body
            raise failure(text)
        if whole:
            self.release(connection)
        else:
            connection.close()  # the keeper would read another request as the rest of this one
        return decode(response, text)

    async def _send_all(self, connection: KeeperConnection, content: AsyncIterable[bytes], size: int | None) -> bool:
        """Return whether all content was sent. A response before the end is an error, or belongs to an archive that
        ends before its last byte; the keeper may have closed the connection. Bytes beyond `size` would be read as
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
                await self.in_time(connection.send(*frame))
            sent += len(data)
        else:
            if size is None and not connection.buffer:
                await self.in_time(connection.send(b"0\r\n\r\n"))
                return True
            if size is None or sent == size or connection.buffer:
                return sent == size
        raise InvalidRequest(f"the content does not have the announced size of {size} bytes")

    async def in_time(self, work: Awaitable[T]) -> T:
        """Fail if the keeper does not read or send a piece in time."""
        try:
            async with asyncio.timeout(self.timeout):
                return await work
        except TimeoutError:
            raise KeeperTimeout("the keeper stopped in the middle of a file") from None


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeeperProtocolError(f"the keeper sent a malformed response: {str(error)[:200]}") from None


def failure(text: bytes) -> SkerryError:
    """Return the typed error for an error response."""
    error = decode(_error, text).error
    if error.code == "errno":
        return file_error(error.errno, error.path or "", error.message)
    details: dict[str, Any] = {**(error.details or {}), **({} if error.path is None else {"path": error.path})}
    return _CLASSES.get(error.code, SandboxUnavailable)(error.message, details=details)
