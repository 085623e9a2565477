"""Heavy work is bounded, in all and for each owner."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack

import pytest

from skerry.engine.concurrency import OwnerQuota
from skerry.errors import QuotaExceeded


def test_one_owner_never_blocks_others() -> None:
    slots = OwnerQuota(total=3, each=2)
    with ExitStack() as stack:
        for owner in ("one", "one", "other"):
            stack.enter_context(slots.taken(owner))
            if owner == "one":
                continue
            with pytest.raises(QuotaExceeded), slots.taken("third"):
                pass
    with slots.taken("one"), slots.taken("one"):
        with pytest.raises(QuotaExceeded), slots.taken("one"):
            pass
        with slots.taken("other"):
            pass


async def _cancelled() -> bool:
    slots, began, ended = OwnerQuota(total=1, each=1), threading.Event(), threading.Event()

    def work(check: object) -> None:
        began.set()
        try:
            while not ended.wait(0.001):
                check()  # type: ignore[operator]
        finally:
            ended.set()

    task = asyncio.ensure_future(slots.stoppable(work))
    await asyncio.to_thread(began.wait)
    task.cancel()
    await asyncio.wait((task,))
    return await asyncio.to_thread(ended.wait, 10)


def test_abandoned_work_is_cancelled() -> None:
    assert asyncio.run(_cancelled())
