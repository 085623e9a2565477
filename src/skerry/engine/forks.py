"""Forks: new sandboxes that begin as another one is now. All of them run, or none is there; also after a crash: their
rows say `creating` until the last one runs, and what is found so by the next server is deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from msgspec.structs import replace

from skerry.engine import lifecycle, plan
from skerry.engine.capture import drop
from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.reviews import Copied, Reviews
from skerry.engine.rows import Row
from skerry.engine.snapshots import Snapshots
from skerry.errors import SandboxUnavailable
from skerry.types import Caller, ForkRequest, SandboxInfo, Value

log = logging.getLogger("skerry.engine")


class Forking(Value, frozen=True, kw_only=True):
    """What a key of a fork stands for."""

    source: str
    n: int


class Forks:
    """`engine.forks`."""

    def __init__(self, snapshots: Snapshots, reviews: Reviews) -> None:
        self._grip = snapshots.grip
        self._snapshots = snapshots
        self._reviews = reviews

    @property
    def _host(self) -> Host:
        return self._snapshots.host

    async def fork(self, caller: Caller, ref: str, request: ForkRequest, key: str | None = None) -> list[SandboxInfo]:
        """Of a sandbox in any state, which that does not change. They belong to its owner, whoever asked."""
        source = self._grip.find(caller, ref)
        wish = Forking(source=source.row.id, n=request.n)
        return await self._grip.uncut(self._fork(source, wish, key))

    async def _fork(self, source: Live, wish: Forking, key: str | None) -> list[SandboxInfo]:
        if there := await self._made_before(source.row.owner, wish, key):
            return there
        self._grip.make_room(source.row.owner, wish.n)
        async with self._reviews.copied(source) as ledger, self._snapshots.captured(source) as captured:
            passed("fork.captured")
            try:
                return await self._made_before(source.row.owner, wish, key) or await self._make(
                    source.row, wish, key, captured.layer, ledger
                )
            finally:
                await drop(self._host, captured.layer)  # each has its own copy of it now

    async def _made_before(self, owner: str, wish: Forking, key: str | None) -> list[SandboxInfo]:
        """Those that the same key was given before, as far as they live, once they do."""
        found = []
        for sandbox in self._remembered(owner, wish, key):
            live = self._grip.lives.get(sandbox)
            if live is not None:
                async with live.lock:
                    found += [live.row.info()] * (not live.deleted)
        return found

    def _remembered(self, owner: str, wish: Forking, key: str | None) -> list[str]:
        known = self._host.rows.remembered(owner, key, wish) if key is not None else None
        return known.split(",") if known is not None else []

    async def _make(
        self, source: Row, wish: Forking, key: str | None, layer: str, ledger: Copied | None
    ) -> list[SandboxInfo]:
        ids = self._remembered(source.owner, wish, key) or [plan.new_id("sb-") for _ in range(wish.n)]
        lives = [Live(_forked(source, sandbox)) for sandbox in ids]
        # No await from here to the rows: what is left of the operator's maximum must not be promised twice.
        self._grip.make_room(source.owner, wish.n)
        lifecycle.enter(self._host, [live.row for live in lives], wish, key)
        passed("fork.rows")
        self._grip.lives.update((live.row.id, live) for live in lives)
        async with AsyncExitStack() as stack:
            for live in lives:  # not taken by anyone yet, so this does not wait
                await stack.enter_async_context(live.lock)
            try:
                if ledger is not None:
                    await self._reviews.hand_out(ledger, lives)
                await self._begin(source, lives, layer)
            except BaseException:
                await self._undo(lives)
                raise
        log.info("forked", extra={"sandbox": source.id, "forks": ids})
        return [live.row.info() for live in lives]

    async def _begin(self, source: Row, lives: list[Live], layer: str) -> None:
        """To the last step side by side; that one they take together."""
        ended = await asyncio.gather(*(self._begin_one(source, live, layer) for live in lives), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error
        passed("fork.started")
        if any(live.ended for live in lives):
            raise SandboxUnavailable("the first process of a fork ended at once")
        rows = self._host.rows.update_all([live.row for live in lives], state="running")
        for live, row in zip(lives, rows, strict=True):
            live.row = row
            self._host.watch(live)
        passed("fork.running")

    async def _begin_one(self, source: Row, live: Live, layer: str) -> None:
        async with self._grip.turn():
            if source.spec.secrets:
                await asyncio.to_thread(self._host.secrets.copy, source.id, live.row.id)
            await lifecycle.make_unit(self._host, live.row, layer)
            passed("fork.unit")
            await lifecycle.start(self._host, live, state="creating")

    async def _undo(self, lives: list[Live]) -> None:
        for live in lives:
            try:
                await lifecycle.delete(self._host, live)
            except Exception:  # what was wrong first is told; the reaper takes the delete up again
                log.exception("not undone", extra={"sandbox": live.row.id})
            await self._grip.forget(live)


def _forked(source: Row, sandbox: str) -> Row:
    """The same but for its name, its files' place, and its beginning."""
    return Row(
        id=sandbox, owner=source.owner, name=None, state="creating", spec=replace(source.spec, unit=None),
        created_at=time.time(),
    )  # fmt: skip
