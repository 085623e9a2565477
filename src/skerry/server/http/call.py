"""A request as a handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from starlette.types import Receive

from skerry.codecs.json_bounds import JsonCounter
from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.responses import (
    EVENTS,
    NDJSON,
    BodyTooLarge,
    ClientDisconnected,
    NotAcceptable,
    WrongMediaType,
)
from skerry.types import NAME, PROCESS_ID, Caller, Value

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.engine.records.audit.service import Action
    from skerry.engine.records.trace.mask import SecretMask
    from skerry.engine.records.trace.recorder import Step
    from skerry.server.control import Connection, Control

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")


class Closable(Protocol):
    async def aclose(self) -> None: ...


R = TypeVar("R", bound=Closable)

JSON_LIMIT = 1 << 20
MAX_VALUES = 100_000  # values in a JSON body
_AS_EVENTS = (NDJSON, EVENTS)
MAX_PENDING_CHUNKS = 4  # pieces of a body that are read ahead
ONCE = frozenset(
    b"host origin authorization content-type content-length accept range idempotency-key "
    b"upgrade sec-websocket-key sec-websocket-version sec-websocket-protocol "
    b"x-api-key x-access-token e2b-traffic-access-token e2b-sandbox-id e2b-sandbox-port".split()
)


class Empty(Value, frozen=True, kw_only=True):
    """No query parameters, or no body."""


class Headers:
    """The headers of a request. Headers with an effect may occur once only: with two, a proxy and this server could
    disagree about which one counts."""

    __slots__ = ("_values",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        values: dict[bytes, bytes] = {}
        for name, value in raw:
            if name in values and name in ONCE:
                raise InvalidRequest(f"the header {name.decode()} is given twice")
            values[name] = value
        self._values = values

    def get(self, name: bytes) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1")

    def starting(self, prefix: str) -> list[tuple[str, str]]:
        """Return the headers with names that begin with the prefix."""
        return [
            (k.decode("latin-1"), v.decode("latin-1")) for k, v in self._values.items() if k.startswith(prefix.encode())
        ]

    @property
    def body_size(self) -> int | None:
        """The announced size; None: the body is chunked or absent."""
        length = self._values.get(b"content-length", b"")
        return int(length) if b"transfer-encoding" not in self._values and length.isdigit() else None

    @property
    def has_body(self) -> bool:
        return b"transfer-encoding" in self._values or self._values.get(b"content-length", b"0") != b"0"


class Call(Generic[Q, B]):
    """The caller, the request and the engine. `query` and `body` have the types of the handler's annotation `Call[Q,
    B]`; `chunks` reads a raw body."""

    __slots__ = (
        "action", "body", "caller", "connection", "control", "engine", "headers", "log", "masks", "method",
        "outcome", "parameters", "query", "receive", "step",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        control: Control,
        caller: Caller,
        method: str,
        headers: Headers,
        parameters: dict[str, str],
        receive: Receive,
        log: dict[str, Any],
        connection: Connection | None,
    ) -> None:
        self.engine = engine
        self.control = control
        self.caller = caller
        self.method = method
        self.headers = headers
        self.parameters = parameters
        self.receive = receive
        self.log = log
        self.connection = connection
        self.action: Action | None = None  # the audit record of this call
        self.step: Step | None = None  # the step of this call in the trace of its sandbox
        self.outcome: dict[str, Any] = {}  # details of its result
        self.masks: tuple[SecretMask, ...] = ()  # of the sandbox and of the request, if they have secrets
        self.query: Q
        self.body: B

    @property
    def ref(self) -> str:
        """The sandbox in the path: an id or a name. Other text is not found."""
        ref = self.parameters["ref"]
        if not NAME.fullmatch(ref):
            raise NotFound(f"sandbox {ref[:80]!r} not found")
        if "sandbox" not in self.log:
            self.log["sandbox"] = self.engine.registry.id_of(self.caller, ref)
        return ref

    @property
    def process(self) -> str:
        """The process in the path."""
        process = self.parameters["process"]
        if not PROCESS_ID.fullmatch(process):
            raise NotFound(f"process {process[:80]!r} not found")
        self.log["process_id"] = process
        return process

    def record_result(self, **details: Any) -> None:
        """Record the result of a streamed action, before the caller gets it."""
        self.outcome |= details
        if self.action is not None:
            outcome = self.outcome.items()
            shown = {key: self.masked(value) if isinstance(value, str) else value for key, value in outcome}
            self.action.end(200, params=shown)

    def masked(self, text: str) -> str:
        """Return text without the values of secrets, for a record. Mask before a cut: a part of a value would not be
        found."""
        for mask in self.masks:
            text = mask.bytes(text.encode("utf-8", "backslashreplace"))[0].decode()
        return text

    def accepts(self, *offers: str) -> str:
        """Return the offer that the Accept header names; the first offer if it names none or accepts anything. Lines
        of JSON are offered as server-sent events too."""
        for media_type in self._accepted:
            for offer in offers:
                if media_type in (offer, "*/*", offer.partition("/")[0] + "/*") or (offer, media_type) == _AS_EVENTS:
                    return offer
        raise NotAcceptable("no media type in Accept is available", hint=f"one of {', '.join(offers)}")

    @property
    def _accepted(self) -> list[str]:
        accept = self.headers.get(b"accept") or "*/*"
        return [part.partition(";")[0].strip().lower() for part in accept.split(",")]

    @property
    def wants_events(self) -> bool:
        """Whether the caller prefers server-sent events to lines of JSON."""
        known = (EVENTS, NDJSON, "application/*", "*/*")
        return next((kind for kind in self._accepted if kind in known), "*/*") == EVENTS

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the raw body as it arrives, at the reader's speed."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    def recorded_chunks(self) -> AsyncIterator[bytes]:
        """Return the raw body, which the trace of the sandbox keeps as an input."""
        return self.chunks() if self.step is None else self.step.tee(self.chunks())

    async def read(self, limit: int) -> bytearray:
        """Return a JSON body of at most `limit` bytes and MAX_VALUES values."""
        kind = (self.headers.get(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A security check: a browser cannot send application/json to another site without a CORS preflight.
            raise WrongMediaType(
                f"the body's content type is {kind[:80] or 'missing'}", hint="send Content-Type: application/json"
            )
        length = self.headers.get(b"content-length") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > limit:
            raise _too_large(limit)
        body, counter = bytearray(), JsonCounter()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
            counter.feed(chunk)
            if counter.values > MAX_VALUES:
                raise BodyTooLarge(f"the body has more than {MAX_VALUES:,} values", hint="send it in parts")
        return body

    async def disconnected(self) -> None:
        """Wait until the caller disconnects."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def until_shutdown(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run `work`. Return None if the server is asked to stop first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for(self.control.stopping))
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stop.cancel()
            await _end(task)

    async def until_disconnect(self, work: Coroutine[Any, Any, T], until: asyncio.Event | None = None) -> T:
        """Run `work`. Cancel it when the caller disconnects, or when `until` is set."""
        current = asyncio.current_task()
        if until is None and self.connection is not None and current is not None:
            return await _guarded(work, self.connection.serving(current))
        task = asyncio.ensure_future(work)
        watches = [asyncio.ensure_future(self.disconnected())]
        if until is not None:
            watches.append(asyncio.ensure_future(_wait_for(until)))
        try:
            await asyncio.wait((task, *watches), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnected
            return task.result()
        finally:
            for watch in watches:
                watch.cancel()
            await _end(task)

    async def start_run(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the run that `work` starts, possibly after queueing. If the caller disconnects, cancel the queued
        work, or close the run if it has just started."""
        task = asyncio.ensure_future(work)
        try:
            await self.until_disconnect(asyncio.wait((task,)))
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
            raise
        return task.result()

    async def stream_body(self, work: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, T]]) -> T:
        """Run `work` with the raw body, which it may read at any speed. Cancel it when the caller disconnects, also
        while it does not read: therefore the body is read slightly ahead."""
        ahead: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_PENDING_CHUNKS)
        task = asyncio.ensure_future(work(_taken(ahead)))
        reading = asyncio.ensure_future(self._read(ahead))
        try:
            await asyncio.wait((task, reading), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnected
            return task.result()
        finally:
            await _end(task)
            await _end(reading)
            if not reading.cancelled():
                reading.exception()

    async def _read(self, ahead: asyncio.Queue[bytes | None]) -> None:
        async for chunk in self.chunks():
            await ahead.put(chunk)
        await ahead.put(None)
        await self.disconnected()


async def _guarded(work: Coroutine[Any, Any, T], guard: AbstractContextManager[None]) -> T:
    try:
        with guard:
            return await work
    finally:
        work.close()  # if it never began


async def _taken(ahead: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (chunk := await ahead.get()) is not None:
        yield chunk


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _end(task: Awaitable[Any]) -> None:
    if isinstance(task, asyncio.Future) and not task.done():
        task.cancel()
        await asyncio.wait((task,))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit >> 20} MiB", hint="send files to …/files and long input to …/stdin"
    )
