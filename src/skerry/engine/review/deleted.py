"""Reviews of deleted sandboxes. The ledger stays in its place, and its row says that the sandbox is deleted.

A review with changes that were not applied is kept for `review.keep_deleted`. All of them together take at most
`review.max_deleted_size`, and none stays while the disk has less than `storage.min_free_space`: those without accepted
changes go first, and of those the oldest."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from skerry.config import Settings
from skerry.engine.events import Events, PendingEvent
from skerry.engine.review.tables import DeletedMark, ReviewRecord, ReviewTable
from skerry.engine.review.threads import ReviewThreads
from skerry.engine.review.workspace import MANIFEST
from skerry.engine.sandboxes.spec import new_id
from skerry.errors import NotFound
from skerry.types import Caller, DeletedSandbox, parse_size, parse_span

log = logging.getLogger("skerry.engine")
CHECK_INTERVAL_S = 600.0
GONE = "gone-"  # prefix of ledgers that are being removed


class KeptReview(NamedTuple):
    """The review of the deleted sandbox `id`; `place` has its ledger."""

    id: str
    state: ReviewRecord
    mark: DeletedMark
    place: Path


class DeletedReviews:
    """`engine.reviews.deleted`. Used from the event loop's thread only."""

    def __init__(
        self, settings: Settings, directory: Path, table: ReviewTable, threads: ReviewThreads, events: Events
    ) -> None:
        self._directory, self._table, self._threads, self._events = directory, table, threads, events
        self.retention = parse_span(settings["review.keep_deleted"])
        self._max_size = parse_size(settings["review.max_deleted_size"])
        self._min_free = parse_size(settings["storage.min_free_space"])
        self._kept: dict[str, KeptReview] = {}

    def load(self, states: Mapping[str, ReviewRecord]) -> None:
        """Take over the reviews of deleted sandboxes that an earlier server kept."""
        for sandbox_id, state in states.items():
            self._enter(sandbox_id, state)

    def _enter(self, sandbox_id: str, state: ReviewRecord) -> None:
        if state.deleted is not None:
            place = self._directory / sandbox_id
            self._kept[sandbox_id] = KeptReview(sandbox_id, state, state.deleted, place)

    async def keep(self, sandbox_id: str, state: ReviewRecord) -> None:
        """Keep the review of a sandbox that was deleted just now. Its manifest describes files that are gone."""
        self._enter(sandbox_id, state)
        kept = self._kept[sandbox_id]
        (kept.place / MANIFEST).unlink(missing_ok=True)
        info = kept.mark.info
        reason = (
            f"{kept.mark.accepted} accepted hunks were not applied, {kept.mark.files} files differ;"
            f" `skerry undelete {info.name or sandbox_id}` restores the review"
        )
        self._events.publish(PendingEvent("review.kept", info.owner, sandbox_id, info.name, time.time(), reason))
        await self.purge()

    def list(self, caller: Caller) -> builtins.list[DeletedSandbox]:
        """List the caller's deleted sandboxes, the last one first; an administrator's list has everyone's."""
        seen = [kept for kept in self._current() if caller.scope == "admin" or kept.mark.info.owner == caller.owner]
        return [
            DeletedSandbox(
                sandbox=kept.mark.info, deleted_at=kept.mark.at, kept_until=kept.mark.at + self.retention,
                accepted=kept.mark.accepted, files=kept.mark.files, path=kept.state.path, origin=kept.state.origin,
            )
            for kept in seen
        ]  # fmt: skip

    def find(self, caller: Caller, ref: str) -> KeptReview:
        """Return the caller's deleted sandbox with that id or name, the last one of that name. An administrator also
        finds others by id."""
        for kept in self._current():
            info = kept.mark.info
            if info.owner == caller.owner and ref in (info.id, info.name):
                return kept
            if caller.scope == "admin" and ref == info.id:
                return kept
        raise NotFound(
            f"deleted sandbox {ref!r} not found",
            hint="`skerry review --deleted` lists the deleted sandboxes whose changes are kept",
            details={"sandbox": ref},
        )

    def _current(self) -> builtins.list[KeptReview]:
        after = time.time() - self.retention
        found = [kept for kept in self._kept.values() if kept.mark.at > after]
        return sorted(found, key=lambda kept: kept.mark.at, reverse=True)

    # -- removal ------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Remove reviews after their retention time."""
        while True:
            await self.purge()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def purge(self) -> None:
        """Remove reviews that are too old, or that take too much space."""
        current = {kept.id for kept in self._current()}
        for sandbox_id in self._kept.keys() - current:
            await self.remove(sandbox_id)
        for kept in sorted(self._kept.values(), key=lambda kept: (kept.mark.accepted > 0, kept.mark.at)):
            size = sum(other.mark.size for other in self._kept.values())
            if size <= self._max_size and await self._threads.in_thread(self._free_space) >= self._min_free:
                return
            log.warning("removed the review of a deleted sandbox: no space", extra={"sandbox": kept.id})
            await self.remove(kept.id)

    def _free_space(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    async def remove(self, sandbox_id: str) -> None:
        if self._kept.pop(sandbox_id, None) is not None:
            self._table.remove(sandbox_id)
            try:
                await self._threads.in_thread(remove_ledger, self._directory / sandbox_id)
            except OSError as error:  # the next server does
                log.error("failed to remove a ledger", extra={"sandbox": sandbox_id, "error": str(error)})


def remove_ledger(place: Path) -> None:
    """Rename first, so that a concurrent reader adds nothing to it, then remove."""
    gone = place.with_name(new_id(GONE))
    with contextlib.suppress(FileNotFoundError):
        place.rename(gone)
        shutil.rmtree(gone)
