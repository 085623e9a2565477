"""The ports on which a sandbox's programs listen: waited for from inside, reached from outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from skerry.engine.network.dial import PortDialer
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import Conflict
from skerry.types import Caller, PortState

PIECE = 256 << 10


class Connection:
    """Bytes to and from a program inside. While they flow the sandbox is not idle, and they are metered."""

    def __init__(self, sandbox: Sandbox, connected: socket.socket, reach: PortDialer) -> None:
        self._sandbox, self._reach = sandbox, reach
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end of the stream."""
        with contextlib.suppress(OSError):  # else two small writes of the program's are 40 ms apart
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        data = await self._loop.sock_recv(self._socket, PIECE)
        self._sandbox.mark_active()
        self._reach.count(self._sandbox, len(data), 0)
        return data

    async def write(self, data: bytes) -> None:
        """At the program's speed."""
        self._sandbox.mark_active()
        self._reach.count(self._sandbox, 0, len(data))
        await self._loop.sock_sendall(self._socket, data)

    def end(self) -> None:
        """Half-close the connection; the program's answer can still be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """The other side broke off: so does this one, lest a program takes half a message for a whole one."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def aclose(self) -> None:
        self._socket.close()


class PortService:
    """`engine.ports`."""

    def __init__(self, registry: SandboxRegistry, lifecycle: Lifecycle, reach: PortDialer) -> None:
        self._registry, self._lifecycle, self._reach = registry, lifecycle, reach

    async def wait(
        self, caller: Caller, ref: str, port: int, within: float, http_path: str | None, process: str | None = None
    ) -> PortState:
        """Wait until it is open, the time is over, or the process that should open it has ended."""
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            if process is None:
                return await keeper.wait_for_port(port, within, http_path)
            end = sandbox.activity.end_of(process)
            opening = asyncio.ensure_future(keeper.wait_for_port(port, within, http_path))
            try:
                if (await keeper.process(process)).state == "running":
                    await asyncio.wait((end, opening), return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    return opening.result()
                return PortState(open=False, last="its process has ended", ended=True)
            finally:
                end.cancel()
                opening.cancel()
                await asyncio.wait((opening,))

    async def connect(self, caller: Caller, ref: str, port: int) -> Connection:
        """Connect to a listening program."""
        sandbox = self._registry.find(caller, ref)
        try:
            return Connection(sandbox, await self._reach.port(sandbox, port), self._reach)
        except OSError as error:
            raise Conflict(
                f"nothing listens on port {port} of {sandbox.record.id}",
                hint="start the program inside first; `wait_for_port` waits for it",
                details={"port": port, "errno": error.errno},
            ) from error
