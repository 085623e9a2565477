"""The host's hand in a sandbox: one Keeper for each, over whatever connection its runtime gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skerry.errors import NotFound
from skerry.keeper import messages
from skerry.keeper.channel import JSON, MAX_JSON, Channel, Connect, encode, failure
from skerry.keeper.failures import KeeperLied
from skerry.keeper.files import Files
from skerry.keeper.process import ProcessStream
from skerry.keeper.values import PROTOCOL, Hello, Process, Processes, ProcessSpec

TIME_LIMIT: Final = 10.0
_UPGRADE: Final = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\n"

_hello = msgspec.json.Decoder(Hello)
_process = msgspec.json.Decoder(Process)
_processes = msgspec.json.Decoder(Processes)
_nothing = msgspec.json.Decoder(dict[str, int])


class Keeper:
    """What one sandbox's keeper can do. `connect` gives a connected socket; `build` is what the keeper has to be."""

    def __init__(self, connect: Connect, build: str | None, *, time_limit: float = TIME_LIMIT) -> None:
        self._channel = Channel(connect, time_limit)
        self.files = Files(self._channel)
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
        pids: int | None = None,
        hostname: str | None = None,
    ) -> Hello:
        """Late binding: the first call after a start, and again on changes. Every other call needs it.

        `pids` is the limit that the sandbox's cgroup has: a user's processes get a little less, so that a fork bomb
        leaves the keeper its room."""
        body = {
            "user": user,
            "cwd": cwd,
            "env": dict(env),
            "sudo": sudo,
            "life_s": life_s,
            "open_files": min(open_files, (1 << 32) - 1),
            "pids": min(pids or 0, (1 << 32) - 1),
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
        request = messages.request("POST", "/v1/processes", headers=_UPGRADE + JSON, body=encode(spec))
        async with self._channel.exchange() as connection:
            await connection.send(request)
            head = await connection.head()
            if head.status == 101:
                stream = ProcessStream(connection, self._channel.keep, spec.timeout_s, self._channel.time_limit)
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
