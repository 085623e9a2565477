"""Runs with keepers that misbehave or do not answer: every wait ends, and no connection is left open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from keeper.test_exchange_errors import BEGUN
from keeper.test_output_errors import frame
from keeper.test_protocol_errors import UPGRADED

from skerry.engine.code import kernels as kernel_runs
from skerry.engine.code.contexts import CodeJob
from skerry.engine.code.kernels import KernelRun, StartedRun
from skerry.engine.code.run import collect
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Keeper
from skerry.types import CodeEnd, CodeRequest

DONE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
WITHIN_S = 20


class Lying:
    """A keeper that starts exchanges, sends `again` while they last, accepts signals, and never reports an end."""

    def __init__(self, place: Path, again: bytes = b"") -> None:
        self._place, self._again, self.open = place, again, 0
        self.signals: list[bytes] = []

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Keeper]:
        server = await asyncio.start_unix_server(self._serve, self._place)
        keeper = Keeper(self._connect, None, timeout=5)
        try:
            yield keeper
        finally:
            await keeper.close()
            server.close()

    async def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(sock, str(self._place))
        return sock

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/exchange " in head:
                    self.open += 1
                    writer.write(UPGRADED + BEGUN)
                    while not reader.at_eof():
                        writer.write(self._again)
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(1000), 0.01)
                    self.open -= 1
                    break
                self.signals.append(await reader.read(1000))
                writer.write(DONE)
        writer.close()


class Sandbox:
    """As much of one as a run looks at."""

    def __init__(self) -> None:
        self.uses, self.waiting_calls = 0, set[Any]()
        self.record = SimpleNamespace(state="running", spec=SimpleNamespace(cwd="/", user="user"))
        self.thawed = asyncio.Event()
        self.thawed.set()

    @contextlib.contextmanager
    def in_use(self) -> Any:
        self.uses += 1
        yield
        self.uses -= 1

    def was_frozen_within(self, seconds: float) -> bool:
        return False


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_S", "READ_TIMEOUT_S", "EXIT_TIMEOUT_S"):
        monkeypatch.setattr(kernel_runs, name, 0.05)


class Stage:
    def __init__(self, keeper: Keeper) -> None:
        self.sandbox, self._keeper = Sandbox(), keeper
        self.failed: list[SkerryError] = []
        self.over: list[CodeEnd | None] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def fail(self, live: Any, keeper: Keeper, error: SandboxUnavailable) -> None:
        self.failed.append(error)

    def run_over(self, run: KernelRun, end: CodeEnd | None) -> None:
        self.over.append(end)

    async def run(self, timeout: float | None) -> KernelRun:
        turn = await self._keeper.exchange("p-x", b"code")
        request = CodeRequest(code="1", timeout=timeout, files=False)
        language = SimpleNamespace(name="python")
        asked = CodeJob(
            cast("Any", None), cast("Any", self.sandbox), self._keeper, cast("Any", language), None, request, None
        )
        begun = StartedRun(process="p-x", run="0" * 16, turn=turn, new=True, lost=None, at=0.0, heard=0)
        return KernelRun(asked, begun, self, cast("Any", self), cast("Any", self))

    async def settle(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            while pending := [task for task in self._tasks if not task.done()]:
                await asyncio.wait(pending)


@pytest.mark.parametrize("again", [b"", frame(1, b"y")], ids=["silent", "talks on"])
async def test_keeper_that_reports_no_end_after_a_kill_is_a_protocol_error(
    tmp_path: Path, hasty: None, again: bytes
) -> None:
    lying = Lying(tmp_path / "k", again)
    async with lying.served() as keeper:
        stage = Stage(keeper)
        run = await stage.run(timeout=0.05)
        with pytest.raises(SandboxUnavailable):
            await asyncio.wait_for(collect(run), WITHIN_S)
        await stage.settle()
        assert [signal for signal in lying.signals if b"KILL" in signal]
        assert (bool(stage.failed), stage.over, stage.sandbox.uses) == (True, [None], 0)


async def test_abandoned_run_does_not_wait_forever_for_a_keeper(tmp_path: Path, hasty: None) -> None:
    lying = Lying(tmp_path / "k")
    async with lying.served() as keeper:
        stage = Stage(keeper)
        run = await stage.run(timeout=None)
        await run.aclose()
        await run.aclose()
        await stage.settle()
        assert (bool(stage.failed), stage.over, stage.sandbox.uses) == (True, [None], 0)
        async with asyncio.timeout(WITHIN_S):
            while lying.open:
                await asyncio.sleep(0.01)


async def test_stalled_keeper_is_not_a_protocol_error(tmp_path: Path, hasty: None) -> None:
    lying = Lying(tmp_path / "k")
    async with lying.served() as keeper:
        stage = Stage(keeper)
        run = await stage.run(timeout=None)
        stage.sandbox.was_frozen_within = lambda seconds: True  # type: ignore[method-assign]
        await run.aclose()
        await asyncio.sleep(0.5)
        assert (stage.failed, stage.over, lying.open) == ([], [], 1)
        stage.sandbox.was_frozen_within = lambda seconds: False  # type: ignore[method-assign]
        await stage.settle()
        assert stage.failed
