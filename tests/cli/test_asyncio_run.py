"""Signals that end an asynchronous command."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest

from skerry.cli import asyncio_run

Handler = Callable[[int, FrameType | None], None]


@pytest.fixture
def leaving() -> Iterator[Handler]:
    """Install handlers as the command line does."""

    def leave(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    yield leave
    signal.signal(signal.SIGTERM, before)


KILLER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGTERM)
"""


@pytest.fixture
def killed_in() -> Iterator[Callable[[float], None]]:
    """Send a signal from another process: a thread of this process would run only while the loop pauses."""
    with subprocess.Popen([sys.executable, "-c", KILLER], stdin=subprocess.PIPE) as killer:
        assert killer.stdin is not None
        stdin = killer.stdin

        def kill_in(seconds: float) -> None:
            stdin.write(f"{seconds}\n".encode())
            stdin.flush()

        yield kill_in
        stdin.close()


async def busy(kill: Callable[[], None], cleared: list[bool]) -> None:
    """Two tasks that wake each other forever."""
    one, two = asyncio.Event(), asyncio.Event()

    async def play(mine: asyncio.Event, other: asyncio.Event) -> None:
        while True:
            await mine.wait()
            mine.clear()
            other.set()

    players = [asyncio.ensure_future(play(one, two)), asyncio.ensure_future(play(two, one))]
    one.set()
    kill()
    try:
        await asyncio.wait(players)
    finally:
        for player in players:
            player.cancel()
        await asyncio.wait(players)
        cleared.append(True)


def test_signal_at_any_time_cleans_up_and_exits(leaving: Handler, killed_in: Callable[[float], None]) -> None:
    """If the handler raised at an arbitrary point of the loop, this would often hang."""
    for number in range(100):
        cleared: list[bool] = []
        with pytest.raises(SystemExit) as left:
            asyncio_run.run(busy(partial(killed_in, 0.001 + number / 1e5), cleared))
        assert (left.value.code, cleared) == (143, [True])
        assert signal.signal(signal.SIGTERM, leaving) is signal.SIG_IGN


def test_without_a_signal_results_and_errors_pass(leaving: Handler) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        raise ValueError("its own")

    assert asyncio_run.run(answer()) == 42
    with pytest.raises(ValueError, match="its own"):
        asyncio_run.run(fail())
    assert signal.getsignal(signal.SIGTERM) is leaving
