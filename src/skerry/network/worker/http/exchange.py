"""One request to an upstream and its response to the client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import h11

from skerry.codecs.cassette import DamagedCassette, RecordedExchange, read_body, read_head
from skerry.network.worker.cassette import BodyHash, Player, RecordedBody
from skerry.network.worker.dial import DialedUpstream
from skerry.network.worker.http.filters import (
    BlockedByFilter,
    BodyFilter,
    ExchangeCopy,
    FilterDenial,
    Headers,
    HttpFilters,
    Interceptor,
    RequestHead,
    ResponseHead,
    ResponseStep,
)
from skerry.network.worker.http.handling import BodyCollector
from skerry.network.worker.http.headers import MAX_HEAD, ParsedRequest, allowed_trailers, end_to_end
from skerry.network.worker.rate_limit import TrafficMeter
from skerry.network.worker.relay import PipeLease, SpliceDirection, relay
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.streams import CHUNK, ByteStream, SocketStream
from skerry.types.hosts import Host, show_host

_CHUNKS_PER_TURN: Final = 256
_MIN_SPLICED: Final = 64 << 10  # a shorter body is faster read and written


class IncompleteMessage(ConnectionError):
    """A message ended early."""


@dataclass(frozen=True)
class BodyCopier:
    """Copies a body from one side to the other; unfiltered bodies move between the sockets with `splice`. `count` is
    called with the number of bytes that moved."""

    source: ByteStream
    sink: ByteStream
    meter: TrafficMeter
    pipes: PipeLease
    count: Callable[[int], None]
    read_size: int = CHUNK  # bytes read at once

    async def plain(
        self, left: int | None, body_filter: BodyFilter | None, wrap: Callable[[bytes], bytes] | None
    ) -> None:
        """Copy `left` bytes; None: to the end. `wrap` frames each piece for the sink."""
        if (
            body_filter is None
            and wrap is None
            and isinstance(self.source, SocketStream)
            and isinstance(self.sink, SocketStream)
            and (left is None or left > _MIN_SPLICED)
        ):
            direction = SpliceDirection(self.source, self.sink, self.pipes, self.meter, self.count, left)
            if await direction.run() and left is not None:
                raise IncompleteMessage("it ended early")
            return
        while left is None or left:
            data = await self.source.read(
                await self.meter.wait_allowance(self.read_size if left is None else min(self.read_size, left))
            )
            if not data:
                if left is not None:
                    raise IncompleteMessage("it ended early")
                break
            left = None if left is None else left - len(data)
            await self._write(data, body_filter, wrap)
        await self._flush(body_filter, wrap)

    async def chunked(
        self, reader: h11.Connection, body_filter: BodyFilter | None, wrap: Callable[[bytes], bytes] | None
    ) -> list[tuple[bytes, bytes]]:
        """Copy the chunks that `reader` parses, to their end; put the following bytes back. Return the trailers."""
        held = bytearray()  # chunks that arrived together are sent as one
        for number in itertools.count(1):
            event = reader.next_event()
            if isinstance(event, h11.Data):
                held += event.data
                if number % _CHUNKS_PER_TURN == 0:  # one-byte chunks are much work, and other connections wait
                    await asyncio.sleep(0)
                if len(held) < CHUNK:
                    continue
            await self._write(bytes(held), body_filter, wrap)
            held.clear()
            if event is h11.NEED_DATA:
                data = await self.source.read(await self.meter.wait_allowance(CHUNK))
                reader.receive_data(data)
            elif isinstance(event, h11.EndOfMessage):
                self.source.unread(bytes(reader.trailing_data[0]))
                await self._flush(body_filter, wrap)
                return list(allowed_trailers(tuple((bytes(n), bytes(v)) for n, v in event.headers)))
            elif not isinstance(event, h11.Data):
                break
        raise IncompleteMessage("it ended early")

    async def _write(self, data: bytes, body_filter: BodyFilter | None, wrap: Callable[[bytes], bytes] | None) -> None:
        if body_filter is not None and data:
            data = body_filter.feed(data)
        if data:
            await self.sink.write(wrap(data) if wrap is not None else data)
            self.count(len(data))

    async def _flush(self, body_filter: BodyFilter | None, wrap: Callable[[bytes], bytes] | None) -> None:
        data = body_filter.end() if body_filter is not None else b""
        if data:
            await self.sink.write(wrap(data) if wrap is not None else data)
            self.count(len(data))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: list[tuple[bytes, bytes]]) -> bytes:
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % (name.title(), value) for name, value in trailers) + b"\r\n"


def chunk_reader(head: bytes) -> h11.Connection:
    """Return a reader for the chunks after a valid request head."""
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    reader.receive_data(head)
    reader.next_event()
    return reader


_FRAME_READ_SIZE: Final = 16 << 10
_GRACE_S: Final = 2.0
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BODILESS: Final = frozenset((204, 304))

Answer: TypeAlias = h11.Response | h11.InformationalResponse


@dataclass(frozen=True)
class HttpUpstream:
    """`stream` is the dialed socket, or TLS over it. `verified_by`: the interceptor whose rules verified the TLS."""

    destination: tuple[Host, int]
    stream: ByteStream
    dialed: DialedUpstream
    tls: bool = False
    verified_by: Interceptor | None = None

    def target(self, target: bytes) -> bytes:
        """Return the target in the form that the next hop expects."""
        if not self.dialed.by_proxy:
            return target
        host, port = self.destination
        return f"http://{show_host(host, None if port == 80 else port)}".encode() + target.removeprefix(b"*")

    @property
    def stale(self) -> bool:
        """Also True if bytes are left over: they would be taken for the next response."""
        socket_stream = self.dialed.stream
        return (
            socket_stream.stale
            if self.stream is socket_stream
            else socket_stream.ended or bool(getattr(self.stream, "has_unread", False))
        )


class HttpExchange:
    """`started`: the client has received part of a response, so that no error response can be sent any more."""

    def __init__(
        self,
        context: SandboxContext,
        client: ByteStream,
        head: bytes,
        request: ParsedRequest,
        sent: RequestHead,
        filters: HttpFilters | None,
        copies: Sequence[ExchangeCopy] = (),
        step: ResponseStep | None = None,
    ) -> None:
        self._context, self._client, self._head, self._filters = context, client, head, filters
        self._copies, self._step = copies, step
        self._opaque = filters is None and step is None  # nothing looks at 1xx heads and trailers
        self.request, self._sent_head = request, sent
        self.started = self.reusable = self.client_gone = False
        self.sent = self.received = 0

    async def run(self, upstream: HttpUpstream) -> bool:
        """Send the request and forward the response; return whether the client may send another one."""
        cycle = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        body_filter = (
            self._filters.request_filter(self._sent_head) if self._filters is not None and self.request.body else None
        )
        for copy in self._copies:
            body_filter = copy.request_filter(body_filter)
        chunked = self.request.length is None or (body_filter is not None and not body_filter.same_length)
        head = self._request_head(cycle, chunked, upstream)
        await upstream.stream.write(head)
        self._count_sent(len(head))
        if not self.request.body:
            response = await self._await_response(cycle, upstream)
            return await self._forward_response(cycle, upstream, response, True)
        pump = asyncio.ensure_future(self._pump(upstream, chunked, body_filter))
        try:
            response = await self._await_response_with_body(pump, cycle, upstream)
            return await self._forward_response(cycle, upstream, response, pump)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    # -- to upstream ---------------------------------------------------------------------------------------------------

    def _request_head(self, cycle: h11.Connection, chunked: bool, upstream: HttpUpstream) -> bytes:
        headers = [(_title(name), value) for name, value in self._sent_head.headers]
        if chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        elif self.request.length or any(name == b"content-length" for name, _ in self.request.headers):
            headers.append((b"Content-Length", str(self.request.length).encode()))
        if self._wants_websocket:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        event = h11.Request(
            method=self._sent_head.method, target=upstream.target(self._sent_head.target), headers=headers
        )
        return cycle.send(event) or b""

    @property
    def _wants_websocket(self) -> bool:
        """Only the upgrade to WebSocket that a browser's page can ask for; never to HTTP/2, which could not be
        inspected."""
        asked = dict(self.request.headers)
        return (
            (self.request.upgrade or b"").lower() == b"websocket"
            and self.request.method == b"GET"
            and not self.request.body
            and asked.get(b"sec-websocket-version") == b"13"
            and _KEY.fullmatch(asked.get(b"sec-websocket-key", b"")) is not None
        )

    def _accepts_websocket(self, headers: Headers) -> bool:
        """Return whether a WebSocket server sent the 101, and not an HTTP server that was made to send it: that one
        would read further requests, unjudged."""
        key = dict(self.request.headers).get(b"sec-websocket-key", b"")
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        return self._wants_websocket and dict(headers).get(b"sec-websocket-accept") == accept

    async def _pump(self, upstream: HttpUpstream, chunked: bool, body_filter: BodyFilter | None) -> None:
        copier = BodyCopier(self._client, upstream.stream, self._context.meter, self._context.pipes, self._count_sent)
        wrap = chunk if chunked else None
        trailers: list[tuple[bytes, bytes]] = []
        if self.request.length is None:
            try:
                trailers = await copier.chunked(chunk_reader(self._head), body_filter, wrap)
            except h11.RemoteProtocolError:
                raise IncompleteMessage("the request's chunks are invalid") from None
        else:
            await copier.plain(self.request.length, body_filter, wrap)
        if chunked:  # trailers are not inspected: where filters apply, drop them
            await upstream.stream.write(last_chunk(trailers if self._opaque else []))

    # -- from upstream -------------------------------------------------------------------------------------------------

    async def _await_response_with_body(
        self, pump: asyncio.Future[None], cycle: h11.Connection, upstream: HttpUpstream
    ) -> Answer:
        """Wait for the response, which may come before the request's body is sent. If the body fails, give it a moment
        to come."""
        answer = asyncio.ensure_future(self._read_response(cycle, upstream))
        both: set[asyncio.Future[Any]] = {answer, pump}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and pump.exception() is not None:
                error = pump.exception()
                self.client_gone = isinstance(error, IncompleteMessage)
                if not isinstance(error, (BlockedByFilter, IncompleteMessage)):
                    await asyncio.wait({answer}, timeout=_GRACE_S)
                if not answer.done() and error is not None:
                    raise error
            return await answer
        finally:
            answer.cancel()

    async def _await_response(self, cycle: h11.Connection, upstream: HttpUpstream) -> Answer:
        """Wait for the response, unless the client resets its connection first: then the upstream is not kept
        waiting."""
        response = asyncio.ensure_future(self._read_response(cycle, upstream))
        gone = asyncio.ensure_future(_wait_reset(self._client))
        try:
            await asyncio.wait({response, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and gone.result():
                self.client_gone = True
                raise ConnectionResetError("the client is gone")
            return await response
        finally:
            response.cancel()
            gone.cancel()
            await asyncio.gather(gone, response, return_exceptions=True)

    async def _read_response(self, cycle: h11.Connection, upstream: HttpUpstream) -> Answer:
        """Return the head of the final response, or a 101; forward other 1xx responses to the client."""
        read = 0
        while True:
            event = cycle.next_event()
            if event is h11.NEED_DATA:
                data = await upstream.stream.read(await self._context.meter.wait_allowance(CHUNK))
                read += len(data)
                cycle.receive_data(data)
            elif isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                ahead = len(cycle.trailing_data[0])
                self._count_received(read - ahead)
                read = ahead
                await self._forward_informational(event)
            elif isinstance(event, (h11.Response, h11.InformationalResponse)):
                self._count_received(read - len(cycle.trailing_data[0]))
                return event
            else:
                raise IncompleteMessage("it closed without a response")

    async def _forward_informational(self, event: h11.InformationalResponse) -> None:
        """Forward 100 and 103. Where filters apply, drop their reason and headers: these are not inspected."""
        headers: Headers = ()
        if self._opaque:
            headers = end_to_end(tuple((bytes(name), bytes(value)) for name, value in event.headers))
        if not self.request.is_http_1_0:
            reason = bytes(event.reason) if self._opaque else b""
            await self._client.write(_head(event.status_code, reason, headers))

    async def _forward_response(
        self,
        cycle: h11.Connection,
        upstream: HttpUpstream,
        event: Answer,
        pump: asyncio.Future[None] | bool,
    ) -> bool:
        head = ResponseHead(
            event.status_code,
            bytes(event.reason),
            end_to_end(tuple((bytes(name), bytes(value)) for name, value in event.headers)),
        )
        body_filter = None
        if self._filters is not None:
            changed = self._filters.on_response(self._sent_head, head)
            if isinstance(changed, FilterDenial):
                raise BlockedByFilter(changed)
            head = changed
            body_filter = self._filters.response_filter(self._sent_head, head)
        found = {bytes(name): bytes(value) for name, value in event.headers}
        if self._step is not None and event.status_code != 101:
            bodiless = self.request.method == b"HEAD" or head.status in _BODILESS
            if self._step.needs_response_body and not bodiless:
                return await self._respond_whole(cycle, upstream, head, found, body_filter, pump)
            head, body = await self._step.on_response(head, None)
            if body is not None:
                return await self._send_whole(head, body, pump)
        body_filter = self._copy_start(head, found, body_filter)
        if event.status_code == 101:
            if not self._accepts_websocket(head.headers):
                raise IncompleteMessage("its WebSocket handshake is invalid")
            await self._switch_protocols(cycle, upstream, head, body_filter)
            return False
        left = await self._body(cycle, upstream, head, found, body_filter)
        options = found.get(b"connection", b"").lower()
        whole = _is_sent(pump)
        for copy in self._copies:
            copy.finish(whole)
        self.reusable = left and whole and event.http_version == b"1.1" and b"close" not in options
        return left and whole and not self.request.closes

    async def _respond_whole(
        self,
        cycle: h11.Connection,
        upstream: HttpUpstream,
        head: ResponseHead,
        found: dict[bytes, bytes],
        body_filter: BodyFilter | None,
        pump: asyncio.Future[None] | bool,
    ) -> bool:
        """Collect the body for a handler, and send the client its response."""
        assert self._step is not None  # noqa: S101 -- it needs the body
        collector = BodyCollector(body_filter)
        copier = BodyCopier(
            upstream.stream, self._client, self._context.meter, self._context.pipes, self._count_received
        )
        if b"transfer-encoding" in found:
            await copier.chunked(cycle, collector, None)
        else:
            upstream.stream.unread(bytes(cycle.trailing_data[0]))
            await copier.plain(int(found[b"content-length"]) if b"content-length" in found else None, collector, None)
        self._count_received(len(collector.data))
        changed, body = await self._step.on_response(head, bytes(collector.data))
        return await self._send_whole(changed, body or b"", pump)

    async def _send_whole(self, head: ResponseHead, body: bytes, pump: asyncio.Future[None] | bool) -> bool:
        """Send the client a response with this body; the connection to the upstream is not used again."""
        self.started, whole = True, _is_sent(pump)
        await send_whole(self._client, self.request, head, body, self._copies)
        for copy in self._copies:
            copy.finish(whole)
        return whole and not self.request.closes

    def _copy_start(
        self, head: ResponseHead, found: dict[bytes, bytes], body_filter: BodyFilter | None
    ) -> BodyFilter | None:
        """Copy the head of the response, and return a filter that copies its body."""
        if head.status == 101:
            for copy in self._copies:
                copy.switched(head)
            return body_filter
        if not self._copies:
            return body_filter
        bodiless = self.request.method == b"HEAD" or head.status in _BODILESS
        length = found.get(b"content-length") if b"transfer-encoding" not in found else None
        if bodiless and length is not None and head.status != 204:
            head = replace(head, headers=(*head.headers, (b"content-length", length)))
        for copy in self._copies:
            copy.start(head, None if bodiless or length is None else int(length))
            body_filter = body_filter if bodiless else RecordedBody(body_filter, copy)
        return body_filter

    async def _body(
        self,
        cycle: h11.Connection,
        upstream: HttpUpstream,
        head: ResponseHead,
        found: dict[bytes, bytes],
        body_filter: BodyFilter | None,
    ) -> bool:
        """Forward the response and its body; return whether both connections know where it ended."""
        copier = BodyCopier(
            upstream.stream, self._client, self._context.meter, self._context.pipes, self._count_received
        )
        coded, headers = b"transfer-encoding" in found, list(head.headers)
        length = int(found[b"content-length"]) if b"content-length" in found and not coded else None
        ahead = b"" if coded else bytes(cycle.trailing_data[0])
        if self.request.method == b"HEAD" or head.status in _BODILESS:
            if length is not None and head.status != 204:
                headers.append((b"content-length", b"%d" % length))
            await self._start_response(head, headers, self.request.closes)
            return not ahead
        if length is not None and (body_filter is None or body_filter.same_length):
            headers.append((b"content-length", b"%d" % length))
            if body_filter is None and len(ahead) == length:  # all of it has arrived: one write
                await self._start_response(head, headers, self.request.closes, ahead)
                self._count_received(len(ahead))
                return True
            await self._start_response(head, headers, self.request.closes)
            upstream.stream.unread(ahead)
            await copier.plain(length, body_filter, None)
            return True
        wrap = chunk if not self.request.is_http_1_0 and (coded or length is not None) else None
        if wrap is not None:
            headers.append((b"transfer-encoding", b"chunked"))
        await self._start_response(head, headers, self.request.closes or wrap is None)
        trailers: list[tuple[bytes, bytes]] = []
        if coded:
            trailers = await copier.chunked(cycle, body_filter, wrap)
        else:
            upstream.stream.unread(ahead)
            await copier.plain(length, body_filter, wrap)
        if wrap is not None:
            await self._client.write(last_chunk(trailers if self._opaque else []))
        return wrap is not None

    async def _start_response(
        self, head: ResponseHead, headers: list[tuple[bytes, bytes]], closes: bool, body: bytes = b""
    ) -> None:
        self.started = True
        if closes:
            headers.append((b"connection", b"close"))
        await self._client.write(_head(head.status, head.reason, tuple(headers)) + body)

    async def _switch_protocols(
        self, cycle: h11.Connection, upstream: HttpUpstream, head: ResponseHead, body_filter: BodyFilter | None
    ) -> None:
        """Relay the bytes of another protocol after a 101."""
        self.started = True
        upgrade = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
        await self._client.write(_head(101, head.reason, head.headers + upgrade))
        upstream.stream.unread(bytes(cycle.trailing_data[0]))
        if body_filter is None and isinstance(self._client, SocketStream) and isinstance(upstream.stream, SocketStream):
            context = self._context
            await relay(
                self._client, upstream.stream, context.pipes, context.meter, self._count_sent, self._count_received
            )
            return
        outgoing = BodyCopier(self._client, upstream.stream, self._context.meter, self._context.pipes, self._count_sent)
        read_size = (
            CHUNK if body_filter is None else _FRAME_READ_SIZE
        )  # frames are filtered one by one, and other connections wait
        incoming = BodyCopier(
            upstream.stream, self._client, self._context.meter, self._context.pipes, self._count_received, read_size
        )
        copies = [
            asyncio.ensure_future(_copy_all(outgoing, None)),
            asyncio.ensure_future(_copy_all(incoming, body_filter)),
        ]
        try:
            await asyncio.gather(*copies)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    def _count_sent(self, count: int) -> None:
        self.sent += count
        self._context.meter.add(count, 0)

    def _count_received(self, count: int) -> None:
        self.received += count
        self._context.meter.add(0, count)


class CassetteExchange:
    """One request that is answered from the cassette; nothing leaves the machine."""

    def __init__(self, context: SandboxContext, client: ByteStream, head: bytes, request: ParsedRequest) -> None:
        self._context, self._client, self._head, self._request = context, client, head, request

    async def run(self, player: Player, url: str) -> bool:
        """Serve the recorded response; return whether the client may send another request. Raise NotRecorded
        without one."""
        body = await self._hash_body()
        exchange = player.take(self._request, url, body)
        try:
            await self._respond(player, exchange)
        except DamagedCassette:
            self._client.abort()
            return False
        return not self._request.closes

    async def _hash_body(self) -> str:
        """Read the request's body to its end."""
        if not self._request.body:
            return ""
        body = BodyHash(discard=True)
        await consume_body(self._context, self._client, self._head, self._request, body)
        return body.hexdigest()

    async def _respond(self, player: Player, exchange: RecordedExchange) -> None:
        head = read_head(player.read, exchange)
        named = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in head.headers)
        headers = list(end_to_end(named))
        if self._request.method == b"HEAD" or head.status in _BODILESS:
            headers += [(name, value) for name, value in named if name == b"content-length" and value.isdigit()]
        else:
            headers.append((b"content-length", b"%d" % exchange.length))
        if self._request.closes:
            headers.append((b"connection", b"close"))
        await self._client.write(_head(head.status, head.reason.encode("latin-1"), tuple(headers)))
        if self._request.method != b"HEAD" and head.status not in _BODILESS:
            for data in read_body(player.read, exchange, CHUNK):
                await self._client.write(data)


