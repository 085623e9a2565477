"""The worker's side of the channel: what the server says goes to the egress of a sandbox or to the previews, and what
they have to say or to ask goes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from skerry.network.messages import (
    REFUSED,
    Ask,
    Change,
    Close,
    Counted,
    Dial,
    Dialled,
    Done,
    FromServer,
    FromWorker,
    Listen,
    Open,
    PutOut,
    Rules,
    Share,
    Sync,
    Told,
    Tried,
    Unshare,
    Used,
)
from skerry.network.wire import Channel

UNSENT_MOST: Final = 4 << 20  # records beyond that are dropped: the server does not keep up, and must not be waited for
ANSWER_S: Final = 3600.0  # the server bounds every answer itself, far below
DIALS_MOST: Final = 4096


@dataclass(frozen=True)
class Sockets:
    """What came with an `Open`: all of them are the egress's to close."""

    listener: socket.socket
    names: socket.socket
    diag: socket.socket
    book: int


class Outside(Protocol):
    """What an egress has of the world: to tell, to ask, to reach a peer."""

    def report(self, tried: Tried) -> None: ...

    def counted(self, counted: Counted) -> None: ...

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]: ...

    async def dial(self, sandbox: str, port: int) -> socket.socket: ...


class Way(Protocol):
    """One sandbox's way out."""

    def change(self, rules: Rules) -> None:
        """What they no longer allow is closed when it returns."""

    def flush(self) -> None:
        """Tells what it was still counting."""

    def close(self) -> None: ...


class Shown(Protocol):
    """The previews."""

    async def listen(self, listener: socket.socket, domains: tuple[str, ...], secure: tuple[str, ...]) -> None: ...

    def share(self, share: Share) -> None: ...

    def unshare(self, sandbox: str, port: int) -> None: ...

    def put_out(self, sandbox: str) -> None: ...


MakeWay = Callable[[Open, Sockets, Outside], Way]


class Desk:
    def __init__(self, control: socket.socket, make: MakeWay) -> None:
        self._channel: Channel[FromServer] = Channel(control, FromServer)
        self._make = make
        self._ways: dict[str, Way] = {}
        self._numbers = itertools.count(1)
        self._dials: dict[int, asyncio.Future[socket.socket]] = {}
        self._questions: dict[str, asyncio.Future[tuple[bool, str]]] = {}
        self.previews: Shown | None = None

    async def run(self, first: FromWorker) -> None:
        """Until the server is gone or says something that can't be: both end the process."""
        self._channel.send(first)
        while True:
            try:
                message, fds = await self._channel.receive()
            except EOFError:
                return
            await self._take(message, fds)

    async def _take(self, message: FromServer, fds: list[int]) -> None:
        match message:
            case Open():
                self._open(message, fds)
            case Change():
                self._change(message)
                self._send(Done(number=message.number))
            case Close():
                self._close(message.sandbox)
            case Sync():
                for sandbox, way in self._ways.items():
                    if message.sandbox in (None, sandbox):
                        way.flush()
                self._send(Done(number=message.number))
            case Told():
                question = self._questions.pop(message.question, None)
                if question is not None and not question.done():
                    question.set_result((message.allow, message.why))
            case Dialled():
                self._dialled(message, fds)
            case _:
                await self._show(message, fds)

    def _open(self, message: Open, fds: list[int]) -> None:
        self._close(message.sandbox)
        listener, names, diag = (socket.socket(fileno=fd) for fd in fds[:3])
        sockets = Sockets(listener, names, diag, fds[3])
        try:
            self._ways[message.sandbox] = self._make(message, sockets, _Outside(self, message.sandbox))
        except Exception:  # rules that can't be read, say: this sandbox has no way out then, and the others have theirs
            traceback.print_exc(limit=-3)
            for one in (listener, names, diag):
                one.close()
            with contextlib.suppress(OSError):
                os.close(sockets.book)

    def _change(self, message: Change) -> None:
        way = self._ways.get(message.sandbox)
        if way is None:
            return
        try:
            way.change(message.rules)
        except Exception:  # what the old rules allowed must not go on
            traceback.print_exc(limit=-3)
            self._close(message.sandbox)

    def _close(self, sandbox: str) -> None:
        way = self._ways.pop(sandbox, None)
        if way is not None:
            way.close()

    def _dialled(self, message: Dialled, fds: list[int]) -> None:
        answer = self._dials.pop(message.number, None)
        if answer is None or answer.done():  # who asked has left
            for fd in fds:
                os.close(fd)
        elif fds:
            answer.set_result(socket.socket(fileno=fds[0]))
        elif message.error == REFUSED:
            answer.set_exception(ConnectionRefusedError("nothing listens there"))
        else:
            answer.set_exception(OSError(message.error or "it could not be reached"))

    async def _show(self, message: FromServer, fds: list[int]) -> None:
        if self.previews is None:
            for fd in fds:
                os.close(fd)
        elif isinstance(message, Listen):
            await self.previews.listen(socket.socket(fileno=fds[0]), message.domains, message.secure)
        elif isinstance(message, Share):
            self.previews.share(message)
        elif isinstance(message, Unshare):
            self.previews.unshare(message.sandbox, message.port)
        elif isinstance(message, PutOut):
            self.previews.put_out(message.sandbox)

    # -- for those who work here --------------------------------------------------------------------------------------

    def used(self, sandbox: str) -> None:
        self._send(Used(sandbox=sandbox))

    async def dial(self, sandbox: str, port: int, peer_of: str | None = None) -> socket.socket:
        """A connection to a port inside; the server makes it, and says whether it may be."""
        if len(self._dials) >= DIALS_MOST:
            raise ConnectionRefusedError("too many connections are being made")
        number = next(self._numbers)
        answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._dials[number] = answer
        try:
            self._send(Dial(number=number, sandbox=sandbox, port=port, peer_of=peer_of))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except BaseException:
            with contextlib.suppress(BaseException):  # the answer and the end of the wait may come together
                if answer.done() and not answer.cancelled():
                    answer.result().close()
            raise
        finally:
            self._dials.pop(number, None)

    async def ask(self, sandbox: str, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        question = secrets.token_hex(8)
        answer: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
        self._questions[question] = answer
        try:
            self._send(Ask(question=question, sandbox=sandbox, host=host, port=port, cgroup=cgroup))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            self._questions.pop(question, None)

    def tell(self, message: Tried | Counted) -> None:
        if self._channel.unsent < UNSENT_MOST:
            self._send(message)

    def _send(self, message: FromWorker) -> None:
        self._channel.send(message)


class _Outside:
    """Of one sandbox: it can't speak for another."""

    def __init__(self, desk: Desk, sandbox: str) -> None:
        self._desk, self._sandbox = desk, sandbox

    def report(self, tried: Tried) -> None:
        self._desk.tell(tried)

    def counted(self, counted: Counted) -> None:
        self._desk.tell(counted)

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        return await self._desk.ask(self._sandbox, host, port, cgroup)

    async def dial(self, sandbox: str, port: int) -> socket.socket:
        return await self._desk.dial(sandbox, port, peer_of=self._sandbox)
