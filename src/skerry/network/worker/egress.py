"""The egress of one sandbox: accepts connections that the gateway redirects, finds their original destination, and
serves them."""

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

from skerry.network.messages import PROXY_IP, PROXY_PORT, RESOLVER_IP, OpenGateway, Rules, TrafficMessage
from skerry.network.policy.handlers import HandlerTable
from skerry.network.policy.policy import Policy
from skerry.network.worker.audit import AttemptReporter
from skerry.network.worker.cassette import Player, Recorder
from skerry.network.worker.connection import EgressConnection
from skerry.network.worker.control import GatewaySockets, ServerLink
from skerry.network.worker.dns.fake_ips import FakeIpTable, is_fake_ip
from skerry.network.worker.dns.resolver import Resolver
from skerry.network.worker.dns.server import DnsServer
from skerry.network.worker.http.filters import Interceptor
from skerry.network.worker.http.forward_proxy import ForwardProxy
from skerry.network.worker.rate_limit import TokenBucket, TrafficMeter
from skerry.network.worker.relay import PipePool
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.socket_owner import SocketOwner
from skerry.network.worker.streams import SocketStream
from skerry.types import readable_size
from skerry.types.hosts import Address, Host, plain

_MAX_PER_WAKEUP: Final = 32
_CONNECTIONS_PER_SECOND, _CONNECTION_BURST = 1000, 2000
_OUT_OF_FDS_PAUSE_S: Final = 0.1  # when out of file descriptors
_RATE_LIMIT_PAUSE_S: Final = 0.01
_TRAFFIC_REPORT_S: Final = 1.0
_SO_ORIGINAL_DST: Final = 80  # and IP6T_SO_ORIGINAL_DST
_RESOLVER_ADDRESS, _PROXY_ADDRESS = IPv4Address(RESOLVER_IP), IPv4Address(PROXY_IP)


@dataclass(frozen=True)
class WorkerResources:
    """Resources that all sandboxes of a worker share. `intercept` returns the TLS interceptor for these rules, if they
    need one."""

    resolver: Resolver
    pipes: PipePool
    intercept: Callable[[Rules], Interceptor | None]


