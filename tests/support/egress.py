"""An egress under test: a namespace with its gateway, the egress on a loop in a thread, servers on host loopback."""

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

from skerry.network.gateway.gateway import Gateway, build_gateway
from skerry.network.gateway.netns import Namespaces
from skerry.network.messages import (
    RESOLVER_IP,
    AttemptMessage,
    ExchangeMessage,
    HandlerNeeded,
    HandlerResult,
    OpenGateway,
    Rules,
    TrafficMessage,
)
from skerry.network.worker.control import GatewaySockets
from skerry.network.worker.dns.resolver import Resolver
from skerry.network.worker.egress import Egress, WorkerResources
from skerry.network.worker.http.filters import Interceptor
from skerry.network.worker.relay import PipePool
from skerry.types import Handler, NetworkAttempt
from skerry.types.handlers import HttpHeaders
from skerry.types.hosts import Address, Name
from support.namespaces import NetworkNamespace

T = TypeVar("T")
WAIT_S = 30.0
LOOPBACK_CEILING = ("*", "127.0.0.0/8:*", "[::1]:*")  # the servers of tests are there; by default it stays closed


class LoopThread:
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
class ServerStub:
    """The server as the egress sees it; records its reports."""

    hosts: dict[str, list[str]] = field(default_factory=dict)
    answer: Callable[[str, int | None], Awaitable[tuple[bool, str]]] | None = None
    peers: dict[str, int] = field(default_factory=dict)
    attempts: list[AttemptMessage] = field(default_factory=list)
    traffic: list[TrafficMessage] = field(default_factory=list)
    approvals: list[tuple[str, int | None]] = field(default_factory=list)
    decide: Callable[[HandlerNeeded, bytes | None], Awaitable[HandlerResult]] | None = None
    calls: list[HandlerNeeded] = field(default_factory=list)
    exchanges: list[ExchangeMessage] = field(default_factory=list)

    def look_up(self, name: Name) -> list[Address]:
        if name not in self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [ip_address(one) for one in self.hosts[name]]

    def report(self, tried: AttemptMessage) -> None:
        self.attempts.append(tried)

    def report_traffic(self, report_traffic: TrafficMessage) -> None:
        self.traffic.append(report_traffic)

    async def ask(self, host: str, port: int | None, cgroup: int | None) -> tuple[bool, str]:
        self.approvals.append((host, port))
        assert self.answer is not None
        return await self.answer(host, port)

    async def handle(
        self, handler: Handler, method: str, url: str, headers: HttpHeaders,
        response: tuple[int, HttpHeaders] | None, body: bytes | None, cgroup: int | None,
    ) -> HandlerResult:  # fmt: skip
        assert self.decide is not None
        self.calls.append(
            HandlerNeeded(
                call_id="c", sandbox="sb-aaaaaaaaaa", host=handler.host, method=method, url=url, headers=headers,
                response=response, body=body is not None,
            )
        )  # fmt: skip
        async with asyncio.timeout(handler.timeout_s):
            return await self.decide(self.calls[-1], body)

    def report_exchange(self, exchange: ExchangeMessage) -> None:
        self.exchanges.append(exchange)

    async def dial(self, sandbox: str, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.peers[sandbox]))
        return sock


