"""One request, as a handler sees it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from starlette.types import Receive

from skerry.errors import InvalidRequest, NotFound
from skerry.server.answers import BodyTooLarge, Gone, NotAcceptable, WrongMediaType
from skerry.types import NAME, Caller, Value

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.server.control import Control

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")


class Closable(Protocol):
    async def aclose(self) -> None: ...


R = TypeVar("R", bound=Closable)

JSON_LIMIT = 1 << 20
AHEAD = 4  # pieces of a body that are read before they are asked for
_PROCESS = re.compile(r"p-[a-z2-7]{10}")
ONCE = frozenset(
    b"host origin authorization content-type content-length accept range idempotency-key "
    b"upgrade sec-websocket-key sec-websocket-version".split()
)


class Nothing(Value, frozen=True, kw_only=True):
    """No query parameters, or no body."""


class Headers:
    """The headers of a request. Those that decide something may come once only: two of them mean a quarrel between
    whoever stands in front of us and us about which one counts."""

    __slots__ = ("_values",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        values: dict[bytes, bytes] = {}
        for name, value in raw:
            if name in values and name in ONCE:
                raise InvalidRequest(f"the header {name.decode()} came twice")
            values[name] = value
        self._values = values

    def get(self, name: bytes) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def body_size(self) -> int | None:
        """As announced; None: it comes in chunks, or not at all."""
        length = self._values.get(b"content-length", b"")
        return int(length) if b"transfer-encoding" not in self._values and length.isdigit() else None

    @property
    def has_body(self) -> bool:
        return b"transfer-encoding" in self._values or self._values.get(b"content-length", b"0") != b"0"


class Call(Generic[Q, B]):
    """Who calls, what they sent, and what they may call on. `query` and `body` are decoded as the handler's
    annotation `Call[Q, B]` says; a raw body is read with `chunks`."""

    __slots__ = ("body", "caller", "control", "engine", "headers", "log", "method", "parameters", "query", "receive")

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
    ) -> None:
        self.engine = engine
        self.control = control
        self.caller = caller
        self.method = method
        self.headers = headers
        self.parameters = parameters
        self.receive = receive
        self.log = log
        self.query: Q
        self.body: B

    @property
    def ref(self) -> str:
        """The sandbox in the path: an id or a name; what is neither can't be found."""
        ref = self.parameters["ref"]
        if not NAME.fullmatch(ref):
            raise NotFound(f"there is no sandbox {ref[:80]!r}")
        self.log["sandbox"] = ref
        return ref

    @property
    def process(self) -> str:
        """The process in the path."""
        process = self.parameters["process"]
        if not _PROCESS.fullmatch(process):
            raise NotFound(f"there is no process {process[:80]!r}")
        self.log["process_id"] = process
        return process

    def accepts(self, *offers: str) -> str:
        """The offer that the Accept header names; the first one where it names none or takes anything."""
        wishes = [part.partition(";")[0].strip().lower() for part in (self.headers.get(b"accept") or "*/*").split(",")]
        for wish in wishes:
            for offer in offers:
                if wish in (offer, "*/*", offer.partition("/")[0] + "/*"):
                    return offer
        raise NotAcceptable("nothing of what Accept asks for is offered here", hint=f"one of {', '.join(offers)}")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The raw body as it comes, at the reader's speed."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def read(self, limit: int) -> bytearray:
        """A whole JSON body, at most `limit` bytes of it."""
        kind = (self.headers.get(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Not a formality: what a browser may send to a foreign site without asking can't be application/json.
            raise WrongMediaType(
                f"the body's content type is {kind[:80] or 'missing'}", hint="send Content-Type: application/json"
            )
        length = self.headers.get(b"content-length") or "0"
        if not length.isascii() or not length.isdigit() or int(length) > limit:
            raise _too_large(limit)
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
        return body

    async def gone(self) -> None:
        """Returns when the caller has gone away."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def unless_stopping(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do `work`; None if the server is asked to stop before it is done."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(_come(self.control.stopping))
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stop.cancel()
            await _end(task)

    async def while_here(self, work: Coroutine[Any, Any, T], until: asyncio.Event | None = None) -> T:
        """Do `work`; it is cancelled when the caller goes away, or when `until` comes."""
        task = asyncio.ensure_future(work)
        watches = [asyncio.ensure_future(self.gone())]
        if until is not None:
            watches.append(asyncio.ensure_future(_come(until)))
        try:
            await asyncio.wait((task, *watches), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Gone
            return task.result()
        finally:
            for watch in watches:
                watch.cancel()
            await _end(task)

    async def begun(self, work: Coroutine[Any, Any, R]) -> R:
        """A run that `work` begins, perhaps after it has waited for its turn. A caller who leaves meanwhile leaves the
        queue; one that had just begun is closed."""
        task = asyncio.ensure_future(work)
        try:
            await self.while_here(asyncio.wait((task,)))
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
            raise
        return task.result()

    async def with_body(self, work: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, T]]) -> T:
        """Do `work` with the raw body, which it may take at any speed; it is cancelled when the caller goes away, also
        while it takes nothing: so the body is read a little ahead of it."""
        ahead: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        task = asyncio.ensure_future(work(_taken(ahead)))
        reading = asyncio.ensure_future(self._read(ahead))
        try:
            await asyncio.wait((task, reading), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Gone
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
        await self.gone()


async def _taken(ahead: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (chunk := await ahead.get()) is not None:
        yield chunk


async def _come(event: asyncio.Event) -> None:
    await event.wait()


async def _end(task: Awaitable[Any]) -> None:
    if isinstance(task, asyncio.Future) and not task.done():
        task.cancel()
        await asyncio.wait((task,))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit >> 20} MiB", hint="files go to …/files, long input to …/stdin")
