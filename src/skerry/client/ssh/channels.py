"""The channels of a login: sessions (a command, a shell or SFTP), and forwarded connections in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import asyncssh
import msgspec

from skerry.client.ssh.streams import KEEPER, Command, DialedStream, Input, PortStream, Stream, lines
from skerry.errors import Conflict, SkerryError
from skerry.types import Pty, RunRequest, RunResult

if TYPE_CHECKING:
    from skerry.client.ssh.login import Login

EXIT_FAILED: Final = 255  # of a session that could not start, as OpenSSH's own
# As an SSH server usually does, few variables are accepted: a client that sends all of its variables would reveal the
# user's tokens to programs inside.
_ACCEPTED: Final = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|COLORTERM|TZ|GIT_PROTOCOL")
_TERM: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}")
_SHELL: Final = 'exec "${SHELL:-/bin/sh}" -l'
_MAX_SIDE: Final = 10_000
# Signals that the protocol can name.
_SIGNALS: Final = frozenset(
    ("ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2")
)


class Session(asyncssh.SSHServerSession[bytes]):
    """Starts one command and copies its streams. A client that leaves ends the command with its process tree."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._cmd: str | list[str] = _SHELL
        self._term: str | None = None
        self._size = Pty()
        self._command: Command | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # -- requests of the client, in their order ------------------------------------------------------------------------

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: tuple[int, int, int, int], term_modes: object) -> bool:
        self._term = term_type
        self._size = _size(term_size[0], term_size[1])
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._cmd = command
        return bool(command.strip()) and "\0" not in command

    def subsystem_requested(self, subsystem: str) -> bool:
        self._cmd = [KEEPER, "sftp"]
        return subsystem == "sftp"

    def session_started(self) -> None:
        self._command = self._login.command(self._request())
        self._task = self._login.spawn(self._run(self._command))

    def _request(self) -> RunRequest:
        env: dict[str, str | None] = {}
        for name, value in self._channel.get_environment_bytes().items():
            with contextlib.suppress(UnicodeDecodeError):
                if _ACCEPTED.fullmatch(name.decode()) and b"\0" not in value:
                    env[name.decode()] = value.decode()
        if self._term is not None and _TERM.fullmatch(self._term):
            env["TERM"] = self._term
        if (agent := self._login.agent_path) is not None:
            env["SSH_AUTH_SOCK"] = agent
        pty = None if self._term is None else self._size
        return RunRequest(cmd=self._cmd, env=env, pty=pty)

    # -- the command ---------------------------------------------------------------------------------------------------

    async def _run(self, command: Command) -> None:
        try:
            await self._login.settled()
            await command.start()
            async for is_error, data in command.output():
                self._channel.write(data, asyncssh.EXTENDED_DATA_STDERR if is_error else None)
                if not self._writable.is_set():
                    await self._writable.wait()
            assert command.result is not None  # noqa: S101
            self._end(command.result)
        except SkerryError as error:
            self._fail(error)
        except BrokenPipeError:  # the client closed the channel
            pass
        finally:
            self._login.finish(command.aclose())

    def _end(self, result: RunResult) -> None:
        if result.signal is not None and (name := result.signal.removeprefix("SIG")) in _SIGNALS:
            self._channel.exit_with_signal(name)
        else:
            self._channel.exit(result.exit_code if result.exit_code is not None else EXIT_FAILED)

    def _fail(self, error: SkerryError) -> None:
        text = f"skerry: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else "")
        if self._term is not None:
            text = text.replace("\n", "\r\n")
        with contextlib.suppress(OSError):
            self._channel.write(text.encode(), asyncssh.EXTENDED_DATA_STDERR)
            self._channel.exit(EXIT_FAILED)

    # -- while it runs -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._command is not None:
            self._command.input.put(data)
            if self._command.input.full:
                self._channel.pause_reading()
                self._login.spawn(self._go_on(self._command))

    async def _go_on(self, command: Command) -> None:
        await command.input.room()
        self._channel.resume_reading()

    def eof_received(self) -> bool:
        """Close the command's input; its output goes on."""
        if self._command is not None:
            self._command.input.end()
        return True

    def signal_received(self, signal: str) -> None:
        if self._command is not None and signal in _SIGNALS:
            self._command.signal(signal)

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._command is not None and self._term is not None:
            self._command.resize(_size(width, height))

    def break_received(self, msec: int) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._task is not None:
            self._task.cancel()


def _size(cols: int, rows: int) -> Pty:
    """Return a size in the API's limits; a client without a terminal sends 0."""
    return Pty(cols=min(cols or 80, _MAX_SIDE), rows=min(rows or 24, _MAX_SIDE))


# -- forwarding -------------------------------------------------------------------------------------------------------

LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
MAX_LINE: Final = 4 << 10
MAX_ARRIVALS: Final = 128  # connections of one listener at a time
MAX_LISTENERS: Final = 64
_FAILED: Final = asyncssh.OPEN_CONNECT_FAILED