class EgressHarness:
    def __init__(self, namespace: NetworkNamespace, namespaces: Namespaces, loop: LoopThread) -> None:
        self._namespace, self._namespaces, self._loop = namespace, namespaces, loop
        self.server = ServerStub()
        self.fake_ip_file = tempfile.NamedTemporaryFile()  # noqa: SIM115 -- closed by `end`
        self.cassette_file = tempfile.NamedTemporaryFile()  # noqa: SIM115 -- closed by `end`
        self.gateway: Gateway = namespaces._thread.submit(build_gateway, namespaces, namespace.pidfd).result(WAIT_S)
        self.pipes = PipePool()
        self.resolver = Resolver(self.server.look_up)
        self.interceptor: Interceptor | None = None
        self.egress: Egress | None = None

    def open(self, *allow: str, **more: Any) -> None:
        """Serve these rules with a new egress; the gateway and the fake IPs stay."""
        self.close()
        opened = OpenGateway(sandbox="sb-aaaaaaaaaa", rules=_rules(allow, more))
        shared = WorkerResources(self.resolver, self.pipes, lambda rules: self.interceptor)
        sockets = GatewaySockets(
            *(one.dup() for one in self.gateway.sockets),
            os.open(self.fake_ip_file.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC),
            os.open(self.cassette_file.name, os.O_RDWR | os.O_CLOEXEC) if opened.rules.cassette else None,
        )

        async def make() -> Egress:
            return Egress(opened, sockets, self.server, shared)

        self.egress = self._loop.run(make())

    @property
    def connections(self) -> int:
        return 0 if self.egress is None else len(self.egress._tasks)

    def change(self, *allow: str, **more: Any) -> None:
        async def change() -> None:
            assert self.egress is not None
            self.egress.change(_rules(allow, more))

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
        self.gateway.close()
        self.fake_ip_file.close()
        self.cassette_file.close()

    # -- from inside ---------------------------------------------------------------------------------------------------

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        made = self._namespaces._thread.submit(self._namespaces.sockets, self._namespace.pidfd, [(family, kind, 0)])
        sock = made.result(WAIT_S)[0]
        sock.settimeout(WAIT_S)
        return sock

    def connect(self, host: str, port: int) -> socket.socket:
        """Connect like a program inside: by address, or by the address from the DNS server."""
        address = host if host.replace(".", "").isdigit() or ":" in host else self.look_up(host)
        sock = self.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.connect((address, port))
        return sock

    def is_denied(self, host: str, port: int) -> bool:
        """Return whether a connection is reset before it carries a byte."""
        try:
            with self.connect(host, port) as sock:
                return is_reset(sock)
        except ConnectionResetError:
            return True

    def look_up(self, name: str) -> str:
        answer = self.query(name).answer
        assert answer, f"{name} has no address"
        return str(answer[0][0])

    def query(self, name: str, kind: str = "A", server: str = RESOLVER_IP) -> dns.message.Message:
        reply = self.ask(dns.message.make_query(name, kind).to_wire(), server)
        return dns.message.from_wire(reply)

    def ask(self, query: bytes, server: str = RESOLVER_IP) -> bytes:
        with self.socket(kind=socket.SOCK_DGRAM) as sock:
            sock.settimeout(1)
            for _ in range(int(WAIT_S)):  # as resolvers do: a datagram may be lost
                sock.sendto(query, (server, 53))
                with contextlib.suppress(TimeoutError):
                    return sock.recv(4096)
        raise TimeoutError("no answer")

    def denied_attempt(self, *words: str) -> NetworkAttempt:
        """Return the first reported denial that contains all these words."""
        return self.attempt(
            lambda a: a.decision == "denied" and all(word in f"{a.host} {a.why} {a.hint}" for word in words)
        )

    def attempt(self, wanted: Callable[[NetworkAttempt], bool]) -> NetworkAttempt:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            for tried in list(self.server.attempts):
                if wanted(tried.attempt):
                    return tried.attempt
            time.sleep(0.005)
        raise AssertionError(f"not told; but {[t.attempt for t in self.server.attempts]}")

    def wait_idle(self) -> None:
        """Wait until no connection is open."""
        end = time.monotonic() + WAIT_S
        while self.egress is not None and self.egress._tasks:
            assert time.monotonic() < end
            time.sleep(0.005)


def _rules(allow: tuple[str, ...], more: dict[str, Any]) -> Rules:
    return Rules(allow=allow, **{"ceiling": LOOPBACK_CEILING, **more})


@contextlib.contextmanager
def serve_tcp(handle: Callable[[socket.socket], None], address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Run a server on this machine: each connection in a thread, as a blocking socket with a timeout."""
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


def random_loopback() -> str:
    """Return a loopback address that other tests are unlikely to use at the same time: any port is free there."""
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
    """Return whether the peer resets the connection at once, rather than close it or wait."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False
