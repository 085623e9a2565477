"""An egress under test: a namespace with its door, the egress on a loop of its own thread, servers on host loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeVar

import dns.message
import dns.rdatatype
import uvloop
from network.namespacing import Place

from skerry.network.door import Door, build
from skerry.network.hosts import Address, Name
from skerry.network.messages import RESOLVER, Counted, Open, Rules, Tried
from skerry.network.netns import Namespaces
from skerry.network.worker.desk import Sockets
from skerry.network.worker.egress import Egress, Shared
from skerry.network.worker.hooks import Inspection
from skerry.network.worker.relay import Pipes
from skerry.network.worker.resolve import Resolver
from skerry.types import Attempt

T = TypeVar("T")
WAIT_S = 30.0


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


@dataclass
class World:
    """What the egress sees outside, and what it told."""

    names: dict[str, list[str]] = field(default_factory=dict)
    answer: Callable[[str, int | None], Awaitable[tuple[bool, str]]] | None = None
    peers: dict[str, int] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    moved: list[Counted] = field(default_factory=list)
    asked: list[tuple[str, int | None]] = field(default_factory=list)

    def look_up(self, name: Name) -> list[Address]:
        if name not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [ip_address(one) for one in self.names[name]]

    def report(self, tried: Tried) -> None:
        self.tried.append(tried)

    def counted(self, counted: Counted) -> None:
        self.moved.append(counted)

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        self.asked.append((host, port))
        assert self.answer is not None
        return await self.answer(host, port)

    async def dial(self, sandbox: str, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.peers[sandbox]))
        return sock


class Leaving:
    def __init__(self, place: Place, namespaces: Namespaces, loop: Loop) -> None:
        self._place, self._namespaces, self._loop = place, namespaces, loop
        self.world = World()
        self.book = tempfile.NamedTemporaryFile()  # noqa: SIM115 -- closed by `end`
        self.door: Door = namespaces._thread.submit(build, namespaces, place.pidfd).result(WAIT_S)
        self.pipes = Pipes()
        self.resolver = Resolver(self.world.look_up)
        self.inspection: Inspection | None = None
        self.egress: Egress | None = None

    def open(self, *allow: str, **more: Any) -> None:
        """Serves these rules, with a fresh egress; the door and the book stay."""
        self.close()
        opened = Open(sandbox="sb-aaaaaaaaaa", rules=Rules(allow=allow, **more))
        shared = Shared(self.resolver, self.pipes, lambda rules: self.inspection)
        sockets = Sockets(
            *(one.dup() for one in self.door.sockets), os.open(self.book.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        )

        async def make() -> Egress:
            return Egress(opened, sockets, self.world, shared)

        self.egress = self._loop.run(make())

    @property
    def connections(self) -> int:
        return 0 if self.egress is None else len(self.egress._tasks)

    def change(self, *allow: str, **more: Any) -> None:
        async def change() -> None:
            assert self.egress is not None
            self.egress.change(Rules(allow=allow, **more))

        self._loop.run(change())

    def close(self) -> None:
        async def close(egress: Egress) -> None:
            egress.close()
            while egress._tasks:
                await asyncio.sleep(0.001)

        if self.egress is not None:
            self._loop.run(close(self.egress))
            self.egress = None

    def end(self) -> None:
        self.close()
        self.resolver.close()
        self.pipes.close()
        self.door.close()
        self.book.close()

    # -- from inside ---------------------------------------------------------------------------------------------------

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        made = self._namespaces._thread.submit(self._namespaces.sockets, self._place.pidfd, [(family, kind, 0)])
        sock = made.result(WAIT_S)[0]
        sock.settimeout(WAIT_S)
        return sock

    def connect(self, host: str, port: int) -> socket.socket:
        """As a program inside would: by address, or by the address that the name server gives."""
        address = host if host.replace(".", "").isdigit() or ":" in host else self.look_up(host)
        sock = self.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.connect((address, port))
        return sock

    def refused(self, host: str, port: int) -> bool:
        """Whether a connection is reset before it carries a byte."""
        try:
            with self.connect(host, port) as sock:
                return is_reset(sock)
        except ConnectionResetError:
            return True

    def look_up(self, name: str) -> str:
        answer = self.query(name).answer
        assert answer, f"{name} has no address"
        return str(answer[0][0])

    def query(self, name: str, kind: str = "A", server: str = RESOLVER) -> dns.message.Message:
        reply = self.ask(dns.message.make_query(name, kind).to_wire(), server)
        return dns.message.from_wire(reply)

    def ask(self, query: bytes, server: str = RESOLVER) -> bytes:
        with self.socket(kind=socket.SOCK_DGRAM) as sock:
            sock.settimeout(1)
            for _ in range(int(WAIT_S)):  # as resolvers do: a datagram may be lost
                sock.sendto(query, (server, 53))
                with contextlib.suppress(TimeoutError):
                    return sock.recv(4096)
        raise TimeoutError("no answer")

    def denied(self, *words: str) -> Attempt:
        """The first refusal that was told in which all these words stand."""
        return self.told(
            lambda a: a.decision == "denied" and all(word in f"{a.host} {a.why} {a.hint}" for word in words)
        )

    def told(self, wanted: Callable[[Attempt], bool]) -> Attempt:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            for tried in list(self.world.tried):
                if wanted(tried.attempt):
                    return tried.attempt
            time.sleep(0.005)
        raise AssertionError(f"not told; but {[t.attempt for t in self.world.tried]}")

    def quiet(self) -> None:
        """Waits until no connection is open any more."""
        end = time.monotonic() + WAIT_S
        while self.egress is not None and self.egress._tasks:
            assert time.monotonic() < end
            time.sleep(0.005)


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket], None], address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A server on this machine: each connection in a thread, given as a blocking socket with a time limit."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)

        def one(sock: socket.socket) -> None:
            sock.settimeout(WAIT_S)
            with sock, contextlib.suppress(OSError):
                handle(sock)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)


def somewhere() -> str:
    """A loopback address that no other test is likely to use at the same time: there any port is free."""
    return "127." + ".".join(str(secrets.randbelow(250) + 2) for _ in range(3))


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def read_all(sock: socket.socket) -> bytes:
    found = b""
    while data := sock.recv(65536):
        found += data
    return found


def is_reset(sock: socket.socket) -> bool:
    """Whether the other side broke it off at once, rather than close it or wait."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False
