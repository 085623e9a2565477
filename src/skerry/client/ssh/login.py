"""One SSH connection: the check of its key, and the channels that a client can open."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import asyncssh
from msgspec.structs import replace

from skerry.client._async.client import AsyncClient
from skerry.client.host.ssh_keys import DEFAULT_USER, UserKeys
from skerry.client.ssh.channels import MAX_LISTENERS, Listener, Session, connect
from skerry.client.ssh.streams import Command
from skerry.errors import InvalidRequest, SkerryError
from skerry.types import RunRequest

READ: Final = 256 << 10
PIPE: Final = 512 << 10
MAX_VECTOR: Final = 64  # parts of one write
WINDOW: Final = 8 << 20  # bytes that a client may send ahead
PACKET: Final = 128 << 10
LOGIN_TIMEOUT: Final = 60
CLOSE_TIMEOUT: Final = 10.0
END_TIMEOUT: Final = 5.0  # for the listeners inside
_IGNORE: Final = 2  # SSH_MSG_IGNORE
_CIPHERS: Final = ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr", "aes128-ctr"]
_MACS: Final = ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256"]
_EXCHANGES: Final = ["curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"]


@dataclass(frozen=True)
class LoginOptions:
    """`agent`: accept the forwarding of the client's SSH agent."""

    agent: bool = False


class Login(asyncssh.SSHServer):
    """Accepts the user's key and opens sessions and forwarding in one sandbox."""

    def __init__(self, client: AsyncClient, sandbox: str, keys: UserKeys, options: LoginOptions) -> None:
        self.client, self.sandbox = client, sandbox
        self.user: str | None = None
        self.ended = asyncio.Event()
        self.options = options
        self._key = keys.public_blob()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._opening = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._agent: Listener | None = None

    @property
    def agent_path(self) -> str | None:
        """The socket inside that reaches the client's SSH agent."""
        return None if self._agent is None else self._agent.path

    def command(self, request: RunRequest) -> Command:
        """Return a command of the login's user, not yet started."""
        return Command(self.client, self.sandbox, replace(request, user=self.user))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the connection does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a clean-up that the end of the connection must not interrupt."""
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def aclose(self) -> None:
        if self._listeners:
            for listener in self._listeners:
                listener.close()
            await asyncio.wait([listener.ended for listener in self._listeners], timeout=END_TIMEOUT)
        for task in set(self._tasks):
            task.cancel()
        for tasks in (self._tasks, self._finishing):
            if tasks:
                await asyncio.wait(set(tasks), timeout=CLOSE_TIMEOUT)

    # -- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    def begin_auth(self, username: str) -> bool:
        self.user = None if username == DEFAULT_USER else username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.public_data == self._key

    # -- channels of the client ----------------------------------------------------------------------------------------

    def session_requested(self) -> Any:
        channel = self._connection.create_server_channel(encoding=None, window=WINDOW, max_pktsize=PACKET)
        return channel, Session(self)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> Any:
        return self._connection.create_tcp_channel(window=WINDOW, max_pktsize=PACKET), connect(
            self, ("tcp", dest_host, str(dest_port))
        )

    def unix_connection_requested(self, dest_path: str) -> Any:
        return self._connection.create_unix_channel(window=WINDOW, max_pktsize=PACKET), connect(
            self, ("unix", dest_path)
        )

    # -- listeners inside ----------------------------------------------------------------------------------------------

    async def server_requested(self, listen_host: str, listen_port: int) -> Listener | bool:
        """Listen inside, on loopback whatever address is requested, as OpenSSH's server does by default."""

        async def open_channel(factory: Any, host: str, port: int) -> object:
            named = listen_port or listener.get_port()
            return await self._connection.create_connection(factory, listen_host, named, host, port)

        listener = Listener(self, ("tcp", "127.0.0.1", str(listen_port)), open_channel)
        return await self._listen(listener)

    async def unix_server_requested(self, listen_path: str) -> Listener | bool:
        async def open_channel(factory: Any, _: str, __: int) -> object:
            return await self._connection.create_unix_connection(factory, listen_path)

        return await self._listen(Listener(self, ("unix", listen_path), open_channel))

    async def _listen(self, listener: Listener) -> Listener | bool:
        self._listeners = [one for one in self._listeners if not one.ended.done()]
        if len(self._listeners) + self._opening >= MAX_LISTENERS:
            return False
        self._opening += 1
        self._settled.clear()
        try:
            await listener.open()
        except SkerryError:
            return False
        finally:
            self._opening -= 1
            if not self._opening:
                self._settled.set()
        self._listeners.append(listener)
        return listener

    async def settled(self) -> None:
        """Wait until the requested listeners listen. A command may use them from its start, because a client requests
        them first."""
        await self._settled.wait()

    async def open_agent(self) -> bool:
        """Open a socket inside for the client's SSH agent, if that is allowed."""
        if self.options.agent and self._agent is None:

            async def open_channel(factory: Any, _: str, __: int) -> object:
                return await self._connection.create_agent_channel().open(factory)

            listener = Listener(self, ("agent",), open_channel)
            if await self._listen(listener):
                self._agent = listener
        return self._agent is not None


