"""…/processes/{process}/terminal: a WebSocket for each viewer of a process's terminal.

Binary messages are the terminal's bytes, both ways. Text is JSON: `started` first, `missing` where output was dropped,
`exit` last, `error` for what could not be done; from the viewer `resize` and `signal`. Viewers come and go; the process
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
from skerry.server.answers import Gone
from skerry.server.call import Call, Nothing
from skerry.server.decode import refusal
from skerry.server.processes import SignalRequest
from skerry.server.upgrade import Upgrade, error_message
from skerry.server.websocket import WebSocket
from skerry.types import Pty, Value

if TYPE_CHECKING:
    from skerry.engine.terminals import Terminal

REPLAY = 256 << 10
OFFSET_MOST = 1 << 53
PIECE = 64 << 10  # of output in one message
INPUT_HELD = 256 << 10  # for a program that does not read; past it the viewer waits
CONTROL_LIMIT = 4 << 10


class TerminalQuery(Value, frozen=True, kw_only=True):
    """`replay`: bytes of earlier output to begin with; or `since`: the offset to go on from, after a break."""

    replay: int = REPLAY
    since: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.replay <= OFFSET_MOST or not 0 <= (self.since or 0) <= OFFSET_MOST:
            raise InvalidRequest("replay, since: out of range", hint="a number of bytes")

    @property
    def start(self) -> int:
        """As the journal counts: below 0 is from the end."""
        return self.since if self.since is not None else -self.replay


class Resize(Value, frozen=True, kw_only=True, tag="resize"):
    """The viewer's window has this size now."""

    cols: int
    rows: int


class Signal(Value, frozen=True, kw_only=True, tag="signal"):
    name: str


_controls: msgspec.json.Decoder[Resize | Signal] = msgspec.json.Decoder(Resize | Signal)


async def attach(call: Call[TerminalQuery, Nothing]) -> Upgrade:
    terminal = await call.engine.terminals.open(call.caller, call.ref, call.process, call.query.start)
    return Upgrade(partial(_serve, terminal), terminal.aclose)


async def _serve(terminal: Terminal, socket: WebSocket) -> None:
    keys = Keys()
    await _until_one_ends(_look_on(terminal, socket), _hear(terminal, socket, keys), _press(terminal, keys))


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


async def _look_on(terminal: Terminal, socket: WebSocket) -> None:
    try:
        await _show(terminal, socket)
    except Gone:  # to whom it could be shown; but what was typed last is still on its way
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


async def _hear(terminal: Terminal, socket: WebSocket, keys: Keys) -> None:
    while (message := await socket.receive()) is not None:
        if isinstance(message, bytes):
            await keys.put(message)
        else:
            await _obey(terminal, socket, message)
    keys.end()
    await asyncio.Event().wait()  # it is over when all of it was pressed


async def _obey(terminal: Terminal, socket: WebSocket, message: str) -> None:
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
        raise InvalidRequest("this text is too long", hint="what is typed goes in binary messages")
    try:
        return _controls.decode(message)
    except msgspec.ValidationError as error:
        raise refusal(error, "field", Resize) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("this text is not JSON", hint="what is typed goes in binary messages") from error


async def _press(terminal: Terminal, keys: Keys) -> None:
    """To the program, at its speed. Controls don't wait behind it: they are calls of their own."""
    if await keys.some():
        with contextlib.suppress(Conflict):  # it has ended, which is shown; what is typed from now on goes nowhere
            await terminal.type(keys.chunks())
    async for _ in keys.chunks():
        pass


class Keys:
    """What was typed and not yet taken, within a bound."""

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
        if len(self._held) >= INPUT_HELD:
            self._room.clear()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def some(self) -> bool:
        """Waits for the first of them; False: there will be none."""
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
