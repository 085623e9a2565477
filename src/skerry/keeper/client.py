"""The host's hand in a sandbox: one Keeper for each, over whatever connection its runtime gives."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from skerry.errors import InvalidRequest, NotFound
from skerry.keeper import messages
from skerry.keeper.channel import JSON, MAX_JSON, Channel, Connect, encode, failure
from skerry.keeper.connection import Connection
from skerry.keeper.events import EventStream
from skerry.keeper.failures import KeeperLied
from skerry.keeper.files import Files
from skerry.keeper.output import OutputStream, View
from skerry.keeper.ports import wait_for_port
from skerry.keeper.process import KEPT, ProcessStream
from skerry.keeper.tracking import Tracking
from skerry.keeper.turns import BODY_MOST, Turn
from skerry.keeper.values import PROTOCOL, Hello, PortState, Process, Processes, ProcessSpec

TIME_LIMIT: Final = 10.0
S = TypeVar("S", ProcessStream, OutputStream, Turn)
_PIECE: Final = 256 << 10
_UPGRADE: Final = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\n"

_hello = msgspec.json.Decoder(Hello)
_process = msgspec.json.Decoder(Process)
_processes = msgspec.json.Decoder(Processes)
_nothing = msgspec.json.Decoder(dict[str, int])


class Keeper:
    """What one sandbox's keeper can do. `connect` gives a connected socket; `build` is what the keeper has to be."""

    def __init__(
        self, connect: Connect, build: str | None, *, time_limit: float = TIME_LIMIT, kept: int = KEPT
    ) -> None:
        self._channel = Channel(connect, time_limit)
        self.files = Files(self._channel)
        self.tracking = Tracking(self._channel)
        self._build = build
        self._kept = kept

    async def configure(
        self,
        *,
        user: str | None,
        cwd: str,
        env: Mapping[str, str],
        sudo: bool,
        life_s: float | None,
        open_files: int,
        pids: int | None = None,
        hostname: str | None = None,
        journal: tuple[int, int] = (0, 0),
        resolver: str = "",
    ) -> Hello:
        """Late binding: the first call after a start, and again on changes. Every other call needs it.

        `pids` is the limit that the sandbox's cgroup has: a user's processes get a little less, so that a fork bomb
        leaves the keeper its room. `journal`: how many bytes of output are kept of a process and of all of them; 0 is
        the keeper's own default. `resolver`: who is asked for names, unless the sandbox's own file says otherwise."""
        body = {
            "user": user,
            "cwd": cwd,
            "env": dict(env),
            "sudo": sudo,
            "life_s": life_s,
            "open_files": min(open_files, (1 << 32) - 1),
            "pids": min(pids or 0, (1 << 32) - 1),
            "hostname": hostname,
            "journal": {"process": journal[0], "sandbox": journal[1]},
            "resolver": resolver,
        }
        self._kept = max(self._kept, journal[0])
        return self._check(await self._channel.call(_hello, "PUT", "/v1/config", body=body))

    async def hello(self) -> Hello:
        return self._check(await self._channel.call(_hello, "GET", "/v1/hello"))

    def _check(self, hello: Hello) -> Hello:
        if hello.protocol != PROTOCOL or (self._build is not None and hello.build != self._build):
            raise KeeperLied(f"the keeper is of another build ({hello.build!r}, protocol {hello.protocol})")
        return hello

    async def start(self, spec: ProcessSpec) -> ProcessStream:
        """Starts a command; returns once it runs (or could not be executed: exit codes 126 and 127)."""
        request = messages.request("POST", "/v1/processes", headers=_UPGRADE + JSON, body=encode(spec))

        def stream(connection: Connection) -> ProcessStream:
            return ProcessStream(connection, self._channel.keep, spec, self._channel.time_limit, self._kept)

        return await self._upgraded(request, stream)

    async def spawn(self, spec: ProcessSpec) -> Process:
        """Starts a command that nobody has to listen to; its output is in its journal."""
        return await self._channel.call(_process, "POST", "/v1/processes", body=replace(spec, detach=True))

    async def output(
        self, process_id: str, since: int = 0, follow: bool = False, limit: int | None = None
    ) -> OutputStream:
        """What a process printed from byte `since` on; below 0, that many bytes before its end."""
        view = View(since=since, follow=follow, limit=limit)
        request = messages.request("GET", _path(process_id) + "/output", view.query(), headers=_UPGRADE)

        def stream(connection: Connection) -> OutputStream:
            return OutputStream(connection, self._channel.keep, view, self._channel.time_limit)

        return await self._upgraded(request, stream)

    async def turn(self, process_id: str, data: bytes = b"") -> Turn:
        """Hands bytes to a program's channel; what it prints and says from now on is the turn's. One at a time."""
        if len(data) > BODY_MOST:
            raise InvalidRequest(f"more than {BODY_MOST >> 20} MiB at once")
        headers = f"{_UPGRADE}Content-Length: {len(data)}\r\n"
        request = messages.request("POST", _path(process_id) + "/turn", headers=headers)

        async def signal(name: str) -> None:
            await self.signal(process_id, name)

        def turn(connection: Connection) -> Turn:
            return Turn(connection, self._channel.keep, signal, self._channel.time_limit, self._kept)

        return await self._upgraded(request, turn, data)

    async def _upgraded(self, request: bytes, make: Callable[[Connection], S], body: bytes = b"") -> S:
        async with self._channel.exchange() as connection:
            await connection.send(request, body)
            head = await connection.head()
            if head.status == 101:
                stream = make(connection)
                await stream.begin()
                return stream
            text = await connection.whole(head, MAX_JSON)
        self._channel.keep(connection)
        if head.status < 400:
            raise KeeperLied(f"the keeper answered an upgrade with {head.status}")
        raise failure(text)

    async def stdin(self, process_id: str, chunks: AsyncIterable[bytes], close: bool = False) -> None:
        """Streams to a process's stdin, as fast as it reads; `close` ends it then."""
        query = {"close": str(int(close))}
        head = messages.request("POST", _path(process_id) + "/stdin", query, headers="Transfer-Encoding: chunked\r\n")
        async with self._channel.exchange() as connection:
            await connection.send(head)
        whole = False
        try:
            async for chunk in chunks:
                for start in range(0, len(chunk), _PIECE):
                    if connection.buffer:  # it does not want the rest, and need not be there any more
                        break
                    piece = chunk[start : start + _PIECE]
                    await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                if connection.buffer or connection.lost:
                    break
            if not connection.buffer and not connection.lost:
                await connection.send(b"0\r\n\r\n")
                whole = True
            answer = await connection.head()
            text = await connection.whole(answer, MAX_JSON)
        except BaseException:
            connection.close()
            raise
        if answer.status >= 300:
            connection.close()
            raise failure(text)
        if whole:
            self._channel.keep(connection)
        else:
            connection.close()  # another request would be taken for the rest of this one

    async def processes(self) -> list[Process]:
        listed = await self._channel.call(_processes, "GET", "/v1/processes", limit=32 << 20)
        return listed.processes

    async def process(self, process_id: str) -> Process:
        return await self._channel.call(_process, "GET", _path(process_id))

    async def events(self, since: int | None = None) -> EventStream:
        """Starts and ends of processes after event `since`; None: from now on."""
        query = None if since is None else {"since": str(since)}
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("GET", "/v1/events", query))
            head = await connection.head()
            if head.status == 200:
                stream = EventStream(connection, head, since)
                await stream.begin()
                return stream
            text = await connection.whole(head, MAX_JSON)
        self._channel.keep(connection)
        raise failure(text)

    async def signal(self, process_id: str, name: str) -> None:
        """To a process's group; KILL takes the whole tree, also what a finished one left behind."""
        await self._channel.call(_nothing, "POST", _path(process_id) + "/signal", body={"signal": name})

    async def resize(self, process_id: str, cols: int, rows: int) -> None:
        """Of its terminal."""
        await self._channel.call(_nothing, "POST", _path(process_id) + "/resize", body={"cols": cols, "rows": rows})

    async def remove(self, process_id: str) -> None:
        """Forgets a finished process."""
        await self._channel.call(_nothing, "DELETE", _path(process_id))

    async def wait_for_port(self, port: int, timeout_s: float, http_path: str | None = None) -> PortState:
        """Until something inside listens on the port, on any address; with a path, until that answers below 500."""
        return await wait_for_port(self._channel, port, timeout_s, http_path)

    async def put_own(self, certificates: str, files: Mapping[str, bytes]) -> None:
        """What is below /run/skerry of the host's: `files`, and, if there are certificates, ca.pem, which has the
        image's own and these. What was put there before and is not among it goes."""
        body = {"certificates": certificates, "files": dict(files)}
        await self._channel.call(_nothing, "PUT", "/v1/own", body=body)

    async def put_review(self, content: bytes) -> None:
        """/run/skerry/review.json: what was rejected, for who works inside."""
        await self._channel.call(_nothing, "PUT", "/v1/own/review", body={"content": content})

    async def shutdown(self, grace_s: float = 2.0) -> None:
        """TERM to all, then, after the grace, the end of the sandbox."""
        await self._channel.call(_nothing, "POST", "/v1/shutdown", body={"grace_s": grace_s})

    async def close(self) -> None:
        self._channel.close()


def _path(process_id: str) -> str:
    if not process_id.replace("-", "").isalnum() or not process_id.isascii():
        raise NotFound(f"there is no process {process_id!r}")
    return f"/v1/processes/{process_id}"