class Egress:
    """Serves from its construction on, on the running loop."""

    def __init__(
        self, message: OpenGateway, sockets: GatewaySockets, server: ServerLink, resources: WorkerResources
    ) -> None:
        self._sockets, self._sandbox, self._server, self._resources = sockets, message.sandbox, server, resources
        meter = TrafficMeter(self._on_traffic, self._on_quota_exhausted)
        meter.sent, meter.received = message.sent, message.received
        meter.limit(message.rules.bytes_per_second, message.rules.max_bytes)
        self._context = SandboxContext(
            sandbox=message.sandbox,
            rules=message.rules,
            policy=Policy.compile(message.rules, message.rules.ceiling),
            server=server,
            attempts=AttemptReporter(message.sandbox, server.report),
            meter=meter,
            pipes=resources.pipes.lease(),
            resolver=resources.resolver.for_sandbox(),
            interceptor=resources.intercept(message.rules),
            handlers=HandlerTable(message.rules.handlers),
            recorder=_recorder(message.rules, sockets),
            player=_player(message.rules, sockets),
        )
        self._socket_owner = SocketOwner(sockets.diag)
        self._fake_ips = FakeIpTable(sockets.fake_ip_file)
        self._dns = DnsServer(
            lambda: self._context.policy, self._fake_ips, self._context.attempts, self._socket_owner, message.hostname
        )
        self._accept_rate = TokenBucket(_CONNECTIONS_PER_SECOND, _CONNECTION_BURST)
        self._own_port: int = sockets.listener.getsockname()[1]
        self._tasks: dict[asyncio.Task[None], EgressConnection | ForwardProxy | None] = {}
        self._clients: dict[asyncio.Task[None], SocketStream] = {}
        self._reported = (meter.sent, meter.received)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False
        sockets.listener.setblocking(False)
        sockets.dns.setblocking(False)
        self._loop.add_reader(sockets.listener.fileno(), self._accept)
        self._loop.add_reader(sockets.dns.fileno(), self._answer)

    def change(self, rules: Rules) -> None:
        """Apply new rules. On return, no byte passes that they do not allow."""
        context = self._context
        handlers = HandlerTable(rules.handlers)
        context.policy, context.rules, context.handlers = Policy.compile(rules, rules.ceiling), rules, handlers
        context.interceptor = self._resources.intercept(rules)
        context.meter.limit(rules.bytes_per_second, rules.max_bytes)
        for task, connection in list(self._tasks.items()):
            verdict = connection.denial() if connection is not None else None
            if connection is not None and verdict is not None:
                connection.stop(verdict)
                task.cancel()
        context.attempts.flush()

    def rename(self, hostname: str) -> None:
        """Set the sandbox's host name."""
        self._dns.hostname = hostname.lower()

    def flush(self) -> None:
        """Report everything tried so far."""
        self._dns.drain(self._sockets.dns)
        self._context.attempts.flush()
        self._report_traffic()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sockets.listener.fileno())
        self._loop.remove_reader(self._sockets.dns.fileno())
        for task in list(self._tasks):
            self._clients[task].reset()
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for pending in list(self._context.pending_approvals.values()):
            pending.cancel()
        self._context.attempts.close()
        self._report_traffic()
        for one in (self._sockets.listener, self._sockets.dns, self._sockets.diag):
            one.close()
        self._fake_ips.close()
        for cassette in (self._context.recorder, self._context.player):
            if cassette is not None:
                cassette.close()

    # -- accepting -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept a limited number at a time and per second: other sandboxes wait for the loop as well."""
        for _ in range(_MAX_PER_WAKEUP):
            if not self._accept_rate.take():
                self._pause(self._sockets.listener, self._accept, _RATE_LIMIT_PAUSE_S)
                return
            try:
                sock, peer = self._sockets.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(self._sockets.listener, self._accept, _OUT_OF_FDS_PAUSE_S)
                return
            self._accept_one(SocketStream(sock), peer)

    def _answer(self) -> None:
        if self._dns.drain(self._sockets.dns):
            self._pause(self._sockets.dns, self._answer, _RATE_LIMIT_PAUSE_S)

    def _pause(self, sock: socket.socket, callback: Callable[[], None], seconds: float) -> None:
        """Stop reading from a socket for a while: connections wait, and the loop must not spin."""
        number = sock.fileno()
        self._loop.remove_reader(number)

        def resume() -> None:
            if not self._closed:
                self._loop.add_reader(number, callback)

        self._timers[f"resume {number}"] = self._loop.call_later(seconds, resume)

    def _accept_one(self, client: SocketStream, peer: tuple[str, int]) -> None:
        destination = _destination(client.sock)
        client_end = (plain(peer[0]), peer[1])
        if destination is None or (destination[0].is_loopback and destination[1] == self._own_port):
            cgroup = self._socket_owner.tcp(client_end, (plain("127.0.0.1"), self._own_port))
            self._context.attempts.denied(
                "connection",
                "(the worker)",
                "the gateway's port accepts no direct connections",
                port=self._own_port,
                cgroup=cgroup,
            )
            client.abort()
            return
        address, port = destination
        cgroup = self._socket_owner.tcp(client_end, destination)
        max_connections = self._context.rules.max_connections
        if len(self._tasks) >= max_connections:
            self._deny(client, str(address), port, cgroup, f"{max_connections} connections are open already",
                         "network.max_connections must be larger")  # fmt: skip
            return
        self._dispatch(client, address, port, cgroup)

    def _dispatch(self, client: SocketStream, address: Address, port: int, cgroup: int | None) -> None:
        if address == _PROXY_ADDRESS and port == PROXY_PORT:
            proxy = ForwardProxy(self._context, client, cgroup)
            self._spawn(proxy.run(), client, proxy)
        elif address == _RESOLVER_ADDRESS and port == 53:
            self._spawn(self._dns.serve(client, cgroup), client)
        elif is_fake_ip(address) and isinstance(address, IPv4Address):
            name = self._fake_ips.name(address)
            if name is None:
                self._deny(client, str(address), port, cgroup, "no name has this fake IP",
                             "look the name up again")  # fmt: skip
            else:
                self._fake_ips.hold(address)
                self._connection(client, name, port, cgroup).add_done_callback(
                    lambda _: self._fake_ips.release(address)
                )
        else:
            self._connection(client, address, port, cgroup)

    def _connection(self, client: SocketStream, host: Host, port: int, cgroup: int | None) -> asyncio.Task[None]:
        connection = EgressConnection(self._context, client, host, port, cgroup)
        return self._spawn(connection.run(), client, connection)

    def _spawn(
        self,
        work: Coroutine[Any, Any, None],
        client: SocketStream,
        connection: EgressConnection | ForwardProxy | None = None,
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(_guarded(work, client))
        self._tasks[task], self._clients[task] = connection, client
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # a task cancelled before it began has not awaited it
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._clients.pop(task).abort()  # a task cancelled before it began has closed nothing

    def _deny(self, client: SocketStream, host: str, port: int, cgroup: int | None, why: str, hint: str) -> None:
        self._context.attempts.denied("connection", host, why, port=port, hint=hint, cgroup=cgroup)
        client.abort()

    # -- traffic -------------------------------------------------------------------------------------------------------

    def _on_traffic(self) -> None:
        if "count" not in self._timers and not self._closed:
            self._timers["count"] = self._loop.call_later(_TRAFFIC_REPORT_S, self._report_traffic)

    def _report_traffic(self) -> None:
        timer = self._timers.pop("count", None)
        if timer is not None:
            timer.cancel()
        meter = self._context.meter
        sent, received = meter.sent - self._reported[0], meter.received - self._reported[1]
        if sent or received:
            self._reported = (meter.sent, meter.received)
            self._server.report_traffic(
                TrafficMessage(sandbox=self._sandbox, sent=sent, received=received, open=len(self._tasks))
            )

    def _on_quota_exhausted(self) -> None:
        """Report that the quota is exhausted; open connections fail when they try to move another byte."""
        total = self._context.meter.max_bytes
        self._context.attempts.denied(
            "connection", "(all)", f"the sandbox's limit of {readable_size(total or 0)} of traffic is used up",
            hint="network.max_bytes must be larger",
        )  # fmt: skip


def _recorder(rules: Rules, sockets: GatewaySockets) -> Recorder | None:
    return Recorder(sockets.cassette) if rules.cassette == "record" and sockets.cassette is not None else None


def _player(rules: Rules, sockets: GatewaySockets) -> Player | None:
    return Player(sockets.cassette) if rules.cassette == "replay" and sockets.cassette is not None else None


def _destination(sock: socket.socket) -> tuple[Address, int] | None:
    """Return the client's original destination, before the redirect."""
    with contextlib.suppress(OSError):
        if sock.family == socket.AF_INET or sock.getsockname()[0].startswith("::ffff:"):
            port, packed = struct.unpack_from("!2xH4s", sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16))
            return IPv4Address(packed), port
        port, packed = struct.unpack_from("!2xH4x16s", sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28))
        return plain(IPv6Address(packed)), port
    return None


async def _guarded(work: Coroutine[Any, Any, None], client: SocketStream) -> None:
    """Run one connection; its failure ends only that connection."""
    try:
        await work
    except (OSError, TimeoutError):
        pass
    finally:
        client.abort()
