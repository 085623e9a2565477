"""Threads for ledgers: apart from the event loop's own, so that starting a sandbox never waits for git."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from skerry.engine.concurrency import FairThreadPool
from skerry.engine.review.workspace import ReviewedWorkspace

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 4


class ReviewThreads:
    """Two pools: a command must not wait for a caller that reads changes."""

    def __init__(self) -> None:
        self._writers = ThreadPoolExecutor(THREADS, "review")
        self._readers = FairThreadPool("reading")

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work that changes a ledger, or that is short."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, partial(work, *args, **kwargs))

    async def read(self, workspace: ReviewedWorkspace, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work that may take long: the files of the workspace decide how long."""
        return await self._readers.run(workspace, work, *args, **kwargs)

    def close(self) -> None:
        self._writers.shutdown()
        self._readers.close()
