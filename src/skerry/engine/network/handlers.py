"""Calls of clients' handlers: a request of a sandbox waits in the worker until the client that registered a handler for
its host has decided about it. Without a client, or without a decision in time, the request fails.

Calls are not kept on disk: the request ends with the server or the worker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from skerry.engine.hooks import Hook
from skerry.engine.network.approvals import new_id
from skerry.engine.network.attempts import WorkerProtocolError
from skerry.engine.network.gateway import GatewayManager, WorkerHandler
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.network.messages import FromWorker, HandlerBody, HandlerDone, HandlerNeeded, HandlerResult
from skerry.network.policy.handlers import parse_handled
from skerry.types import Caller, Handler, HandlerCall, HandlerDecision, HttpRequest, HttpResponse
from skerry.types.handlers import MAX_HANDLER_BODY, check_headers

MAX_CALLS: Final = 64  # of one sandbox
MAX_BODIES: Final = 4096  # of all sandboxes, that the worker began to send
MAX_HELD: Final = 64 << 20  # bytes of them
MAX_URL: Final = 40_000
ATTACH_GRACE_S: Final = 5.0  # a client that connects again does not fail the requests of that moment


class HandlerFailed(Exception):
    """A call has no decision."""


@dataclass(eq=False)
class _Call:
    """`taken`: a client has received it."""

    call: HandlerCall
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    answer: asyncio.Future[HandlerDecision] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reader: object | None = None

    def fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_result(HandlerDecision(error=why))


@dataclass(eq=False)
class _HandlerQueue:
    """The calls of one handler, and the client that takes them: the latest that connected."""

    calls: dict[str, _Call] = field(default_factory=dict)
    reader: object | None = None
    client: str = ""  # of the reader
    replaced: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_CALLS))  # clients that must not come back
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        more, self.more = self.more, asyncio.Event()
        more.set()


class HandlerCalls:
    """Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], _HandlerQueue] = {}

    async def ask(self, call: HandlerCall, timeout_s: float) -> HandlerDecision:
        """Return the decision of the handler's client. Raise HandlerFailed without one."""
        place = self._places.setdefault((call.sandbox, call.host), _HandlerQueue())
        one = _Call(call)
        place.calls[call.id] = one
        place.notify()
        try:
            return await self._wait(place, one, timeout_s)
        finally:
            del place.calls[call.id]
            self._tidy(call.sandbox, call.host)

    async def _wait(self, place: _HandlerQueue, one: _Call, timeout_s: float) -> HandlerDecision:
        ends_at = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(min(ATTACH_GRACE_S, timeout_s)):
                await one.taken.wait()
        except TimeoutError:
            why = "its client does not read" if place.reader is not None else "its client is not connected"
            raise HandlerFailed(why) from None
        try:
            async with asyncio.timeout_at(ends_at):
                return await one.answer
        except TimeoutError:
            raise HandlerFailed(f"it gave no answer within {timeout_s:g} s") from None

    def check_not_replaced(self, sandbox_id: str, host: str, client: str) -> None:
        """Raise Conflict for a client that another one has replaced: the two would replace each other for ever."""
        place = self._places.get((sandbox_id, host))
        if place is not None and client and client in place.replaced:
            raise Conflict(f"another client handles {host}", hint="close one of them")

    async def read(self, sandbox_id: str, host: str, client: str = "") -> AsyncGenerator[list[HandlerCall], None]:
        """Yield the calls of a handler, until another client takes its place or the handler is gone."""
        place = self._places.setdefault((sandbox_id, host), _HandlerQueue())
        if place.reader is not None and place.client != client:
            place.replaced.append(place.client)
        place.reader, place.client = (reader := object()), client
        place.notify()  # an earlier reader ends
        try:
            while place.reader is reader:
                more = place.more
                new = [one for one in place.calls.values() if not one.taken.is_set()]
                for one in new:
                    one.reader = reader
                    one.taken.set()
                if new:
                    yield [one.call for one in new]
                else:
                    await more.wait()
        finally:
            for one in place.calls.values():
                if one.reader is reader:
                    one.fail("its client disconnected")
            if place.reader is reader:
                place.reader = None
                self._tidy(sandbox_id, host)

    def decide(self, sandbox_id: str, call_id: str, decision: HandlerDecision) -> None:
        for (owner, _), place in self._places.items():
            one = place.calls.get(call_id) if owner == sandbox_id else None
            if one is not None and not one.answer.done():
                one.answer.set_result(decision)
                return
        raise NotFound(
            f"handler call {call_id[:40]!r} is not waiting for a decision",
            hint="it was answered already, or its timeout passed",
        )

    def end(self, sandbox_id: str) -> None:
        """Fail the calls of a sandbox's handlers, and end their readers."""
        for (owner, name), place in list(self._places.items()):
            if owner == sandbox_id:
                for one in place.calls.values():
                    one.taken.set()
                    one.fail("the sandbox ended")
                place.reader = None
                place.notify()
                self._tidy(owner, name)

    def _tidy(self, sandbox_id: str, host: str) -> None:
        place = self._places.get((sandbox_id, host))
        if place is not None and not place.calls and place.reader is None:
            del self._places[sandbox_id, host]


