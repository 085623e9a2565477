"""A server over real sockets whose engine has tokens and no sandboxes: for what is decided before a sandbox is."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import uvloop
from server.echoing import EchoTerminals

from skerry.engine.database import Database
from skerry.engine.tokens import Tokens
from skerry.errors import NotFound
from skerry.server.control import Control
from skerry.server.listener import Places, listen_for
from skerry.types import Caller, RunRequest, SandboxInfo


class NoProcesses:
    """Every sandbox is not found; input goes nowhere."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> None:
        raise NotFound(f"there is no sandbox {ref!r}")

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes], close: bool
    ) -> None:
        """Reads at the pace of the network and keeps nothing."""
        async for chunk in chunks:
            self.calls.append(str(len(chunk)))


class EmptyEngine:
    """Real tokens in a real database; every sandbox is not found."""

    empty = True

    def __init__(self, path: Path) -> None:
        self.database = Database(path / "state.db")
        self.tokens = Tokens(self.database)
        self.calls: list[str] = []
        self.processes = NoProcesses(self.calls)
        self.terminals = EchoTerminals()

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> list[SandboxInfo]:
        self.calls.append("list")
        return []

    def get(self, caller: Caller, ref: str) -> SandboxInfo:
        self.calls.append("get")
        raise NotFound(f"there is no sandbox {ref!r}")

    async def delete(self, caller: Caller, ref: str) -> None:
        self.get(caller, ref)

    async def create(self, caller: Caller, request: Any, key: str | None) -> SandboxInfo:
        self.calls.append("create")
        raise NotFound("there is no image", details={"image": request.image})

    async def stop(self, caller: Caller, ref: str) -> SandboxInfo:
        raise ZeroDivisionError("a secret of the inside")


class Listening:
    """A listening server in a thread of its own."""

    def __init__(self, directory: Path, **places: Any) -> None:
        self.engine = EmptyEngine(directory)
        self.socket = directory / "api.sock"
        self.idle_exit: float | None = places.pop("idle_exit", None)
        self.places = Places(self.socket, places.pop("listen", "127.0.0.1:0"), **places)
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def start(self) -> Listening:
        self._thread.start()
        assert self._up.wait(20)
        return self

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        self.loop, self.control = asyncio.get_running_loop(), Control()
        await listen_for(
            self.engine, self.places, self.control, idle_exit=self.idle_exit, ready=lambda _: self._up.set()  # type: ignore[arg-type]
        )  # fmt: skip

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.control.stop)
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return self.control.addresses[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def unix(self) -> httpx.Client:
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket), verify=False), base_url="http://localhost"
        )

    def tcp(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, verify=False)

    def raw(self, data: bytes, *, tcp: bool = True) -> bytes:
        """Send bytes as they are, and read until the other side has closed."""
        family = socket.AF_INET if tcp else socket.AF_UNIX
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(20)
            connection.connect(("127.0.0.1", self.port) if tcp else str(self.socket))
            try:
                connection.sendall(data)
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except ConnectionError:
                return b""
