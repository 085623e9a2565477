"""Threads that several share, none of whom may have all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from skerry.engine.lanes import Lanes

WITHIN = 20.0


class Sandbox:
    pass


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes("test", threads=4, each=2)
    yield made
    made.close()


@pytest.mark.parametrize("gone", [False, True])
def test_one_sandbox_whose_comparisons_never_end_leaves_threads_for_the_others(lanes: Lanes, gone: bool) -> None:
    """Also if whoever asked for them has left."""
    hostile, other = Sandbox(), Sandbox()
    over = threading.Event()
    running: list[int] = []

    def endless() -> None:
        running.append(1)
        over.wait(WITHIN)

    async def story() -> None:
        asked = [asyncio.ensure_future(lanes.run(hostile, endless)) for _ in range(20)]
        await asyncio.sleep(0.05)
        if gone:
            for one in asked[:10]:
                one.cancel()
            await asyncio.wait(asked[:10])
        assert await asyncio.wait_for(lanes.run(other, lambda: "done"), WITHIN) == "done"
        assert len(running) == 2
        over.set()
        await asyncio.gather(*asked, return_exceptions=True)

    try:
        asyncio.run(story())
    finally:
        over.set()
    assert len(running) == (12 if gone else 20)


def test_what_fails_in_a_thread_fails_for_who_asked_and_gives_its_turn_back(lanes: Lanes) -> None:
    async def story() -> None:
        one = Sandbox()
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(lanes.run(one, lambda: 1 // 0), WITHIN)

    asyncio.run(story())