class HandlerService(Hook, WorkerHandler):
    """`engine.handlers`."""

    def __init__(self, gateways: GatewayManager, registry: SandboxRegistry, tasks: Tasks) -> None:
        self._gateways, self._registry, self._tasks = gateways, registry, tasks
        self._calls = HandlerCalls()
        self._counts: Counter[str] = Counter()
        self._bodies: dict[tuple[str, str], bytearray] = {}  # of calls to come
        self._held = 0  # their bytes
        self._waiting: dict[tuple[str, str], asyncio.Task[None]] = {}

    # -- for the API --------------------------------------------------------------------------------------------------

    def read(self, caller: Caller, ref: str, host: str, client: str) -> AsyncGenerator[list[HandlerCall], None]:
        """Yield the calls of a handler of the sandbox's policy."""
        sandbox = self._registry.find(caller, ref)
        host = str(parse_handled(host))
        if _callback(sandbox, host) is None:
            raise InvalidRequest(
                f"host: {host[:80]!r} is not a handler with a callback",
                hint="PATCH the network's `handlers` first, with `callback`",
            )
        self._calls.check_not_replaced(sandbox.record.id, host, client)
        return self._calls.read(sandbox.record.id, host, client)

    def decide(self, caller: Caller, ref: str, call_id: str, decision: HandlerDecision) -> None:
        self._calls.decide(self._registry.find(caller, ref).record.id, call_id, decision)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        self._calls.end(sandbox.record.id)
        for key in [key for key in self._bodies if key[0] == sandbox.record.id]:
            self._take_body(*key)

    # -- for the worker -----------------------------------------------------------------------------------------------

    def on_worker_start(self) -> None:
        """The calls of an earlier worker have ended with it."""
        self._bodies.clear()
        self._held = 0
        for task in self._waiting.values():
            task.cancel()

    def on_worker_message(self, message: FromWorker) -> bool:
        match message:
            case HandlerBody():
                self._add_body(message)
            case HandlerNeeded():
                self._begin(message)
            case HandlerDone():
                task = self._waiting.get((message.sandbox, message.call_id))
                if task is not None:
                    task.cancel()
            case _:
                return False
        return True

    def _add_body(self, message: HandlerBody) -> None:
        self._gateways.sandbox_of(message.sandbox)
        body = self._bodies.setdefault((message.sandbox, message.call_id), bytearray())
        body += message.data
        self._held += len(message.data)
        too_many = len(self._bodies) > MAX_BODIES or self._held > MAX_HELD
        if too_many or len(message.call_id) > 64 or len(body) > MAX_HANDLER_BODY:
            self._bodies.clear()
            self._held = 0
            raise WorkerProtocolError("bodies for handlers that are too large")

    def _take_body(self, sandbox_id: str, call_id: str) -> bytes:
        body = self._bodies.pop((sandbox_id, call_id), b"")
        self._held -= len(body)
        return bytes(body)

    def _begin(self, message: HandlerNeeded) -> None:
        sandbox = self._gateways.sandbox_of(message.sandbox)
        body = self._take_body(message.sandbox, message.call_id)
        key = (message.sandbox, message.call_id)
        if len(message.call_id) > 64 or key in self._waiting:
            raise WorkerProtocolError("an invalid call of a handler")
        crowded = self._counts[message.sandbox] >= MAX_CALLS
        self._counts[message.sandbox] += 1
        self._waiting[key] = task = self._tasks.spawn(self._answer(message, sandbox, body, crowded))
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: tuple[str, str]) -> None:
        del self._waiting[key]
        self._counts[key[0]] -= 1
        if self._counts[key[0]] <= 0:
            del self._counts[key[0]]

    async def _answer(self, message: HandlerNeeded, sandbox: Sandbox, body: bytes, crowded: bool) -> None:
        decision, error = HandlerDecision(), None
        try:
            if crowded:
                raise HandlerFailed(f"{MAX_CALLS} other requests wait for it")
            decision = await self._ask(message, sandbox, body)
        except (HandlerFailed, InvalidRequest) as failed:
            error = str(failed)
        worker = self._gateways.worker
        if worker is not None and await worker.wait_drained():
            self._gateways.send(HandlerResult(call_id=message.call_id, decision=decision, error=error))

    async def _ask(self, message: HandlerNeeded, sandbox: Sandbox, body: bytes) -> HandlerDecision:
        handler = _callback(sandbox, message.host)
        if handler is None:
            raise HandlerFailed("it was removed")
        process = self._gateways.process_of(sandbox.record.id, message.cgroup)
        call = _call(message, body if message.body else None, process, handler.timeout_s)
        return await self._calls.ask(call, handler.timeout_s)


def _call(message: HandlerNeeded, body: bytes | None, process: str | None, timeout_s: float) -> HandlerCall:
    """Return the call as the client receives it. Raise InvalidRequest for heads that no correct worker sends."""
    check_headers("headers", message.headers)
    given = message.response
    response = None if given is None else HttpResponse(status=given[0], headers=given[1], body=body)
    request = HttpRequest(
        method=message.method[:32], url=message.url[:MAX_URL], headers=message.headers,
        body=body if given is None else None, process=process,
    )  # fmt: skip
    return HandlerCall(
        id=new_id("h"), sandbox=message.sandbox, host=message.host, request=request, response=response,
        ends_at=time.time() + timeout_s,
    )  # fmt: skip


def _callback(sandbox: Sandbox, host: str) -> Handler | None:
    handlers = sandbox.record.spec.network.handlers
    return next((one for one in handlers if one.host == host and one.callback is not None), None)
