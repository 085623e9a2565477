"""How a sandbox comes to be: claimed from the pool, or made cold."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from skerry.config import Settings
from skerry.engine import claims, egress, lifecycle, plan
from skerry.engine.faults import passed
from skerry.engine.lifecycle import Host
from skerry.engine.live import Live
from skerry.engine.pool import Pool
from skerry.engine.rows import Row
from skerry.engine.snapshots import Snapshots
from skerry.errors import QuotaExceeded, SkerryError
from skerry.types import Caller, CreateRequest, SandboxInfo

log = logging.getLogger("skerry.engine")


class Creation:
    """`turn` bounds how many start at once, `forget` is called when one that could not be made is gone, `spawn` does
    work beside, `peers` gives the ids of its owner's others."""

    def __init__(
        self,
        settings: Settings,
        lives: dict[str, Live],
        pool: Pool,
        turn: Callable[[], AbstractAsyncContextManager[None]],
        forget: Callable[[Live], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._settings = settings
        self._lives = lives
        self._pool = pool
        self._turn = turn
        self._forget = forget
        self._spawn = spawn
        self._maxima = plan.host_maxima()
        self._keys: dict[tuple[str, str], Live] = {}  # of claims that are under way: their rows don't tell yet

    def begin(self, host: Host, snapshots: Snapshots, peers: Callable[[Caller, str], egress.Peer]) -> None:
        self._host = host
        self._snapshots = snapshots
        self._peers = peers

    async def create(self, caller: Caller, request: CreateRequest, key: str | None) -> SandboxInfo:
        known = None
        while key is not None:
            known = self._host.rows.remembered(caller.owner, key, request)
            live = self._keys.get((caller.owner, key)) or self._lives.get(known or "")
            if live is None:
                break
            async with live.lock:  # its create may still be under way
                if not live.deleted and live.row.owner == caller.owner:
                    return live.row.info()
        image, origin = self._snapshots.image(caller, request.image)
        peers = self._peers(caller, caller.owner)
        spec = plan.resolve(request, image, self._settings, self._maxima, peers)
        # No await from here to the row: two callers with one key, or with one place left, must not both pass.
        self.check_room(caller.owner)
        row = Row(
            id=known or plan.new_id("sb-"), owner=caller.owner, name=request.name, state="creating", spec=spec,
            created_at=time.time(),
        )  # fmt: skip
        ready = self._pool.take(row) if known is None and origin is None else None
        if ready is not None and await self._claim(ready, row, request, key):
            return ready.row.info()
        return await self._make(row, request, key, origin)

    def make_room(self, owner: str, more: int = 1) -> None:
        """For so many more, within the operator's maximum; ready ones leave for them."""
        self.check_room(owner, more)
        self._pool.make_room(more)

    def check_room(self, owner: str, more: int = 1) -> None:
        owners = [live.row.owner for live in self._lives.values() if live.takes_room]
        for count, name in ((len(owners), "max.sandboxes"), (owners.count(owner), "max.sandboxes_per_owner")):
            if count + more > self._settings[name]:
                raise QuotaExceeded(
                    f"{count} sandboxes are live, and {name} allows {self._settings[name]}",
                    hint="delete some (`skerry ls`, `skerry rm`), or have the operator raise it",
                    details={"maximum": self._settings[name], "setting": name},
                )

    async def _claim(self, live: Live, row: Row, request: CreateRequest, key: str | None) -> bool:
        """Whether it could be bound; if not, it is gone. The row is written when all of it is done: a server that dies
        before leaves one of the pool's, which the next one removes."""
        ready = live.row
        row = live.row = replace(row, id=ready.id, init=ready.init, uid_base=ready.uid_base)
        self._lives[row.id] = live
        if key is not None:
            self._keys[row.owner, key] = live
        passed("claim.taken")
        async with live.lock:
            try:
                row, told = await claims.bind(self._host, live, ready, row, request.secrets)
                self._host.rows.claim(row, request, key)
            except BaseException as error:
                live.row = ready
                del self._lives[row.id]
                self._pool.drop(live)
                if not isinstance(error, (SkerryError, OSError)):
                    raise
                log.warning("not claimed", extra={"sandbox": row.id, "error": str(error)})
                return False
            finally:
                if key is not None:
                    del self._keys[row.owner, key]
            live.row = row
            passed("claim.row")
            self._host.watch(live)
            live.touch()
        if not told:
            self._spawn(claims.prolong(self._host, live))
        log.info("claimed", extra={"sandbox": row.id, "owner": row.owner})
        return True

    async def _make(self, row: Row, request: CreateRequest, key: str | None, origin: str | None) -> SandboxInfo:
        """`origin`: the layer that its upper begins as."""
        self.check_room(row.owner)  # again: a claim that failed took its time
        self._pool.make_room()
        live = Live(row)
        lifecycle.enter(self._host, (row,), request, key)
        self._lives[row.id] = live
        with self._snapshots.pinned(*filter(None, (origin,))):
            async with live.lock, self._turn():
                try:
                    await lifecycle.create(self._host, live, request.secrets, origin)
                finally:
                    await self._forget(live)
        log.info("created", extra={"sandbox": row.id, "owner": row.owner})
        return live.row.info()
