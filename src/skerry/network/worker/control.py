"""The worker's side of the channel: passes the server's messages to a sandbox's egress or to the previews, and their
reports and requests to the server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from skerry.network.channel import WorkerChannel
from skerry.network.messages import (
    CONNECTION_REFUSED,
    MAX_MESSAGE_FROM_WORKER,
    ApprovalMessage,
    ApprovalNeeded,
    AttemptMessage,
    ChangeRules,
    CloseGateway,
    DialRequest,
    DialResult,
    DisconnectPreviews,
    Done,
    ExchangeMessage,
    FromServer,
    FromWorker,
    HandlerBody,
    HandlerDone,
    HandlerNeeded,
    HandlerResult,
    ListenPreviews,
    OpenGateway,
    PreviewUsed,
    Rules,
    SharePreview,
    Sync,
    TrafficMessage,
    UnsharePreview,
)
from skerry.network.worker.rate_limit import TokenBucket
from skerry.types import Handler
from skerry.types.handlers import HttpHeaders

MAX_UNSENT_REPORTS: Final = (
    4 << 20
)  # further reports are dropped: the server does not keep up, and the worker must not wait for it
MAX_PENDING_CALLS: Final = 64  # calls of handlers, of one sandbox
_BODY_PIECE: Final = 32 << 10  # of the body for a handler: in base64 it fits into a message to the server
_EXCHANGES_PER_SECOND: Final = 50
_CALL_GRACE_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 3600.0  # the server bounds every answer itself, far below
MAX_PENDING_DIALS: Final = 4096


@dataclass(frozen=True)
class GatewaySockets:
    """The descriptors of an `OpenGateway`; the egress must close all of them."""

    listener: socket.socket
    dns: socket.socket
    diag: socket.socket
    fake_ip_file: int
    cassette: int | None = None


class ServerLink(Protocol):
    """The server as one sandbox's egress sees it: reports, approvals, connections to peers."""

    def report(self, attempt: AttemptMessage) -> None: ...

    def report_traffic(self, traffic: TrafficMessage) -> None: ...

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]: ...

    async def handle(
        self,
        handler: Handler,
        method: str,
        url: str,
        headers: HttpHeaders,
        response: tuple[int, HttpHeaders] | None,
        body: bytes | None,
        cgroup: int | None,
    ) -> HandlerResult:
        """Ask the client of a handler. Raise TimeoutError or another OSError without an answer."""
        ...  # fmt: skip

    def report_exchange(self, exchange: ExchangeMessage) -> None: ...

    async def dial(self, sandbox: str, port: int) -> socket.socket: ...


class EgressHandler(Protocol):
    """The egress of one sandbox."""

    def rename(self, hostname: str) -> None: ...

    def change(self, rules: Rules) -> None:
        """Apply new rules; connections that they no longer allow are closed on return."""

    def flush(self) -> None:
        """Report pending counts."""

    def close(self) -> None: ...


class PreviewHandler(Protocol):
    """The preview server."""

    async def listen(self, listener: socket.socket, message: ListenPreviews) -> None: ...

    def share(self, share: SharePreview) -> None: ...

    def unshare(self, sandbox: str, port: int) -> None: ...

    def disconnect(self, sandbox: str) -> None: ...


EgressFactory = Callable[[OpenGateway, GatewaySockets, ServerLink], EgressHandler]
PreviewFactory = Callable[
    [Callable[[str, int], Awaitable[socket.socket]], Callable[[str, int, int], None]], PreviewHandler
]


