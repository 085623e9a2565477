"""One request to upstream and its response to the client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import h11

from skerry.network.hosts import Host, show_host
from skerry.network.worker.bodies import Belt, BrokenOff, chunk, chunk_reader, last_chunk
from skerry.network.worker.heads import HEAD_MOST, Request, end_to_end
from skerry.network.worker.hooks import Blocked, Filter, Headers, Hooks, Refusal, RequestHead, ResponseHead
from skerry.network.worker.reach import Reached
from skerry.network.worker.relay import relay
from skerry.network.worker.room import Room
from skerry.network.worker.streams import CHUNK, Stream, Wire

_FRAMES: Final = 16 << 10
_GRACE_S: Final = 2.0
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BODILESS: Final = frozenset((204, 304))

Answer: TypeAlias = h11.Response | h11.InformationalResponse


@dataclass(frozen=True)
class Upstream:
    """`stream` is what was reached, or TLS over it."""

    place: tuple[Host, int]
    stream: Stream
    reached: Reached

    def target(self, target: bytes) -> bytes:
        """As it is written to what is at the other end."""
        if not self.reached.by_proxy:
            return target
        host, port = self.place
        return f"http://{show_host(host, None if port == 80 else port)}".encode() + target.removeprefix(b"*")

    @property
    def stale(self) -> bool:
        """Also with bytes left over: they would be taken for the next answer."""
        wire = self.reached.wire
        return wire.stale if self.stream is wire else wire.ended or bool(getattr(self.stream, "ahead", False))


class Exchange:
    """`begun`: the client has been given part of a response, so that nothing else can be said to it any more."""

    def __init__(
        self, room: Room, client: Stream, head: bytes, request: Request, sent: RequestHead, hooks: Hooks | None
    ) -> None:
        self._room, self._client, self._head, self._hooks = room, client, head, hooks
        self.request, self._asked = request, sent
        self.begun = self.reusable = self.client_gone = False
        self.sent = self.received = 0

    async def run(self, upstream: Upstream) -> bool:
        """Whether the client may send another request on this connection."""
        cycle = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MOST)
        watch = self._hooks.request_filter(self._asked) if self._hooks is not None and self.request.body else None
        chunked = self.request.length is None or (watch is not None and not watch.same_length)
        head = self._request_head(cycle, chunked, upstream)
        await upstream.stream.write(head)
        self._out(len(head))
        if not self.request.body:
            response = await self._awaited(cycle, upstream)
            return await self._pass_on(cycle, upstream, response, True)
        pump = asyncio.ensure_future(self._pump(upstream, chunked, watch))
        try:
            response = await self._answered(pump, cycle, upstream)
            return await self._pass_on(cycle, upstream, response, pump)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    # -- to upstream ---------------------------------------------------------------------------------------------------

    def _request_head(self, cycle: h11.Connection, chunked: bool, upstream: Upstream) -> bytes:
        headers = [(_title(name), value) for name, value in self._asked.headers]
        if chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        elif self.request.length or any(name == b"content-length" for name, _ in self.request.headers):
            headers.append((b"Content-Length", str(self.request.length).encode()))
        if self._upgrades:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        event = h11.Request(method=self._asked.method, target=upstream.target(self._asked.target), headers=headers)
        return cycle.send(event) or b""

    @property
    def _upgrades(self) -> bool:
        """Only to what a browser's page can ask for; to HTTP/2 above all not, in which nobody could look."""
        asked = dict(self.request.headers)
        return (
            (self.request.upgrade or b"").lower() == b"websocket"
            and self.request.method == b"GET"
            and not self.request.body
            and asked.get(b"sec-websocket-version") == b"13"
            and _KEY.fullmatch(asked.get(b"sec-websocket-key", b"")) is not None
        )

    def _agreed(self, headers: Headers) -> bool:
        """Whether it was a WebSocket's server that said 101, and not one that still reads requests and was made to
        say so: those would follow unjudged."""
        key = dict(self.request.headers).get(b"sec-websocket-key", b"")
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        return self._upgrades and dict(headers).get(b"sec-websocket-accept") == accept

    async def _pump(self, upstream: Upstream, chunked: bool, watch: Filter | None) -> None:
        belt = Belt(self._client, upstream.stream, self._room.meter, self._room.pipes, self._out)
        wrap = chunk if chunked else None
        trailers: list[tuple[bytes, bytes]] = []
        if self.request.length is None:
            try:
                trailers = await belt.chunked(chunk_reader(self._head), watch, wrap)
            except h11.RemoteProtocolError:
                raise BrokenOff("the request's chunks are none") from None
        else:
            await belt.plain(self.request.length, watch, wrap)
        if chunked:  # nobody looks at trailers, so that where somebody must look there are none
            await upstream.stream.write(last_chunk([] if self._hooks is not None else trailers))

    # -- from upstream -------------------------------------------------------------------------------------------------

    async def _answered(self, pump: asyncio.Future[None], cycle: h11.Connection, upstream: Upstream) -> Answer:
        """The response may come before the request's body is through. If that breaks off, it has a moment to come."""
        answer = asyncio.ensure_future(self._response(cycle, upstream))
        both: set[asyncio.Future[Any]] = {answer, pump}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and pump.exception() is not None:
                error = pump.exception()
                self.client_gone = isinstance(error, BrokenOff)
                if not isinstance(error, (Blocked, BrokenOff)):
                    await asyncio.wait({answer}, timeout=_GRACE_S)
                if not answer.done() and error is not None:
                    raise error
            return await answer
        finally:
            answer.cancel()

    async def _awaited(self, cycle: h11.Connection, upstream: Upstream) -> Answer:
        """The response, unless the client resets its connection before: nobody is kept waiting for one who is gone."""
        response = asyncio.ensure_future(self._response(cycle, upstream))
        gone = asyncio.ensure_future(_reset(self._client))
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

    async def _response(self, cycle: h11.Connection, upstream: Upstream) -> Answer:
        """The final response's head, or a 101; what else is 1xx goes on to the client."""
        read = 0
        while True:
            event = cycle.next_event()
            if event is h11.NEED_DATA:
                data = await upstream.stream.read(await self._room.meter.room(CHUNK))
                read += len(data)
                cycle.receive_data(data)
            elif isinstance(event, h11.InformationalResponse) and event.status_code != 101:
                ahead = len(cycle.trailing_data[0])
                self._in(read - ahead)
                read = ahead
                await self._hint(event)
            elif isinstance(event, (h11.Response, h11.InformationalResponse)):
                self._in(read - len(cycle.trailing_data[0]))
                return event
            else:
                raise BrokenOff("it closed without an answer")

    async def _hint(self, event: h11.InformationalResponse) -> None:
        """100 and 103. Where somebody must look they have neither words nor headers: nobody looks at these."""
        headers: Headers = ()
        if self._hooks is None:
            headers = end_to_end(tuple((bytes(name), bytes(value)) for name, value in event.headers))
        if not self.request.old:
            reason = bytes(event.reason) if self._hooks is None else b""
            await self._client.write(_head(event.status_code, reason, headers))

    async def _pass_on(
        self,
        cycle: h11.Connection,
        upstream: Upstream,
        event: Answer,
        pump: asyncio.Future[None] | bool,
    ) -> bool:
        told = ResponseHead(
            event.status_code,
            bytes(event.reason),
            end_to_end(tuple((bytes(name), bytes(value)) for name, value in event.headers)),
        )
        watch = None
        if self._hooks is not None:
            changed = self._hooks.on_response(self._asked, told)
            if isinstance(changed, Refusal):
                raise Blocked(changed)
            told = changed
            watch = self._hooks.response_filter(self._asked, told)
        if event.status_code == 101:
            if not self._agreed(told.headers):
                raise BrokenOff("it agreed to a WebSocket as no WebSocket's server does")
            await self._switch(cycle, upstream, told, watch)
            return False
        found = {bytes(name): bytes(value) for name, value in event.headers}
        left = await self._body(cycle, upstream, told, found, watch)
        options = found.get(b"connection", b"").lower()
        whole = pump is True or (isinstance(pump, asyncio.Future) and pump.done() and pump.exception() is None)
        self.reusable = left and whole and event.http_version == b"1.1" and b"close" not in options
        return left and whole and not self.request.closes

    async def _body(
        self,
        cycle: h11.Connection,
        upstream: Upstream,
        told: ResponseHead,
        found: dict[bytes, bytes],
        watch: Filter | None,
    ) -> bool:
        """The response with its body. Whether both connections know where it ended."""
        belt = Belt(upstream.stream, self._client, self._room.meter, self._room.pipes, self._in)
        coded, headers = b"transfer-encoding" in found, list(told.headers)
        length = int(found[b"content-length"]) if b"content-length" in found and not coded else None
        ahead = b"" if coded else bytes(cycle.trailing_data[0])
        if self.request.method == b"HEAD" or told.status in _BODILESS:
            if length is not None and told.status != 204:
                headers.append((b"content-length", b"%d" % length))
            await self._begin(told, headers, self.request.closes)
            return not ahead
        if length is not None and (watch is None or watch.same_length):
            headers.append((b"content-length", b"%d" % length))
            if watch is None and len(ahead) == length:  # all of it is here: one write
                await self._begin(told, headers, self.request.closes, ahead)
                self._in(len(ahead))
                return True
            await self._begin(told, headers, self.request.closes)
            upstream.stream.unread(ahead)
            await belt.plain(length, watch, None)
            return True
        wrap = chunk if not self.request.old and (coded or length is not None) else None
        if wrap is not None:
            headers.append((b"transfer-encoding", b"chunked"))
        await self._begin(told, headers, self.request.closes or wrap is None)
        trailers: list[tuple[bytes, bytes]] = []
        if coded:
            trailers = await belt.chunked(cycle, watch, wrap)
        else:
            upstream.stream.unread(ahead)
            await belt.plain(length, watch, wrap)
        if wrap is not None:
            await self._client.write(last_chunk([] if self._hooks is not None else trailers))
        return wrap is not None

    async def _begin(
        self, told: ResponseHead, headers: list[tuple[bytes, bytes]], closes: bool, body: bytes = b""
    ) -> None:
        self.begun = True
        if closes:
            headers.append((b"connection", b"close"))
        await self._client.write(_head(told.status, told.reason, tuple(headers)) + body)

    async def _switch(
        self, cycle: h11.Connection, upstream: Upstream, told: ResponseHead, watch: Filter | None
    ) -> None:
        """After a 101 the bytes belong to another protocol: they pass as they are."""
        self.begun = True
        upgrade = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
        await self._client.write(_head(101, told.reason, told.headers + upgrade))
        upstream.stream.unread(bytes(cycle.trailing_data[0]))
        if watch is None and isinstance(self._client, Wire) and isinstance(upstream.stream, Wire):
            room = self._room
            await relay(self._client, upstream.stream, room.pipes, room.meter, self._out, self._in)
            return
        out = Belt(self._client, upstream.stream, self._room.meter, self._room.pipes, self._out)
        most = CHUNK if watch is None else _FRAMES  # frames are looked at one by one, and others wait meanwhile
        back = Belt(upstream.stream, self._client, self._room.meter, self._room.pipes, self._in, most)
        ways = [asyncio.ensure_future(_one_way(out, None)), asyncio.ensure_future(_one_way(back, watch))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def _out(self, count: int) -> None:
        self.sent += count
        self._room.meter.add(count, 0)

    def _in(self, count: int) -> None:
        self.received += count
        self._room.meter.add(0, count)


async def _reset(client: Stream) -> bool:
    """Waits for a reset, where one can be seen."""
    if isinstance(client, Wire) and await client.reset():
        return True
    await asyncio.Event().wait()
    return False


async def _one_way(belt: Belt, watch: Filter | None) -> None:
    await belt.plain(None, watch, None)
    await belt.sink.finish()


def _head(status: int, reason: bytes, headers: Headers) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % (_title(name), value) for name, value in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, lines)


def _title(name: bytes) -> bytes:
    return name.title()
