"""…/processes/{process}/terminal: a WebSocket for each viewer of a process's terminal.

Binary messages are the terminal's bytes, both ways. Text is JSON: `started` first, `missing` where output was dropped,
`exit` last, `error` for a failed request; from the viewer `resize` and `signal`. Viewers come and go; the process
stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from skerry.errors import Conflict, InvalidRequest, SandboxUnavailable, SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.decode import refusal
from skerry.server.http.responses import ClientDisconnected
from skerry.server.http.upgrade import Upgrade, error_message
from skerry.server.http.websocket import WebSocket
from skerry.server.routes.processes import SignalRequest
from skerry.types import Pty, TerminalTicket, Value

if TYPE_CHECKING:
    from skerry.engine.processes.terminals import Terminal

REPLAY = 256 << 10
MAX_OFFSET = 1 << 53
PIECE = 64 << 10  # of output in one message
MAX_INPUT = 256 << 10  # bytes held for a program that does not read; beyond it the viewer waits
CONTROL_LIMIT = 4 << 10


class TerminalQuery(Value, frozen=True, kw_only=True):
    """`replay`: bytes of earlier output to start with; or `since`: the offset to continue from after a disconnect."""

    replay: int = REPLAY
    since: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.replay <= MAX_OFFSET or not 0 <= (self.since or 0) <= MAX_OFFSET:
            raise InvalidRequest("replay, since: out of range", hint="a number of bytes")

    @property
    def start(self) -> int:
        """Return the offset as the journal counts: negative is from the end."""
        return self.since if self.since is not None else -self.replay


class Resize(Value, frozen=True, kw_only=True, tag="resize"):
    """The new size of the viewer's window."""

    cols: int
    rows: int


class Signal(Value, frozen=True, kw_only=True, tag="signal"):
    name: str


_controls: msgspec.json.Decoder[Resize | Signal] = msgspec.json.Decoder(Resize | Signal)


async def attach(call: Call[TerminalQuery, Empty]) -> Upgrade:
    terminal = await call.engine.terminals.open(call.caller, call.ref, call.process, call.query.start)
    return Upgrade(partial(_serve, terminal), terminal.aclose)


async def ticket(call: Call[Empty, Empty]) -> TerminalTicket:
    sandbox = call.engine.sandboxes.get(call.caller, call.ref)
    return call.engine.tokens.issue_ticket(call.caller, sandbox)


async def _serve(terminal: Terminal, socket: WebSocket) -> None:
    keys = InputQueue()
    await _until_one_ends(
        _send_output(terminal, socket), _receive_input(terminal, socket, keys), _write_input(terminal, keys)
    )


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _send_output(terminal: Terminal, socket: WebSocket) -> None:
    try:
        await _show(terminal, socket)
    except ClientDisconnected:  # no viewer left, but the last input may still be in flight
        await asyncio.Event().wait()


async def _show(terminal: Terminal, socket: WebSocket) -> None:
    await socket.send(_text("started", {"process": terminal.process, "offset": terminal.offset}))
    async for output in terminal:
        if isinstance(output, int):
            await socket.send(_text("missing", {"missing": output}))
            continue
        for start in range(0, len(output), PIECE):
            await socket.send(output[start : start + PIECE])
    await socket.send(_text("exit", msgspec.to_builtins(terminal.result())))


async def _receive_input(terminal: Terminal, socket: WebSocket, keys: InputQueue) -> None:
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            await keys.put(message)
        else:
            await _handle_control(terminal, socket, message)
    keys.end()
    await asyncio.Event().wait()  # ends when all input was sent


async def _handle_control(terminal: Terminal, socket: WebSocket, message: str) -> None:
    try:
        await _control(terminal, message)
    except SandboxUnavailable:
        raise
    except SkerryError as error:
        await socket.send(error_message(error))


async def _control(terminal: Terminal, message: str) -> None:
    match _decode(message):
        case Resize(cols=cols, rows=rows):
            await terminal.resize(Pty(cols=cols, rows=rows))
        case Signal(name=name):
            await terminal.signal(SignalRequest(signal=name.upper().removeprefix("SIG")).signal)


def _decode(message: str) -> Resize | Signal:
    if len(message) > CONTROL_LIMIT:
        raise InvalidRequest("this text is too long", hint="send input in binary messages")
    try:
        return _controls.decode(message)
    except msgspec.ValidationError as error:
        raise refusal(error, "field", Resize) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("this text is not JSON", hint="send input in binary messages") from error


async def _write_input(terminal: Terminal, keys: InputQueue) -> None:
    """Send input to the program at its speed. Controls are separate calls and do not wait behind it."""
    if await keys.some():
        with contextlib.suppress(Conflict):  # the process has ended, which the viewer sees; discard further input
            await terminal.type(keys.chunks())
    async for _ in keys.chunks():
        pass


class InputQueue:
    """Input that the program has not read yet, up to a bound."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = False

    async def put(self, data: bytes) -> None:
        await self._room.wait()
        self._held += data
        self._news.set()
        if len(self._held) >= MAX_INPUT:
            self._room.clear()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def some(self) -> bool:
        """Wait for input; return False if no more will come."""
        await self._news.wait()
        return bool(self._held)

    async def chunks(self) -> AsyncIterator[bytes]:
        while self._held or not self._over:
            await self._news.wait()
            self._news.clear()
            data = bytes(self._held)
            self._held.clear()
            self._room.set()
            if data:
                yield data


def _text(kind: str, fields: dict[str, Any]) -> str:
    return msgspec.json.encode({"type": kind, **fields}).decode()
