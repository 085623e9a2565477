"""The host's hand in a sandbox: one Keeper for each, over whatever connection its runtime gives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SandboxUnavailable,
    SkerryError,
    file_failure,
)
from skerry.keeper import messages
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied, KeeperSilent
from skerry.keeper.process import ProcessStream
from skerry.keeper.values import PROTOCOL, Failed, Hello, Process, Processes, ProcessSpec

Connect = Callable[[], Awaitable[socket.socket]]
T = TypeVar("T")

MAX_JSON: Final = 1 << 20
TIME_LIMIT: Final = 10.0
_SPARE: Final = 4
_UPGRADE = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\n"
_JSON = "Content-Type: application/json\r\n"

_encoder = msgspec.json.Encoder()
_CLASSES: dict[str, type[SkerryError]] = {
    "bad_cwd": InvalidRequest,
    "bad_range": InvalidRequest,
    "bad_request": InvalidRequest,
    "bad_signal": InvalidRequest,
    "conflict": Conflict,
    "no_process": NotFound,
    "no_room": QuotaExceeded,
    "no_shell": InvalidRequest,
    "not_running": Conflict,
    "running": Conflict,
    "too_many": QuotaExceeded,
    "unknown_user": InvalidRequest,
}


class Channel:
    """Requests and answers over a small set of kept connections."""

    def __init__(self, connect: Connect, time_limit: float) -> None:
        self.time_limit = time_limit
        self._connect = connect
        self._spare: list[Connection] = []
        self._closed = False

    async def open(self) -> Connection:
        while self._spare:
            connection = self._spare.pop()
            if connection.idle:
                return connection
            connection.close()
        if self._closed:
            raise KeeperSilent("this keeper's connections were closed")
        try:
            return await Connection.open(await self._connect())
        except OSError as error:
            raise KeeperSilent(f"the keeper can't be reached: {error}") from None

    def keep(self, connection: Connection) -> None:
        if connection.idle and not self._closed and len(self._spare) < _SPARE:
            self._spare.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        self._closed = True
        while self._spare:
            self._spare.pop().close()

    @asynccontextmanager
    async def exchange(self, limit: float | None = None) -> AsyncIterator[Connection]:
        """A connection for one exchange that has to be over in time; whatever goes wrong, it is not used again."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.time_limit if limit is None else limit):
                connection = await self.open()
                yield connection
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise KeeperSilent("the keeper did not answer in time") from None
        except BaseException:
            if connection is not None:
                connection.close()
            raise

    async def call(
        self,
        answer: msgspec.json.Decoder[T],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        limit: int = MAX_JSON,
    ) -> T:
        data = b"" if body is None else _encoder.encode(body)
        async with self.exchange() as connection:
            await connection.send(messages.request(method, path, query, headers=_JSON if data else "", body=data))
            head = await connection.head()
            text = await connection.whole(head, limit)
        self.keep(connection)
        if head.status >= 300:
            raise failure(text)
        return decode(answer, text)


def decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise KeeperLied(f"the keeper sent a malformed answer: {str(error)[:200]}") from None


_failed = msgspec.json.Decoder(Failed)


def failure(text: bytes) -> SkerryError:
    """The typed error for an error answer."""
    said = decode(_failed, text).error
    if said.code == "errno":
        return file_failure(said.errno, said.path or "", said.message)
    return _CLASSES.get(said.code, SandboxUnavailable)(said.message)


_hello = msgspec.json.Decoder(Hello)
_process = msgspec.json.Decoder(Process)
_processes = msgspec.json.Decoder(Processes)
_nothing = msgspec.json.Decoder(dict[str, int])


class Keeper:
    """What one sandbox's keeper can do. `connect` gives a connected socket; `build` is what the keeper has to be."""

    def __init__(self, connect: Connect, build: str | None, *, time_limit: float = TIME_LIMIT) -> None:
        self._channel = Channel(connect, time_limit)
        self._build = build

    async def configure(
        self,
        *,
        user: str | None,
        cwd: str,
        env: Mapping[str, str],
        sudo: bool,
        life_s: float | None,
        open_files: int,
        hostname: str | None = None,
    ) -> Hello:
        """Late binding: the first call after a start, and again on changes. Every other call needs it."""
        body = {
            "user": user,
            "cwd": cwd,
            "env": dict(env),
            "sudo": sudo,
            "life_s": life_s,
            "open_files": min(open_files, (1 << 32) - 1),
            "hostname": hostname,
        }
        return self._check(await self._channel.call(_hello, "PUT", "/v1/config", body=body))

    async def hello(self) -> Hello:
        return self._check(await self._channel.call(_hello, "GET", "/v1/hello"))

    def _check(self, hello: Hello) -> Hello:
        if hello.protocol != PROTOCOL or (self._build is not None and hello.build != self._build):
            raise KeeperLied(f"the keeper is of another build ({hello.build!r}, protocol {hello.protocol})")
        return hello

    async def start(self, spec: ProcessSpec) -> ProcessStream:
        """Starts a command; returns once it runs (or could not be executed: exit codes 126 and 127)."""
        request = messages.request("POST", "/v1/processes", headers=_UPGRADE + _JSON, body=_encoder.encode(spec))
        async with self._channel.exchange() as connection:
            await connection.send(request)
            head = await connection.head()
            if head.status == 101:
                stream = ProcessStream(connection, spec.timeout_s, self._channel.time_limit)
                await stream.begin()
                return stream
            text = await connection.whole(head, MAX_JSON)
        self._channel.keep(connection)
        if head.status < 400:
            raise KeeperLied(f"the keeper answered a start with {head.status}")
        raise failure(text)

    async def processes(self) -> list[Process]:
        listed = await self._channel.call(_processes, "GET", "/v1/processes", limit=32 << 20)
        return listed.processes

    async def process(self, process_id: str) -> Process:
        return await self._channel.call(_process, "GET", _path(process_id))

    async def signal(self, process_id: str, name: str) -> None:
        """To a process's group; KILL takes the whole tree, also what a finished one left behind."""
        await self._channel.call(_nothing, "POST", _path(process_id) + "/signal", body={"signal": name})

    async def remove(self, process_id: str) -> None:
        """Forgets a finished process."""
        await self._channel.call(_nothing, "DELETE", _path(process_id))

    async def shutdown(self, grace_s: float = 2.0) -> None:
        """TERM to all, then, after the grace, the end of the sandbox."""
        await self._channel.call(_nothing, "POST", "/v1/shutdown", body={"grace_s": grace_s})

    async def close(self) -> None:
        self._channel.close()


def _path(process_id: str) -> str:
    if not process_id.replace("-", "").isalnum() or not process_id.isascii():
        raise NotFound(f"there is no process {process_id!r}")
    return f"/v1/processes/{process_id}"