async def consume_body(
    context: SandboxContext, client: ByteStream, head: bytes, request: ParsedRequest, body_filter: BodyFilter
) -> None:
    """Read the request's body to its end, into a filter that passes nothing on."""
    if dict(request.headers).get(b"expect", b"").lower() == b"100-continue" and not request.is_http_1_0:
        await client.write(_head(100, b"Continue", ()))
    copier = BodyCopier(client, client, context.meter, context.pipes, lambda _: None)
    if request.length is None:
        try:
            await copier.chunked(chunk_reader(head), body_filter, None)
        except h11.RemoteProtocolError:
            raise IncompleteMessage("the request's chunks are invalid") from None
    else:
        await copier.plain(request.length, body_filter, None)


def put_back_body(client: ByteStream, request: ParsedRequest, body: bytes) -> None:
    """Let the next reader of the client find a consumed body again."""
    client.unread((chunk(body) if body else b"") + last_chunk([]) if request.length is None else body)


async def send_whole(
    client: ByteStream, request: ParsedRequest, head: ResponseHead, body: bytes, copies: Sequence[ExchangeCopy] = ()
) -> None:
    """Send a response that is known from its beginning to its end. Its framing follows from the body alone."""
    bodiless = request.method == b"HEAD" or head.status in _BODILESS
    headers = list(end_to_end(head.headers))
    if head.status not in _BODILESS:
        headers.append((b"content-length", b"%d" % len(body)))
    for copy in copies:
        copy.start(replace(head, headers=tuple(headers)), None if bodiless else len(body))
        if not bodiless:
            copy.data(body)
    if request.closes:
        headers.append((b"connection", b"close"))
    await client.write(_head(head.status, head.reason, tuple(headers)) + (b"" if bodiless else body))


def _is_sent(pump: asyncio.Future[None] | bool) -> bool:
    """Return whether the whole request was sent."""
    return pump is True or (isinstance(pump, asyncio.Future) and pump.done() and pump.exception() is None)


async def _wait_reset(client: ByteStream) -> bool:
    """Wait for a reset, if the stream can detect one."""
    if isinstance(client, SocketStream) and await client.wait_reset():
        return True
    await asyncio.Event().wait()
    return False


async def _copy_all(copier: BodyCopier, body_filter: BodyFilter | None) -> None:
    await copier.plain(None, body_filter, None)
    await copier.sink.finish()


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % (_title(name), value) for name, value in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def _title(name: bytes) -> bytes:
    return name.title()
