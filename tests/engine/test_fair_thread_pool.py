"""A thread pool shared by several sandboxes, none of which can take all threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from skerry.engine.concurrency import FairThreadPool

WITHIN = 20.0


class Sandbox:
    pass


@pytest.fixture
def lanes() -> Iterator[FairThreadPool]:
    made = FairThreadPool("test", threads=4, each=2)
    yield made
    made.close()


@pytest.mark.parametrize("gone", [False, True])
def test_endless_comparisons_of_one_sandbox_leave_threads_for_others(lanes: FairThreadPool, gone: bool) -> None:
    """Also if the caller has left."""
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


def test_failure_in_a_thread_reaches_the_caller_and_frees_the_slot(lanes: FairThreadPool) -> None:
    async def story() -> None:
        one = Sandbox()
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(lanes.run(one, lambda: 1 // 0), WITHIN)

    asyncio.run(story())