class WorkerControl:
    def __init__(
        self, control: socket.socket, make_egress: EgressFactory, make_previews: PreviewFactory | None = None
    ) -> None:
        self._channel: WorkerChannel[FromServer] = WorkerChannel(control, FromServer)
        self._make_egress = make_egress
        self._handlers: dict[str, EgressHandler] = {}
        self._numbers = itertools.count(1)
        self._dials: dict[int, asyncio.Future[socket.socket]] = {}
        self._approvals: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self._calls: dict[str, asyncio.Future[HandlerResult]] = {}
        self._previews = None if make_previews is None else make_previews(self.dial, self.preview_used)

    async def run(self, first: FromWorker) -> None:
        """Serve until the server has closed the channel or sends an impossible message: both end the process."""
        self._channel.send(first)
        while True:
            try:
                message, fds = await self._channel.receive()
            except EOFError:
                return
            await self._handle(message, fds)

    async def _handle(self, message: FromServer, fds: list[int]) -> None:
        match message:
            case OpenGateway():
                self._open(message, fds)
            case ChangeRules():
                self._change(message)
                self._send(Done(number=message.number))
            case CloseGateway():
                self._close(message.sandbox)
            case Sync():
                for sandbox, handler in self._handlers.items():
                    if message.sandbox in (None, sandbox):
                        handler.flush()
                self._send(Done(number=message.number))
            case ApprovalMessage():
                approval = self._approvals.pop(message.approval_id, None)
                if approval is not None and not approval.done():
                    approval.set_result((message.allow, message.why))
            case HandlerResult():
                call = self._calls.pop(message.call_id, None)
                if call is not None and not call.done():
                    call.set_result(message)
            case DialResult():
                self._dialled(message, fds)
            case _:
                await self._handle_preview(message, fds)

    def _open(self, message: OpenGateway, fds: list[int]) -> None:
        self._close(message.sandbox)
        listener, dns, diag = (socket.socket(fileno=fd) for fd in fds[:3])
        sockets = GatewaySockets(listener, dns, diag, *fds[3:])
        try:
            self._handlers[message.sandbox] = self._make_egress(message, sockets, _SandboxLink(self, message.sandbox))
        except Exception:  # for example an invalid rule: only this sandbox then has no egress
            traceback.print_exc(limit=-3)
            for one in (listener, dns, diag):
                one.close()
            for fd in fds[3:]:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _change(self, message: ChangeRules) -> None:
        handler = self._handlers.get(message.sandbox)
        if handler is None:
            return
        try:
            handler.change(message.rules)
            if message.hostname:
                handler.rename(message.hostname)
        except Exception:  # connections that the old rules allowed must end
            traceback.print_exc(limit=-3)
            self._close(message.sandbox)

    def _close(self, sandbox: str) -> None:
        handler = self._handlers.pop(sandbox, None)
        if handler is not None:
            handler.close()

    def _dialled(self, message: DialResult, fds: list[int]) -> None:
        answer = self._dials.pop(message.number, None)
        if answer is None or answer.done():  # the requester has gone
            for fd in fds:
                os.close(fd)
        elif fds:
            answer.set_result(socket.socket(fileno=fds[0]))
        elif message.error == CONNECTION_REFUSED:
            answer.set_exception(ConnectionRefusedError("nothing listens there"))
        else:
            answer.set_exception(OSError(message.error or "it could not be reached"))

    async def _handle_preview(self, message: FromServer, fds: list[int]) -> None:
        if self._previews is None:
            for fd in fds:
                os.close(fd)
        elif isinstance(message, ListenPreviews):
            await self._previews.listen(socket.socket(fileno=fds[0]), message)
        elif isinstance(message, SharePreview):
            self._previews.share(message)
        elif isinstance(message, UnsharePreview):
            self._previews.unshare(message.sandbox, message.port)
        elif isinstance(message, DisconnectPreviews):
            self._previews.disconnect(message.sandbox)

    # -- for egress and previews --------------------------------------------------------------------------------------

    def preview_used(self, sandbox: str, sent: int, received: int) -> None:
        self._send(PreviewUsed(sandbox=sandbox, sent=sent, received=received))

    async def dial(self, sandbox: str, port: int, peer_of: str | None = None) -> socket.socket:
        """Connect to a port inside a sandbox; the server makes the connection and decides whether it is allowed."""
        if len(self._dials) >= MAX_PENDING_DIALS:
            raise ConnectionRefusedError("too many connections are being made")
        number = next(self._numbers)
        answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._dials[number] = answer
        try:
            self._send(DialRequest(number=number, sandbox=sandbox, port=port, peer_of=peer_of))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except BaseException:
            with contextlib.suppress(BaseException):  # the answer and the end of the wait may come together
                if answer.done() and not answer.cancelled():
                    answer.result().close()
            raise
        finally:
            self._dials.pop(number, None)

    async def ask(self, sandbox: str, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        approval_id = secrets.token_hex(8)
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._approvals[approval_id] = answer
        try:
            self._send(ApprovalNeeded(approval_id=approval_id, sandbox=sandbox, host=host, port=port, cgroup=cgroup))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        finally:
            self._approvals.pop(approval_id, None)

    async def handle(self, handler: Handler, call: HandlerNeeded, body: bytes | None) -> HandlerResult:
        """Ask the client of a handler, through the server."""
        answer: asyncio.Future[HandlerResult] = asyncio.get_running_loop().create_future()
        self._calls[call.call_id] = answer
        try:
            for start in range(0, len(body or b""), _BODY_PIECE):
                piece = (body or b"")[start : start + _BODY_PIECE]
                self._send(HandlerBody(call_id=call.call_id, sandbox=call.sandbox, data=piece))
            self._send(call)
            async with asyncio.timeout(handler.timeout_s + _CALL_GRACE_S):
                return await answer
        finally:
            if self._calls.pop(call.call_id, None) is not None:
                self._send(HandlerDone(call_id=call.call_id, sandbox=call.sandbox))

    def report(self, message: AttemptMessage | TrafficMessage | ExchangeMessage) -> None:
        if self._channel.unsent < MAX_UNSENT_REPORTS:
            self._send(message)

    def _send(self, message: FromWorker) -> None:
        self._channel.send(message)


def fits(message: FromWorker) -> bool:
    """Return whether the server accepts a message: a longer one would end this worker, and with it the connections of
    all sandboxes. A host can choose characters that take six bytes in JSON."""
    return len(msgspec.json.encode(message)) <= MAX_MESSAGE_FROM_WORKER


class _SandboxLink:
    """The link of one sandbox: it cannot report for another."""

    def __init__(self, control: WorkerControl, sandbox: str) -> None:
        self._control, self._sandbox = control, sandbox
        self._pending_calls = 0
        self._mirrored = TokenBucket(_EXCHANGES_PER_SECOND, _EXCHANGES_PER_SECOND)
        self._dropped = 0

    def report(self, attempt: AttemptMessage) -> None:
        self._control.report(attempt)

    def report_traffic(self, traffic: TrafficMessage) -> None:
        self._control.report(traffic)

    def report_exchange(self, exchange: ExchangeMessage) -> None:
        """Report at most some exchanges in a second: the server reads the messages of all sandboxes in turn."""
        if not self._mirrored.take():
            self._dropped += 1
            return
        if self._dropped:
            note = f"{self._dropped} exchanges before this one were not mirrored"
            exchange = msgspec.structs.replace(exchange, note="; ".join(filter(None, (exchange.note, note))))
            self._dropped = 0
        if not fits(exchange):
            note = "its head has too many special characters"
            exchange = msgspec.structs.replace(exchange, url="", request_headers=(), response_headers=(), note=note)
        self._control.report(exchange)

    async def handle(
        self, handler: Handler, method: str, url: str, headers: HttpHeaders,
        response: tuple[int, HttpHeaders] | None, body: bytes | None, cgroup: int | None,
    ) -> HandlerResult:  # fmt: skip
        if self._pending_calls >= MAX_PENDING_CALLS:
            raise ConnectionRefusedError(f"{MAX_PENDING_CALLS} other requests wait for it")
        call = HandlerNeeded(
            call_id=secrets.token_hex(8), sandbox=self._sandbox, host=handler.host, method=method, url=url,
            headers=headers, response=response, body=body is not None, cgroup=cgroup,
        )  # fmt: skip
        if not fits(call):
            raise ConnectionAbortedError("the head of the message has too many special characters")
        self._pending_calls += 1
        try:
            return await self._control.handle(handler, call, body)
        finally:
            self._pending_calls -= 1

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        return await self._control.ask(self._sandbox, host, port, cgroup)

    async def dial(self, sandbox: str, port: int) -> socket.socket:
        return await self._control.dial(sandbox, port, peer_of=self._sandbox)