class StdioTransport(asyncio.Transport):
    """Both pipes as one transport for a protocol."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.ReadTransport | None = None
        self._output = -1
        self._parts: deque[bytes | memoryview] = deque()
        self._flushing = False
        self._closing = False

    async def open(self) -> None:
        """Connect stdin and stdout. The protocol receives data from then on."""
        for number in (0, 1):
            if not _is_stream(number):
                raise InvalidRequest(
                    "stdin and stdout are not the connection of an SSH client",
                    hint="`skerry ssh NAME` opens a shell; --stdio is for ProxyCommand",
                )
            with contextlib.suppress(OSError, AttributeError):  # a socket, or another system
                fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, PIPE)
        self._output = os.dup(1)
        os.set_blocking(self._output, False)
        self._protocol.connection_made(self)
        source = os.fdopen(os.dup(0), "rb", buffering=0)
        self._read, _ = await self._loop.connect_read_pipe(lambda: _Input(self), source)
        with contextlib.suppress(AttributeError):
            cast(Any, self._read).max_size = READ  # fewer and larger reads

    def input(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        """Report the end of the connection: the client is gone."""
        if not self._closing:
            self.close()
            self._protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send data, with all packets of the same moment in one system call. asyncio's transport of a pipe moves its
        whole buffer for each write, and the buffer has as much as the client's window."""
        if not self._closing:
            self._parts.append(bytes(data))
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._output < 0:
            return
        try:
            while self._parts:
                self._sent(os.writev(self._output, list(islice(self._parts, MAX_VECTOR))))
        except BlockingIOError:
            self._loop.add_writer(self._output, self._flush)
            return
        except OSError as error:
            self._parts.clear()
            self.lost(error)
            return
        self._loop.remove_writer(self._output)
        self._flushing = False

    def _sent(self, size: int) -> None:
        """Drop the first bytes."""
        while size:
            part = self._parts.popleft()
            if len(part) > size:
                self._parts.appendleft(memoryview(part)[size:])
                return
            size -= len(part)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send the rest, as far as the client takes it now, and close."""
        self._closing = True
        if self._output >= 0:
            self._flush()
            self._loop.remove_writer(self._output)
            os.close(self._output)
            self._output = -1
        if self._read is not None:
            self._read.close()

    def abort(self) -> None:
        self.close()


class _Input(asyncio.Protocol):
    def __init__(self, transport: StdioTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.input(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport.lost(error)


def _is_stream(number: int) -> bool:
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class _LoginConnection(asyncssh.SSHServerConnection):
    """Differs from the library's in two points."""

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        """Leave out the empty packet that the library sends before each other one. It protects CBC ciphers, which are
        not offered here."""
        if pkttype != _IGNORE:
            super().send_packet(pkttype, *args, handler=handler)

    async def create_agent_listener(self) -> bool:
        """Open the agent's socket in the sandbox; the library would open one on this machine."""
        login = self.get_owner()
        return await login.open_agent() if isinstance(login, Login) else False

    def get_owner(self) -> asyncssh.SSHServer:
        return self._owner


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore a harmless race of anyio, which sets the result of a wait that was cancelled at the same moment."""
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)


async def serve(client: AsyncClient, sandbox: str, keys: UserKeys, options: LoginOptions) -> None:
    """Serve the SSH client on stdin and stdout until it leaves."""
    asyncio.get_running_loop().set_exception_handler(_handle_exception)
    login = Login(client, sandbox, keys, options)
    settings = await asyncssh.SSHServerConnectionOptions.construct(
        server_factory=lambda: login, server_host_keys=[asyncssh.import_private_key(keys.host_key())],
        encoding=None, line_editor=False, x11_forwarding=False, agent_forwarding=False, allow_scp=False,
        password_auth=False, kbdint_auth=False, gss_host=None, kex_algs=_EXCHANGES, encryption_algs=_CIPHERS,
        mac_algs=_MACS, compression_algs=None, signature_algs=["ssh-ed25519"], login_timeout=LOGIN_TIMEOUT,
        server_version="Skerry",
    )  # fmt: skip
    connection = _LoginConnection(asyncio.get_running_loop(), settings)
    transport = StdioTransport(connection)
    await transport.open()
    try:
        await login.ended.wait()
    finally:
        transport.close()
        await login.aclose()
