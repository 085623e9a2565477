"""A server over real sockets with tokens and without sandboxes: for decisions before a sandbox is involved."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from skerry.engine.database import Database
from skerry.engine.records.audit.index import AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService
from skerry.engine.tokens import Tokens
from skerry.errors import NotFound
from skerry.server.control import Control
from skerry.server.listener import ListenOptions, listen_for
from skerry.types import Caller, RunRequest, SandboxInfo
from support.echo_terminal import EchoTerminals


class NoProcesses:
    """Every sandbox is not found; input goes nowhere."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    async def run(self, caller: Caller, ref: str, request: RunRequest) -> None:
        raise NotFound(f"sandbox {ref!r} not found")

    async def send_stdin(
        self, caller: Caller, ref: str, process: str, chunks: AsyncIterator[bytes] | None, close: bool
    ) -> None:
        """Reads at the pace of the network and keeps nothing."""
        if chunks is not None:
            async for chunk in chunks:
                self.calls.append(str(len(chunk)))


class NoSandboxes:
    """Every sandbox is not found."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> list[SandboxInfo]:
        self.calls.append("list")
        return []

    def get(self, caller: Caller, ref: str) -> SandboxInfo:
        self.calls.append("get")
        raise NotFound(f"sandbox {ref!r} not found")

    async def delete(self, caller: Caller, ref: str) -> None:
        self.get(caller, ref)

    async def create(self, caller: Caller, request: Any, key: str | None) -> SandboxInfo:
        self.calls.append("create")
        raise NotFound("image not found", details={"image": request.image})

    async def stop(self, caller: Caller, ref: str) -> SandboxInfo:
        raise ZeroDivisionError("a secret of the inside")


class NoSessions:
    async def in_default(self, caller: Caller, ref: str, request: RunRequest) -> None:
        raise NotFound(f"sandbox {ref!r} not found")


class NothingToAdopt:
    async def wait(self, caller: Caller, ref: str) -> None:
        return


class EmptyRegistry:
    """Every sandbox is not found."""

    def find(self, caller: Caller, ref: str) -> None:
        raise NotFound(f"sandbox {ref!r} not found")

    def id_of(self, caller: Caller, ref: str) -> str:
        return ref


class EmptyEngine:
    """Real tokens in a real database; every sandbox is not found."""

    empty = True

    def __init__(self, path: Path) -> None:
        self.database = Database(path / "state.db")
        self.tokens = Tokens(self.database)
        self.calls: list[str] = []
        self.sandboxes = NoSandboxes(self.calls)
        self.processes = NoProcesses(self.calls)
        self.sessions = NoSessions()
        self.terminals = EchoTerminals()
        self.adoption = NothingToAdopt()
        self.registry = EmptyRegistry()
        keys = KeyStore(path.with_name(f"{path.name}-keys"), path)
        records = AuditLog(path / "audit", keys, keep_s=None)
        self.audit = AuditService(keys, records, AuditIndex(path / "audit" / "index.db"), "all")


class Listening:
    """A listening server in a separate thread."""

    def __init__(self, directory: Path, **places: Any) -> None:
        self.engine = EmptyEngine(directory)
        self.socket = directory / "api.sock"
        self.idle_exit: float | None = places.pop("idle_exit", None)
        self.places = ListenOptions(self.socket, places.pop("listen", "127.0.0.1:0"), **places)
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
        await self.engine.audit.close()

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

    def unix(self) -> httpx2.Client:
        return httpx2.Client(
            transport=httpx2.HTTPTransport(uds=str(self.socket), verify=False), base_url="http://localhost"
        )

    def tcp(self, token: str | None = None) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(base_url=self.url, headers=headers, verify=False)

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
