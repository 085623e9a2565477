"""Undelete: a new sandbox for the kept review of a deleted one.

It has the former name, image, limits, variables, labels, network policy and lifecycle, the files of the workspace that
the ledger has, and the review with its decisions. Other files, processes, secrets and the content of large files are
gone."""

from __future__ import annotations

import logging
from collections.abc import Container, Generator

from msgspec.structs import replace

from skerry.codecs import tar
from skerry.engine.concurrency import stream_from_thread
from skerry.engine.review.deleted import KeptReview
from skerry.engine.review.service import LEDGER, ReviewService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.service import SandboxService
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict
from skerry.review.ledger.ledger import Ledger
from skerry.types import Caller, CreateRequest, Decisions, SandboxInfo, UndeleteRequest, UpdateRequest

log = logging.getLogger("skerry.engine")
LOST = "the content of large files is not kept after a deletion"


class UndeleteService:
    """`engine.undeletes`."""

    def __init__(self, reviews: ReviewService, sandboxes: SandboxService, lifecycle: Lifecycle, tasks: Tasks) -> None:
        self._reviews, self._sandboxes, self._lifecycle, self._tasks = reviews, sandboxes, lifecycle, tasks
        self._in_progress: set[str] = set()

    async def undelete(self, caller: Caller, ref: str, request: UndeleteRequest) -> SandboxInfo:
        kept = self._reviews.deleted.find(caller, ref)
        if kept.id in self._in_progress:
            raise Conflict(f"{ref} is already being restored")
        self._in_progress.add(kept.id)
        try:
            owner = replace(caller, owner=kept.mark.info.owner)
            return await self._tasks.shield(self._undelete(owner, kept, request.name))
        finally:
            self._in_progress.discard(kept.id)

    async def _undelete(self, owner: Caller, kept: KeptReview, name: str | None) -> SandboxInfo:
        """Restore the files before the review: without them, it would record that all of them were removed. `on_start`
        commands begin when all of it is there."""
        info = kept.mark.info
        bare = replace(info.lifecycle, on_start=None, ready=None)
        request = CreateRequest(
            image=info.image, name=name or info.name, env=info.env, labels=info.labels, limits=info.limits,
            network=info.network, lifecycle=bare, budget=info.budget, options=info.options,
        )  # fmt: skip
        made = await self._sandboxes.create(owner, request)
        try:
            async with self._lifecycle.use(owner, made.id) as (sandbox, keeper):
                in_thread = self._reviews.threads.in_thread
                ledger = await in_thread(Ledger.open, kept.place / LEDGER)
                pieces = stream_from_thread(in_thread, _archive(ledger, kept.state.large))
                await keeper.files.unpack(kept.state.path, pieces)
                await self._reviews.restore(kept, sandbox)
            await self._reject_lost(owner, made.id, kept, ledger)
            if info.lifecycle != bare:
                await self._sandboxes.update(owner, made.id, UpdateRequest(lifecycle=info.lifecycle))
        except BaseException:
            await self._sandboxes.delete(owner, made.id, force=True, purge=True)
            raise
        await self._reviews.deleted.remove(kept.id)
        log.info("restored deleted review", extra={"sandbox": made.id, "deleted": kept.id})
        return made

    async def _reject_lost(self, owner: Caller, made: str, kept: KeptReview, ledger: Ledger) -> None:
        """Reject the removal of large files: their content is gone, and not by the agent's decision."""
        files = await self._reviews.threads.in_thread(lambda: list(ledger.files(ledger.tip)))
        lost = [path for path, _, oid in files if oid in kept.state.large]
        if lost:
            found = await self._reviews.decisions.review(owner, made, lost)
            if hunks := tuple(hunk.id for hunk in found.hunks if hunk.state != "rejected"):
                await self._reviews.decisions.decide(owner, made, Decisions(reject=hunks, reason=LOST))


def _archive(ledger: Ledger, large: Container[str]) -> Generator[bytes, None, None]:
    """Return the files of the ledger's tip as a tar archive, one file at a time."""
    files = [(path, mode, oid) for path, mode, oid in ledger.files(ledger.tip) if oid not in large]
    contents = ledger.blobs([oid for _, _, oid in files])
    for (path, mode, _), (_, data) in zip(files, contents, strict=True):
        if mode == "120000":
            yield tar.header(tar.Entry(path, "link", 0o777, link=data))
        else:
            entry = tar.Entry(path, "file", 0o755 if mode == "100755" else 0o644, len(data))
            yield tar.header(entry) + data + tar.padding(len(data))
    yield tar.END
