"""One sandbox's way out: accepts what its door's redirect brings, finds out where it wanted to go, and carries it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from skerry.network.hosts import Address, Host, plain
from skerry.network.messages import PROXY, PROXY_PORT, RESOLVER, Counted, Open, Rules
from skerry.network.policy import Policy
from skerry.network.worker.attempts import Attempts
from skerry.network.worker.book import Book, is_made_up
from skerry.network.worker.carry import Connection
from skerry.network.worker.desk import Outside, Sockets
from skerry.network.worker.explicit import Explicit
from skerry.network.worker.hooks import Inspection
from skerry.network.worker.limits import Meter, Turns
from skerry.network.worker.names import Names
from skerry.network.worker.relay import Pipes
from skerry.network.worker.resolve import Resolver
from skerry.network.worker.room import Room
from skerry.network.worker.streams import Wire
from skerry.network.worker.whose import Whose

_AT_ONCE: Final = 32
_A_SECOND, _BURST = 1000, 2000
_PAUSE_S: Final = 0.1  # without file descriptors
_BREATH_S: Final = 0.01
_COUNT_S: Final = 1.0
_ORIGINAL: Final = 80  # SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST
_RESOLVER, _PROXY = IPv4Address(RESOLVER), IPv4Address(PROXY)


@dataclass(frozen=True)
class Shared:
    """What all sandboxes of a worker use together. `inspect` makes what opens TLS by these rules, where any need it."""

    resolver: Resolver
    pipes: Pipes
    inspect: Callable[[Rules], Inspection | None]


class Egress:
    """Serves from the moment it is made, on the running loop."""

    def __init__(self, opened: Open, sockets: Sockets, outside: Outside, shared: Shared) -> None:
        self._sockets, self._sandbox, self._outside, self._shared = sockets, opened.sandbox, outside, shared
        meter = Meter(self._moved, self._used_up)
        meter.sent, meter.received = opened.sent, opened.received
        meter.limit(opened.rules.bandwidth, opened.rules.total)
        self._room = Room(
            sandbox=opened.sandbox,
            rules=opened.rules,
            policy=Policy.compile(opened.rules, opened.rules.ceiling),
            outside=outside,
            attempts=Attempts(opened.sandbox, outside.report),
            meter=meter,
            pipes=shared.pipes.lot(),
            share=shared.resolver.share(),
            inspection=shared.inspect(opened.rules),
        )
        self._whose = Whose(sockets.diag)
        self._book = Book(sockets.book)
        self._names = Names(lambda: self._room.policy, self._book, self._room.attempts, self._whose, opened.hostname)
        self._turns = Turns(_A_SECOND, _BURST)
        self._own_port: int = sockets.listener.getsockname()[1]
        self._tasks: dict[asyncio.Task[None], Connection | Explicit | None] = {}
        self._clients: dict[asyncio.Task[None], Wire] = {}
        self._told = (meter.sent, meter.received)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False
        sockets.listener.setblocking(False)
        sockets.names.setblocking(False)
        self._loop.add_reader(sockets.listener.fileno(), self._accept)
        self._loop.add_reader(sockets.names.fileno(), self._answer)

    def change(self, rules: Rules) -> None:
        """New rules. When it returns, no byte passes any more that they don't allow."""
        room = self._room
        room.policy, room.rules = Policy.compile(rules, rules.ceiling), rules
        room.inspection = self._shared.inspect(rules)
        room.meter.limit(rules.bandwidth, rules.total)
        for task, connection in list(self._tasks.items()):
            verdict = connection.refusal() if connection is not None else None
            if connection is not None and verdict is not None:
                connection.stop(verdict)
                task.cancel()
        room.attempts.flush()

    def flush(self) -> None:
        """Everything that was tried so far is told when it returns."""
        self._names.drain(self._sockets.names)
        self._room.attempts.flush()
        self._count()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sockets.listener.fileno())
        self._loop.remove_reader(self._sockets.names.fileno())
        for task in list(self._tasks):
            self._clients[task].cut()
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for asked in list(self._room.asked.values()):
            asked.cancel()
        self._room.attempts.close()
        self._count()
        for one in (self._sockets.listener, self._sockets.names, self._sockets.diag):
            one.close()
        self._book.close()

    # -- accepting -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """So many at a time, and so many a second: other sandboxes are waiting for the loop as well."""
        for _ in range(_AT_ONCE):
            if not self._turns.take():
                self._pause(self._sockets.listener, self._accept, _BREATH_S)
                return
            try:
                sock, peer = self._sockets.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(self._sockets.listener, self._accept, _PAUSE_S)
                return
            self._take(Wire(sock), peer)

    def _answer(self) -> None:
        if self._names.drain(self._sockets.names):
            self._pause(self._sockets.names, self._answer, _BREATH_S)

    def _pause(self, sock: socket.socket, then: Callable[[], None], seconds: float) -> None:
        """Those who wait, wait; the loop must not spin on them."""
        number = sock.fileno()
        self._loop.remove_reader(number)

        def resume() -> None:
            if not self._closed:
                self._loop.add_reader(number, then)

        self._timers[f"resume {number}"] = self._loop.call_later(seconds, resume)

    def _take(self, client: Wire, peer: tuple[str, int]) -> None:
        found = _destination(client.sock)
        near = (plain(peer[0]), peer[1])
        if found is None or (found[0].is_loopback and found[1] == self._own_port):
            cgroup = self._whose.tcp(near, (plain("127.0.0.1"), self._own_port))
            self._room.attempts.refused(
                "connection", "(the worker)", "the worker's own port is for nobody", port=self._own_port, cgroup=cgroup
            )
            client.abort()
            return
        address, port = found
        cgroup = self._whose.tcp(near, found)
        most = self._room.rules.connections
        if len(self._tasks) >= most:
            self._refuse(client, str(address), port, cgroup, f"{most} connections are open already",
                         "network.connections must be larger")  # fmt: skip
            return
        self._dispatch(client, address, port, cgroup)

    def _dispatch(self, client: Wire, address: Address, port: int, cgroup: int | None) -> None:
        if address == _PROXY and port == PROXY_PORT:
            explicit = Explicit(self._room, client, cgroup)
            self._spawn(explicit.run(), client, explicit)
        elif address == _RESOLVER and port == 53:
            self._spawn(self._names.serve(client, cgroup), client)
        elif is_made_up(address) and isinstance(address, IPv4Address):
            name = self._book.name(address)
            if name is None:
                self._refuse(client, str(address), port, cgroup, "no name has this made-up address",
                             "look the name up again")  # fmt: skip
            else:
                self._book.hold(address)
                self._connection(client, name, port, cgroup).add_done_callback(lambda _: self._book.release(address))
        else:
            self._connection(client, address, port, cgroup)

    def _connection(self, client: Wire, host: Host, port: int, cgroup: int | None) -> asyncio.Task[None]:
        connection = Connection(self._room, client, host, port, cgroup)
        return self._spawn(connection.run(), client, connection)

    def _spawn(
        self, work: Coroutine[Any, Any, None], client: Wire, connection: Connection | Explicit | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(_guarded(work, client))
        self._tasks[task], self._clients[task] = connection, client
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began has not awaited it
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._clients.pop(task).abort()  # one that was cancelled before it began has closed nothing

    def _refuse(self, client: Wire, host: str, port: int, cgroup: int | None, why: str, hint: str) -> None:
        self._room.attempts.refused("connection", host, why, port=port, hint=hint, cgroup=cgroup)
        client.abort()

    # -- counting ------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        if "count" not in self._timers and not self._closed:
            self._timers["count"] = self._loop.call_later(_COUNT_S, self._count)

    def _count(self) -> None:
        timer = self._timers.pop("count", None)
        if timer is not None:
            timer.cancel()
        meter = self._room.meter
        sent, received = meter.sent - self._told[0], meter.received - self._told[1]
        if sent or received:
            self._told = (meter.sent, meter.received)
            self._outside.counted(Counted(sandbox=self._sandbox, sent=sent, received=received, open=len(self._tasks)))

    def _used_up(self) -> None:
        """The last byte has gone: those that are open find out when they want to move another."""
        total = self._room.meter.total
        self._room.attempts.refused(
            "connection", "(all)", f"the sandbox's total of {total:,} bytes is used up",
            hint="network.total must be larger",
        )  # fmt: skip


def _destination(sock: socket.socket) -> tuple[Address, int] | None:
    """Where the client wanted to go, before the redirect."""
    with contextlib.suppress(OSError):
        if sock.family == socket.AF_INET or sock.getsockname()[0].startswith("::ffff:"):
            port, packed = struct.unpack_from("!2xH4s", sock.getsockopt(socket.SOL_IP, _ORIGINAL, 16))
            return IPv4Address(packed), port
        port, packed = struct.unpack_from("!2xH4x16s", sock.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL, 28))
        return plain(IPv6Address(packed)), port
    return None


async def _guarded(work: Coroutine[Any, Any, None], client: Wire) -> None:
    """What goes wrong in one connection ends that connection."""
    try:
        await work
    except (OSError, TimeoutError):
        pass
    finally:
        client.abort()
