"""One request through a preview and its response. Each head is parsed as strictly as h11 does and re-serialized, so
that both sides see the same message; bodies stream in both directions at the slower side's speed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import h11

from skerry.network.worker.previews import headers, pages
from skerry.network.worker.previews.address import PreviewAddress
from skerry.network.worker.previews.pages import EndedWithPage
from skerry.network.worker.previews.upstream import BUFFER_SIZE, PreviewUpstream, UpstreamPool, end, write

BODY_TIMEOUT_S = 120.0  # for a client that announced a body and sends nothing
DRAIN_TIMEOUT_S = 2.0  # how long to accept a client's remaining bytes after an early response
MAX_DRAINED = 1 << 20
RECENT_S = 1.0
PIECES_PER_TURN = 64
_REPEATABLE = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))


class PreviewClient:
    """A browser's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_head: int) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)
        self.method = b""

    async def event(self, timeout_s: float | None) -> h11.Event | type[h11.PAUSED]:
        """Return the next event from the client. Raise TimeoutError if it sends nothing for so long."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            async with asyncio.timeout(timeout_s):
                self.http.receive_data(await self.reader.read(BUFFER_SIZE))
        return event  # type: ignore[return-value]

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            await write(self.writer, data)

    @property
    def gone(self) -> bool:
        return self.reader.at_eof() or self.writer.is_closing()

    async def drain(self) -> None:
        """Read the rest of a request after its response: closing now would reset the connection, and with it the
        response."""
        with contextlib.suppress(TimeoutError, OSError):
            end(self.writer)
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                drained = 0
                while drained < MAX_DRAINED and (data := await self.reader.read(BUFFER_SIZE)):
                    drained += len(data)


OnUse = Callable[[int, int], None]


class PreviewExchange:
    """`on_use` is called with the bytes of every piece that passes, as the sandbox sent and received them."""

    def __init__(
        self,
        client: PreviewClient,
        upstreams: UpstreamPool,
        address: PreviewAddress,
        peer: str,
        on_use: OnUse,
    ) -> None:
        self._client = client
        self._upstreams = upstreams
        self._address = address
        self._peer = peer
        self._on_use = on_use
        self._websocket = False
        self._pieces = 0
        self._started = False  # the client has received a response head
        self.upstream: PreviewUpstream | None = None

    def end(self) -> None:
        """Abort both sides at once."""
        self._client.writer.transport.abort()
        if self.upstream is not None:
            self.upstream.abort()

    @property
    def abandoned(self) -> bool:
        """Whether the client has gone; reading does not show it while the program inside is silent."""
        return self._client.gone

    async def run(self, request: h11.Request, target: str) -> None:
        """Run the exchange. Raise EndedWithPage with an error page, as long as the client has received nothing."""
        received: headers.Headers = list(request.headers)
        self._websocket = request.method == b"GET" and headers.asks_for_websocket(received)
        chunked, length = (headers.value(received, name) for name in (b"transfer-encoding", b"content-length"))
        bodiless = chunked is None and length in (None, "0")
        lines = headers.request_headers(received, self._address, self._peer, self._websocket)
        if chunked is not None:  # framed separately on this connection
            lines.append((b"transfer-encoding", b"chunked"))
        forwarded = h11.Request(method=request.method, target=target, http_version=b"1.1", headers=lines)
        try:
            await self._run(forwarded, bodiless)
        finally:
            if self.upstream is not None:
                self._on_use(*self.upstream.take_counts())
                self._upstreams.put_back(self.upstream)
                self.upstream = None

    async def _run(self, request: h11.Request, bodiless: bool) -> None:
        repeatable = bodiless and request.method in _REPEATABLE
        upstream = self.upstream = self._upstreams.take_idle() if repeatable else self._upstreams.take_idle(RECENT_S)
        if upstream is None:
            upstream = self.upstream = await self._upstreams.connect(lambda: self._client.gone)
        try:
            await self._attempt(upstream, request, bodiless)
        except _StaleUpstream:
            self._on_use(*upstream.take_counts())
            upstream.abort()
            self.upstream = None
            if not repeatable:
                raise EndedWithPage(pages.GONE) from None
            self.upstream = await self._upstreams.connect(lambda: self._client.gone)
            await self._attempt(self.upstream, request, bodiless)

    async def _attempt(self, upstream: PreviewUpstream, request: h11.Request, bodiless: bool) -> None:
        self._on_use(*upstream.take_counts())
        try:
            await _send(upstream, request)
            if bodiless:
                if self._client.http.their_state is h11.SEND_BODY:
                    await self._client.event(0)  # its end, which has already arrived
                await _send(upstream, h11.EndOfMessage())
                await self._answer(upstream)
            else:
                await self._send_body_and_answer(upstream)
        except (OSError, EOFError):
            if self._started:
                raise
            if upstream.reused:
                raise _StaleUpstream from None
            raise EndedWithPage(pages.GONE) from None
        except h11.RemoteProtocolError:
            if self._started:
                raise
            raise EndedWithPage(pages.BAD_ANSWER) from None
        if self._websocket and upstream.http.their_state is h11.SWITCHED_PROTOCOL:
            await self._relay(upstream)

    async def _send_body_and_answer(self, upstream: PreviewUpstream) -> None:
        """Send the body while the response may already arrive: a program may answer before it has read all."""
        uploading = asyncio.ensure_future(self._upload(upstream))
        answering = asyncio.ensure_future(self._answer(upstream))
        try:
            await asyncio.wait((uploading, answering), return_when=asyncio.FIRST_COMPLETED)
            if uploading.done() and (error := uploading.exception()) is not None and not isinstance(error, OSError):
                raise error  # the client's fault; the program may have explained its own in a response
            await answering
        finally:
            for task in (uploading, answering):
                task.cancel()
            await asyncio.wait((uploading, answering))
            if not uploading.cancelled():
                uploading.exception()

    async def _upload(self, upstream: PreviewUpstream) -> None:
        while True:
            try:
                event = await self._client.event(BODY_TIMEOUT_S)
            except TimeoutError:
                raise EndedWithPage(pages.TOO_SLOW) from None
            except h11.RemoteProtocolError:
                raise EndedWithPage(pages.NOT_HTTP) from None
            if isinstance(event, h11.ConnectionClosed):
                raise PreviewClientGone
            await self._count_piece(upstream)
            if isinstance(event, h11.EndOfMessage):
                await _send(upstream, h11.EndOfMessage())  # without trailers: they would bypass the checks
                return
            if isinstance(event, h11.Data):
                await _send(upstream, h11.Data(data=event.data))

    async def _count_piece(self, upstream: PreviewUpstream) -> None:
        """Count a piece and yield now and then: one-byte pieces are much work, and others wait."""
        self._on_use(*upstream.take_counts())
        self._pieces += 1
        if self._pieces % PIECES_PER_TURN == 0:
            await asyncio.sleep(0)

    # -- the response -------------------------------------------------------------------------------------------------

    async def _answer(self, upstream: PreviewUpstream) -> None:
        while True:
            event = upstream.http.next_event()
            if event is h11.NEED_DATA:
                data = await upstream.read()
                if not data and not self._started:
                    raise EOFError
                upstream.http.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                if await self._inform(event):
                    return
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._count_piece(upstream)
                await self._client.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._client.send(h11.EndOfMessage())
                return
            else:  # closed, or switched to a protocol that was not requested
                raise EOFError

    async def _begin(self, event: h11.Response) -> None:
        self._started = True
        out = headers.response_headers(list(event.headers), self._address)
        await self._client.send(h11.Response(status_code=event.status_code, headers=out, reason=event.reason))

    async def _inform(self, event: h11.InformationalResponse) -> bool:
        """Forward an informational response except 100; return True if both sides switch protocols."""
        switch = event.status_code == 101
        if event.status_code == 100 or (switch and not self._websocket):
            return False
        out = headers.response_headers(list(event.headers), self._address, websocket=switch)
        informed = h11.InformationalResponse(status_code=event.status_code, headers=out, reason=event.reason)
        self._started = self._started or switch
        await self._client.send(informed)
        return switch

    # -- WebSocket ----------------------------------------------------------------------------------------------------

    async def _relay(self, upstream: PreviewUpstream) -> None:
        client = self._client
        first, _ = client.http.trailing_data
        answer, _ = upstream.http.trailing_data
        tasks = [
            asyncio.ensure_future(self._pump(first, client.reader, upstream.writer, inward=True)),
            asyncio.ensure_future(self._pump(answer, upstream.reader, client.writer, inward=False)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _pump(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inward: bool
    ) -> None:
        data = first or await reader.read(BUFFER_SIZE)
        while data:
            self._on_use(0 if inward else len(data), len(data) if inward else 0)
            await write(writer, data)
            data = await reader.read(BUFFER_SIZE)
        end(writer)


class _StaleUpstream(Exception):
    """The program had closed a kept connection."""


class PreviewClientGone(Exception):
    """The client left in the middle of its request."""


async def _send(upstream: PreviewUpstream, event: h11.Event) -> None:
    data = upstream.http.send(event)
    if data:
        await upstream.write(data)
