"""The client of a sandbox's keeper, over a connection that the sandbox's runtime provides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from skerry.errors import InvalidRequest, NotFound
from skerry.keeper import http1
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.events import EventStream
from skerry.keeper.exchange import MAX_BODY, Exchange
from skerry.keeper.files import Files
from skerry.keeper.output import JournalRange, OutputStream
from skerry.keeper.process import DEFAULT_JOURNAL, ProcessStream
from skerry.keeper.tracking import Tracker
from skerry.keeper.transport import JSON, MAX_JSON, UPGRADE, Connect, Transport, encode, failure
from skerry.keeper.values import OLDEST_PROTOCOL, PROTOCOL, KeeperHello, PortReply, Process, ProcessListing, ProcessSpec
from skerry.telemetry import keeper_span
from skerry.types import PortState

TIMEOUT: Final = 10.0
S = TypeVar("S", ProcessStream, OutputStream, Exchange)
_PIECE: Final = 256 << 10
_PORT_WAIT_S: Final = 30.0  # per request; a keeper waits at most 60
_PORT_SLACK_S: Final = 1.0  # two clocks may differ

_hello = msgspec.json.Decoder(KeeperHello)
_process = msgspec.json.Decoder(Process)
_processes = msgspec.json.Decoder(ProcessListing)
_port_state = msgspec.json.Decoder(PortReply)
_no_result = msgspec.json.Decoder(dict[str, int])


class Keeper:
    """The keeper of one sandbox. `connect` returns a connected socket. `build` None: a keeper of any build that speaks
    a known version of the protocol."""

    def __init__(
        self, connect: Connect, build: str | None, *, timeout: float = TIMEOUT, kept: int = DEFAULT_JOURNAL
    ) -> None:
        self._transport = Transport(connect, timeout)
        self.files = Files(self._transport)
        self.tracking = Tracker(self._transport)
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
    ) -> KeeperHello:
        """Configure the keeper: the first call after a start, required by every other call, and repeated on changes.

        `pids` is the limit of the sandbox's cgroup: users' processes get slightly less, so that a fork bomb leaves the
        keeper its share. `journal`: bytes of output to keep per process and for all processes; 0 means the keeper's
        default. `resolver`: address of the name server, unless the sandbox's resolv.conf names another."""
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
        return self._check(await self._transport.call(_hello, "PUT", "/v1/config", body=body))

    async def hello(self) -> KeeperHello:
        return self._check(await self._transport.call(_hello, "GET", "/v1/hello"))

    def _check(self, hello: KeeperHello) -> KeeperHello:
        if not OLDEST_PROTOCOL <= hello.protocol <= PROTOCOL:
            raise KeeperProtocolError(
                f"the keeper speaks protocol {hello.protocol}, and this version knows {OLDEST_PROTOCOL} to {PROTOCOL}"
            )
        if self._build is not None and hello.build != self._build:
            raise KeeperProtocolError(f"the keeper has another build ({hello.build!r})")
        return hello

    async def start(self, spec: ProcessSpec) -> ProcessStream:
        """Start a command. Return once it runs, or could not be executed (exit codes 126 and 127)."""
        request = http1.request("POST", "/v1/processes", headers=UPGRADE + JSON, body=encode(spec))

        def stream(connection: KeeperConnection) -> ProcessStream:
            return ProcessStream(connection, self._transport.release, spec, self._transport.timeout, self._kept)

        return await self._upgraded(request, stream)

    async def spawn(self, spec: ProcessSpec) -> Process:
        """Start a command in the background; its output goes to its journal."""
        return await self._transport.call(_process, "POST", "/v1/processes", body=replace(spec, detach=True))

    async def output(
        self, process_id: str, since: int = 0, follow: bool = False, limit: int | None = None, pace: bool = False
    ) -> OutputStream:
        """Read the output of a process from byte `since`; negative: that many bytes before its end. `pace`: the process
        waits for this reader."""
        part = JournalRange(since=since, follow=follow, limit=limit, pace=pace)
        request = http1.request("GET", _path(process_id) + "/output", part.query(), headers=UPGRADE)

        def stream(connection: KeeperConnection) -> OutputStream:
            return OutputStream(connection, self._transport.release, part, self._transport.timeout)

        return await self._upgraded(request, stream)

    async def exchange(self, process_id: str, data: bytes = b"") -> Exchange:
        """Send bytes to a program's channel and stream its output and messages from now on. One exchange at a time."""
        if len(data) > MAX_BODY:
            raise InvalidRequest(f"the input is larger than {MAX_BODY >> 20} MiB")
        headers = f"{UPGRADE}Content-Length: {len(data)}\r\n"
        request = http1.request("POST", _path(process_id) + "/exchange", headers=headers)

        async def signal(name: str) -> None:
            await self.signal(process_id, name)

        def stream(connection: KeeperConnection) -> Exchange:
            return Exchange(connection, self._transport.release, signal, self._transport.timeout, self._kept)

        return await self._upgraded(request, stream, data)

    async def _upgraded(self, request: bytes, make: Callable[[KeeperConnection], S], body: bytes = b"") -> S:
        with keeper_span(request):
            return await self._upgrade(request, make, body)

    async def _upgrade(self, request: bytes, make: Callable[[KeeperConnection], S], body: bytes) -> S:
        async with self._transport.exchange() as connection:
            await connection.send(request, body)
            head = await connection.head()
            if head.status == 101:
                stream = make(connection)
                await stream.read_header()
                return stream
            text = await connection.whole(head, MAX_JSON)
        self._transport.release(connection)
        if head.status < 400:
            raise KeeperProtocolError(f"the keeper answered an upgrade request with {head.status}")
        raise failure(text)

    async def stdin(self, process_id: str, chunks: AsyncIterable[bytes] | None, close: bool = False) -> None:
        """Stream to a process's stdin, as fast as it reads; `close` closes stdin afterwards. None: no bytes."""
        query, headers = {"close": str(int(close))}, "" if chunks is None else "Transfer-Encoding: chunked\r\n"
        head = http1.request("POST", _path(process_id) + "/stdin", query, headers=headers)
        async with self._transport.exchange() as connection:
            await connection.send(head)
        whole = chunks is None
        try:
            async for chunk in chunks if chunks is not None else nothing():
                for start in range(0, len(chunk), _PIECE):
                    if connection.buffer:  # the keeper rejected the rest, and may have closed the connection
                        break
                    piece = chunk[start : start + _PIECE]
                    await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                if connection.buffer or connection.lost:
                    break
            if not whole and not connection.buffer and not connection.lost:
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
            self._transport.release(connection)
        else:
            connection.close()  # the keeper would read another request as the rest of this one

    async def processes(self) -> list[Process]:
        listed = await self._transport.call(_processes, "GET", "/v1/processes", limit=32 << 20)
        return listed.processes

    async def process(self, process_id: str) -> Process:
        return await self._transport.call(_process, "GET", _path(process_id))

    async def events(self, since: int | None = None) -> EventStream:
        """Stream starts and ends of processes after event `since`; None: from now on."""
        query = None if since is None else {"since": str(since)}
        async with self._transport.exchange() as connection:
            await connection.send(http1.request("GET", "/v1/events", query))
            head = await connection.head()
            if head.status == 200:
                stream = EventStream(connection, head, since)
                await stream.read_header()
                return stream
            text = await connection.whole(head, MAX_JSON)
        self._transport.release(connection)
        raise failure(text)

    async def signal(self, process_id: str, name: str) -> None:
        """Signal a process group; KILL ends the whole process tree, also processes that a finished one left behind."""
        await self._transport.call(_no_result, "POST", _path(process_id) + "/signal", body={"signal": name})

    async def resize(self, process_id: str, cols: int, rows: int) -> None:
        """Resize the terminal of a process."""
        await self._transport.call(_no_result, "POST", _path(process_id) + "/resize", body={"cols": cols, "rows": rows})

    async def remove(self, process_id: str) -> None:
        """Remove a finished process from the list."""
        await self._transport.call(_no_result, "DELETE", _path(process_id))

    async def wait_for_port(self, port: int, timeout_s: float, http_path: str | None = None) -> PortState:
        """Wait until a program listens on the port, on any address; with a path, until it answers below 500."""
        clock = asyncio.get_running_loop().time
        end = clock() + timeout_s
        while True:
            sent_at = clock()
            takes_s = min(max(0.0, end - sent_at), _PORT_WAIT_S)
            body = {"port": port, "timeout_s": takes_s, "http_path": http_path}
            state = await self._transport.call(_port_state, "POST", "/v1/ports/wait", body=body, takes_s=takes_s)
            if state.open or clock() >= end:
                return PortState(open=state.open, status=state.status, last=state.last)
            if clock() < sent_at + takes_s - _PORT_SLACK_S:  # else this loop would send requests without pause
                raise KeeperProtocolError("the keeper did not wait for a port as long as requested")

    async def put_guest_files(self, certificates: str, files: Mapping[str, bytes]) -> None:
        """Write the guest files in /run/skerry: `files` and, if certificates are given, ca.pem with the image's own
        certificates and these. Remove files of an earlier call that are not listed."""
        body = {"certificates": certificates, "files": dict(files)}
        await self._transport.call(_no_result, "PUT", "/v1/guest-files", body=body)

    async def put_review_file(self, content: bytes) -> None:
        """Write /run/skerry/review.json: rejected changes, for the agent inside."""
        await self._transport.call(_no_result, "PUT", "/v1/guest-files/review", body={"content": content})

    async def shutdown(self, grace_s: float = 2.0) -> None:
        """Send TERM to all processes; after the grace period, end the sandbox."""
        await self._transport.call(_no_result, "POST", "/v1/shutdown", body={"grace_s": grace_s})

    async def close(self) -> None:
        self._transport.close()


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _path(process_id: str) -> str:
    if not process_id.replace("-", "").isalnum() or not process_id.isascii():
        raise NotFound(f"process {process_id!r} not found")
    return f"/v1/processes/{process_id}"
