"""Reaching a port inside a sandbox: from outside, in its own network, and never by way of its keeper."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from typing import Final, Protocol

from skerry.engine.network.attempts import WorkerProtocolError
from skerry.engine.network.gateway import GatewayManager, WorkerHandler
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.network.messages import CONNECTION_REFUSED, DialRequest, DialResult, FromWorker

MAX_DIALS: Final = 128  # of one sandbox at once: a port that never answers must not keep others from theirs


class SharedPorts(Protocol):
    """Knows which ports have a preview (`network.previews`)."""

    def shared(self, sandbox_id: str, port: int) -> Sandbox | None: ...


class PortDialer(WorkerHandler):
    """Opens connections, for callers and for the worker."""

    def __init__(
        self,
        gateways: GatewayManager,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        previews: SharedPorts,
        tasks: Tasks,
    ) -> None:
        self._gateways, self._registry, self._lifecycle = gateways, registry, lifecycle
        self._previews, self._tasks = previews, tasks
        self._dials: Counter[str] = Counter()

    async def port(self, sandbox: Sandbox, port: int) -> socket.socket:
        """Connect to a port inside, on IPv4 or IPv6. Raise ConnectionRefusedError if no program listens there. The
        sandbox is in use until the connection exists; reporting later traffic is the caller's duty."""
        with sandbox.in_use():
            await self._lifecycle.ensure_running(sandbox)
            work = asyncio.ensure_future(self._port(sandbox, port))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                work.add_done_callback(_close)
                raise

    def count(self, sandbox: Sandbox, sent: int, received: int) -> None:
        """Count bytes of a connection to a caller, as the sandbox sent and received them."""
        self._gateways.count_served(sandbox, sent, received)

    async def _port(self, sandbox: Sandbox, port: int) -> socket.socket:
        if sandbox.runtime is None or sandbox.record.init is None:
            raise SandboxUnavailable(
                f"{sandbox.record.id} has just ended", details={"state": sandbox.record.info().state}
            )
        pidfd = sandbox.runtime.pidfd(sandbox.record.init)
        try:
            connected = await self._gateways.namespaces.dial(pidfd, port)
        finally:
            os.close(pidfd)
        if connected.getsockname() == connected.getpeername():  # the kernel chose that very port for our own end
            connected.close()
            raise ConnectionRefusedError("nothing listens there")
        return connected

    # -- for the worker -----------------------------------------------------------------------------------------------

    def on_worker_message(self, message: FromWorker) -> bool:
        if not isinstance(message, DialRequest):
            return False
        if not 1 <= message.port <= 65535:
            raise WorkerProtocolError("an invalid port")
        sandbox, whose = self._target(message), message.peer_of or message.sandbox
        if self._dials[whose] >= MAX_DIALS:
            self._gateways.send(DialResult(number=message.number, error="too many connections are being made"))
        else:
            self._dials[whose] += 1
            self._tasks.spawn(self._dial(message, sandbox, whose))
        return True

    def _target(self, message: DialRequest) -> Sandbox | None:
        """Return the sandbox to connect to. A port needs a preview; a peer must be named by the policy of the
        connecting sandbox and have the same owner. The worker's word counts for neither."""
        if message.peer_of is None:
            return self._previews.shared(message.sandbox, message.port)
        record, peer = self._gateways.sandbox_of(message.peer_of).record, self._registry.get(message.sandbox)
        if (
            peer is None
            or message.sandbox not in record.spec.network.peers.values()
            or peer.record.owner != record.owner
        ):
            return None
        return peer

    async def _dial(self, message: DialRequest, sandbox: Sandbox | None, whose: str) -> None:
        try:
            await self._answer(message, sandbox)
        finally:
            self._dials[whose] -= 1
            if self._dials[whose] <= 0:
                del self._dials[whose]

    async def _answer(self, dial: DialRequest, sandbox: Sandbox | None) -> None:
        """`sandbox` None: the worker may not have that connection."""
        send = self._gateways.send
        try:
            if sandbox is None:
                raise SandboxUnavailable("preview or peer not found")
            with await self.port(sandbox, dial.port) as connected:
                send(DialResult(number=dial.number), (connected.fileno(),))
        except ConnectionRefusedError:
            send(DialResult(number=dial.number, error=CONNECTION_REFUSED))
        except (SkerryError, OSError) as error:
            reason = error.message if isinstance(error, SkerryError) else error.strerror
            send(DialResult(number=dial.number, error=reason or "it could not be reached"))


def _close(work: asyncio.Future[socket.socket]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