class Bridge(asyncssh.SSHTCPSession[bytes], asyncssh.SSHUNIXSession[bytes]):
    """Copies between a channel and a stream until both directions have ended, or one fails."""

    def __init__(self, stream: Stream, login: Login) -> None:
        self._stream, self._login = stream, login
        self._input = Input()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, chan: Any) -> None:
        self._channel: asyncssh.SSHTCPChannel[bytes] = chan

    def session_started(self) -> None:
        self._task = self._login.spawn(self._copy())

    async def _copy(self) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._inward())
                both.create_task(self._outward())
            self._channel.close()
        except* (SkerryError, OSError, TimeoutError):
            self._channel.abort()
        finally:
            self._login.finish(self._stream.aclose())

    async def _inward(self) -> None:
        async for data in self._input.chunks():
            await self._stream.write(data)
        await self._stream.end()

    async def _outward(self) -> None:
        while data := await self._stream.read():
            self._channel.write(data)
            await self._writable.wait()
        self._channel.write_eof()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._input.put(data)
        if self._input.full:
            self._channel.pause_reading()
            self._login.spawn(self._go_on())

    async def _go_on(self) -> None:
        await self._input.room()
        self._channel.resume_reading()

    def eof_received(self) -> bool:
        self._input.end()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._task is not None:
            self._task.cancel()


async def connect(login: Login, target: tuple[str, ...]) -> Bridge:
    """Connect to `tcp HOST PORT` or `unix PATH` from inside, for a channel that the client opens."""
    try:
        return Bridge(await _open(login, target), login)
    except SkerryError as error:
        raise asyncssh.ChannelOpenError(_FAILED, error.message) from error


async def _open(login: Login, target: tuple[str, ...]) -> Stream:
    if target[0] == "tcp" and target[1].lower() in LOOPBACK:
        return await PortStream.open(login.client, login.sandbox, int(target[2]))
    return await DialedStream.open(login.client, login.sandbox, login.user, target)


class _Ready(msgspec.Struct, frozen=True):
    """The first line of a listener inside."""

    back: int
    port: int = 0
    path: str = ""


class _Arrival(msgspec.Struct, frozen=True):
    """A connection that a listener inside accepted. The ticket fetches it."""

    ticket: str
    host: str = ""
    port: int = 0


OpenChannel = Callable[[Callable[[], Bridge], str, int], Coroutine[Any, Any, object]]
_TICKET: Final = re.compile(r"[0-9a-f]{32}")
_HOST: Final = re.compile(r"[0-9a-f.:]{1,45}")


class Listener(asyncssh.SSHListener):
    """A program inside that listens as the user of the login. Its lines are not trusted: they can name only ports of
    the same sandbox."""

    def __init__(self, login: Login, where: tuple[str, ...], open_channel: OpenChannel) -> None:
        super().__init__()
        self.path = ""
        self._login, self._open_channel = login, open_channel
        self._command = login.command(RunRequest(cmd=[KEEPER, "listen", *where]))
        self._port = 0
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start it. Raise an error if it cannot listen there."""
        try:
            await self._command.start()
            arriving = lines(self._command, MAX_LINE)
            ready = _decode(await anext(arriving, b""), _Ready)
            if not (0 < ready.back < 1 << 16 and 0 <= ready.port < 1 << 16) or "\0" in ready.path:
                raise Conflict("the listener inside reported an invalid address")
        except BaseException:
            await self._command.aclose()
            raise
        self._port, self.path = ready.port, ready.path
        self._task = self._login.spawn(self._serve(arriving, ready.back))

    async def _serve(self, arriving: Any, back: int) -> None:
        waiting: set[asyncio.Task[None]] = set()
        try:
            async for line in arriving:
                if len(waiting) < MAX_ARRIVALS:
                    task = asyncio.ensure_future(self._arrived(_decode(line, _Arrival), back))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
        except SkerryError:
            return  # the listener inside is gone: no more connections arrive
        finally:
            for task in waiting:
                task.cancel()
            self._login.finish(self._command.aclose())

    async def _arrived(self, arrival: _Arrival, back: int) -> None:
        """Fetch a connection from inside and open a channel of the client for it."""
        if not _TICKET.fullmatch(arrival.ticket):
            return
        host = arrival.host if _HOST.fullmatch(arrival.host) else "127.0.0.1"
        port = arrival.port if 0 < arrival.port < 1 << 16 else 0
        with contextlib.suppress(SkerryError, OSError, asyncssh.Error):
            stream = await PortStream.open(self._login.client, self._login.sandbox, back)
            try:
                await stream.write(arrival.ticket.encode())
                await self._open_channel(lambda: Bridge(stream, self._login), host, port)
            except BaseException:
                await stream.aclose()
                raise

    @property
    def ended(self) -> asyncio.Task[None]:
        assert self._task is not None  # noqa: S101
        return self._task

    def get_port(self) -> int:
        return self._port

    def close(self) -> None:
        """Let the program inside end by itself: it removes its socket."""
        self._command.input.end()

    async def wait_closed(self) -> None:
        await asyncio.wait([self.ended])


def _decode(line: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Conflict("the listener inside failed", hint="is the port free inside?") from None
