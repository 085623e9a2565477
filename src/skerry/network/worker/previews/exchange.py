"""One request through a preview, and its answer: each parsed as strictly as h11 does and written anew, so that both
sides see the same message; bodies pass as they come, in both directions at once and at the slower one's speed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import h11

from skerry.network.worker.previews import headers, pages
from skerry.network.worker.previews.address import Place
from skerry.network.worker.previews.pages import Ended
from skerry.network.worker.previews.upstream import BUFFER, Upstream, Upstreams, end, write

SILENT_S = 120.0  # a client that sends nothing of a body that it announced
AFTERWARDS_S = 2.0  # how long what a client still sends is taken, after an answer that did not wait for it
AFTERWARDS_MOST = 1 << 20
RECENT_S = 1.0
TURN = 64
_AGAIN = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))


class Client:
    """The other end: a browser's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head_most: int) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=head_most)
        self.method = b""

    async def event(self, within: float | None) -> h11.Event | type[h11.PAUSED]:
        """The next part of what it sends. TimeoutError: it sent nothing for so long."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            async with asyncio.timeout(within):
                self.http.receive_data(await self.reader.read(BUFFER))
        return event  # type: ignore[return-value]

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            await write(self.writer, data)

    @property
    def left(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    async def hear_out(self) -> None:
        """The answer is out and the request is not all in. To close now would reset the connection, and with it the
        answer."""
        with contextlib.suppress(TimeoutError, OSError):
            end(self.writer)
            async with asyncio.timeout(AFTERWARDS_S):
                taken = 0
                while taken < AFTERWARDS_MOST and (data := await self.reader.read(BUFFER)):
                    taken += len(data)


class Exchange:
    """`used` is called with every piece that passes."""

    def __init__(self, client: Client, upstreams: Upstreams, place: Place, peer: str, used: Callable[[], None]) -> None:
        self._client = client
        self._upstreams = upstreams
        self._place = place
        self._peer = peer
        self._used = used
        self._websocket = False
        self._pieces = 0
        self._begun = False  # the client has the head of an answer
        self.upstream: Upstream | None = None

    def end(self) -> None:
        """At once, from both sides."""
        self._client.writer.transport.abort()
        if self.upstream is not None:
            self.upstream.abort()

    @property
    def abandoned(self) -> bool:
        """The client has gone; nobody would notice while the program inside has nothing to say."""
        return self._client.left

    async def run(self, request: h11.Request, target: str) -> None:
        """Raises Ended with what the client is to be told, as long as it was not told anything."""
        received: headers.Headers = list(request.headers)
        self._websocket = request.method == b"GET" and headers.asks_for_websocket(received)
        chunked, length = (headers.value(received, name) for name in (b"transfer-encoding", b"content-length"))
        bodiless = chunked is None and length in (None, "0")
        lines = headers.forwarded(received, self._place, self._peer, self._websocket)
        if chunked is not None:  # this connection's own framing, as the other one had its own
            lines.append((b"transfer-encoding", b"chunked"))
        ahead = h11.Request(method=request.method, target=target, http_version=b"1.1", headers=lines)
        try:
            await self._run(ahead, bodiless)
        finally:
            if self.upstream is not None:
                self._upstreams.keep(self.upstream)
                self.upstream = None

    async def _run(self, request: h11.Request, bodiless: bool) -> None:
        repeatable = bodiless and request.method in _AGAIN
        upstream = self.upstream = self._upstreams.kept() if repeatable else self._upstreams.kept(RECENT_S)
        if upstream is None:
            upstream = self.upstream = await self._upstreams.fresh(lambda: self._client.left)
        try:
            await self._once(upstream, request, bodiless)
        except _Stale:
            upstream.abort()
            self.upstream = None
            if not repeatable:
                raise Ended(pages.GONE) from None
            self.upstream = await self._upstreams.fresh(lambda: self._client.left)
            await self._once(self.upstream, request, bodiless)

    async def _once(self, upstream: Upstream, request: h11.Request, bodiless: bool) -> None:
        self._used()
        try:
            await _send(upstream, request)
            if bodiless:
                if self._client.http.their_state is h11.SEND_BODY:
                    await self._client.event(0)  # its end, which is there already
                await _send(upstream, h11.EndOfMessage())
                await self._answer(upstream)
            else:
                await self._with_body(upstream)
        except (OSError, EOFError):
            if self._begun:
                raise
            if upstream.used:
                raise _Stale from None
            raise Ended(pages.GONE) from None
        except h11.RemoteProtocolError:
            if self._begun:
                raise
            raise Ended(pages.BAD_ANSWER) from None
        if self._websocket and upstream.http.their_state is h11.SWITCHED_PROTOCOL:
            await self._relay(upstream)

    async def _with_body(self, upstream: Upstream) -> None:
        """The body goes in while the answer may already come out: a program may answer before it has read all."""
        uploading = asyncio.ensure_future(self._upload(upstream))
        answering = asyncio.ensure_future(self._answer(upstream))
        try:
            await asyncio.wait((uploading, answering), return_when=asyncio.FIRST_COMPLETED)
            if uploading.done() and (error := uploading.exception()) is not None and not isinstance(error, OSError):
                raise error  # the client's fault. The program's may have been said in an answer, too
            await answering
        finally:
            for task in (uploading, answering):
                task.cancel()
            await asyncio.wait((uploading, answering))
            if not uploading.cancelled():
                uploading.exception()

    async def _upload(self, upstream: Upstream) -> None:
        while True:
            try:
                event = await self._client.event(SILENT_S)
            except TimeoutError:
                raise Ended(pages.TOO_SLOW) from None
            except h11.RemoteProtocolError:
                raise Ended(pages.NOT_HTTP) from None
            if isinstance(event, h11.ConnectionClosed):
                raise ClientLeft
            await self._pieced()
            if isinstance(event, h11.EndOfMessage):
                await _send(upstream, h11.EndOfMessage())  # without trailers: they would come after the checks
                return
            if isinstance(event, h11.Data):
                await _send(upstream, h11.Data(data=event.data))

    async def _pieced(self) -> None:
        """Another piece. Those of a byte each are much work, and others are waiting."""
        self._used()
        self._pieces += 1
        if self._pieces % TURN == 0:
            await asyncio.sleep(0)

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def _answer(self, upstream: Upstream) -> None:
        while True:
            event = upstream.http.next_event()
            if event is h11.NEED_DATA:
                data = await upstream.read()
                if not data and not self._begun:
                    raise EOFError
                upstream.http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                if await self._inform(event):
                    return
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._pieced()
                await self._client.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._client.send(h11.EndOfMessage())
                return
            else:  # closed, or paused by another protocol that nobody asked for
                raise EOFError

    async def _begin(self, event: h11.Response) -> None:
        self._begun = True
        out = headers.answered(list(event.headers), self._place)
        await self._client.send(h11.Response(status_code=event.status_code, headers=out, reason=event.reason))

    async def _inform(self, event: h11.InformationalResponse) -> bool:
        """True: both sides speak another protocol from here on. A 100 is our own affair."""
        switch = event.status_code == 101
        if event.status_code == 100 or (switch and not self._websocket):
            return False
        out = headers.answered(list(event.headers), self._place, websocket=switch)
        informed = h11.InformationalResponse(status_code=event.status_code, headers=out, reason=event.reason)
        self._begun = self._begun or switch
        await self._client.send(informed)
        return switch

    # -- WebSocket ----------------------------------------------------------------------------------------------------

    async def _relay(self, upstream: Upstream) -> None:
        client = self._client
        first, _ = client.http.trailing_data
        answer, _ = upstream.http.trailing_data
        tasks = [
            asyncio.ensure_future(self._pump(first, client.reader, upstream.writer)),
            asyncio.ensure_future(self._pump(answer, upstream.reader, client.writer)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _pump(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = first or await reader.read(BUFFER)
        while data:
            self._used()
            await write(writer, data)
            data = await reader.read(BUFFER)
        end(writer)


class _Stale(Exception):
    """A kept connection had been closed at the other end."""


class ClientLeft(Exception):
    """In the middle of its request."""


async def _send(upstream: Upstream, event: h11.Event) -> None:
    data = upstream.http.send(event)
    if data:
        await write(upstream.writer, data)
