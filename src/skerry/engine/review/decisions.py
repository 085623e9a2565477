"""Decisions about the hunks of a review, and their consequences: the patch set, applying, undoing.

Decisions and applies hold the review's lock: base, tip and decisions belong together. An answered decision is on
disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from skerry.engine.concurrency import stream_from_thread
from skerry.engine.events import Events, PendingEvent
from skerry.engine.faults import fault_point
from skerry.engine.review import views
from skerry.engine.review.tables import Apply, ApplyState, DecisionTable
from skerry.engine.review.threads import ReviewThreads
from skerry.engine.review.views import REJECTIONS_TIMEOUT_S, rejections
from skerry.engine.review.workspace import ReviewedWorkspace
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.keeper import Keeper
from skerry.review.hunks.apply_decisions import decide
from skerry.review.hunks.patch_set import (
    LedgerPatchSet,
    build_patch_set,
    decode_patch_set,
    record_apply,
    record_undo,
    record_working_tree,
)
from skerry.review.hunks.review_state import ReviewState
from skerry.review.hunks.selection import PathFilter, Selection
from skerry.review.ledger.commit_message import CommitInfo
from skerry.types import (
    AppliedRequest,
    Caller,
    DecisionResult,
    Decisions,
    Hunk,
    HunkOrigin,
    HunkState,
    PatchSet,
    Review,
    ReviewEvent,
)

log = logging.getLogger("skerry.engine")


StateVersion = tuple[str, str, int]
"""The base, the tip, and how often something was decided."""


@dataclass
class _Memo:
    """Cached facts about a review. `paths`: the file of each hunk, as of a state version. `whole`: interrupted applies
    were completed. `inside`: the content of its review.json."""

    version: int = 0
    moment: StateVersion | None = None
    paths: dict[str, bytes] = field(default_factory=dict)
    whole: bool = False
    inside: bytes | None = None
    rejections_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Workspaces(Protocol):
    """Finds workspaces under review (`review.service`, which has decisions as its part)."""

    def get(self, caller: Caller, ref: str) -> ReviewedWorkspace: ...

    async def settled(self, caller: Caller, ref: str) -> ReviewedWorkspace:
        """With all in its ledger that was written so far."""


class DecisionService:
    """`engine.decisions`."""

    def __init__(
        self,
        workspaces: Workspaces,
        table: DecisionTable,
        threads: ReviewThreads,
        events: Events,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._workspaces, self._table, self._threads = workspaces, table, threads
        self._events, self._registry = events, registry
        self._lifecycle, self._tasks = lifecycle, tasks
        self._memos: WeakKeyDictionary[ReviewedWorkspace, _Memo] = WeakKeyDictionary()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def review(
        self,
        caller: Caller,
        ref: str,
        paths: Sequence[bytes] = (),
        exclude: Sequence[str] = (),
        state: HunkState | None = None,
    ) -> Review:
        workspace = await self._workspaces.settled(caller, ref)
        current, moment = await self._current_state(workspace)
        selected = current.select(paths, exclude)
        found = await self._threads.read(workspace, self._view, workspace, current, selected, state)
        if not paths and not exclude:
            memo = self._memo(workspace)
            memo.moment, memo.paths = moment, found.paths
        return found.review

    def _view(
        self, workspace: ReviewedWorkspace, current: ReviewState, selected: Selection, state: HunkState | None
    ) -> views.ReviewView:
        applied = [decode_patch_set(one.body) for one in self._table.applies(workspace.sandbox_id, ApplyState.APPLIED)]
        return views.review(workspace, current, selected, state, applied)

    async def hunk(self, caller: Caller, ref: str, name: str) -> Hunk:
        """All of it, however long."""
        workspace = await self._workspaces.settled(caller, ref)
        current, moment = await self._current_state(workspace)
        filtered = self._path_filter(workspace, moment, name)
        found = await self._threads.read(workspace, views.hunk, current, filtered, name)
        if found is None:
            raise NotFound(
                f"hunk {name} not found", hint="its content changed, or it was applied: list the hunks again"
            )
        return found

    async def why(self, caller: Caller, ref: str, name: str) -> HunkOrigin:
        """Return the commands that produced the hunk, and their output as far as it is kept. A sandbox that does not
        run is not started for it."""
        workspace = await self._workspaces.settled(caller, ref)
        current, moment = await self._current_state(workspace)
        filtered = self._path_filter(workspace, moment, name)
        found = await self._threads.read(workspace, views.origin, workspace, current, filtered, name)
        if found is None:
            raise NotFound(
                f"hunk {name} not found", hint="its content changed, or it was applied: list the hunks again"
            )
        hunk, entries = found
        processes = views.named(entries)
        if workspace.sandbox.record.state != "running":
            output = dict.fromkeys(processes, views.ASLEEP)
        else:
            async with self._lifecycle.use(caller, workspace.sandbox_id) as (_, keeper):
                output = {process: await views.printed(keeper, process) for process in processes}
        return HunkOrigin(hunk=hunk, entries=tuple(entries), output=output)

    async def accepted(
        self, caller: Caller, ref: str, paths: Sequence[bytes] = (), exclude: Sequence[str] = ()
    ) -> PatchSet:
        """Return the patch set: the accepted changes. Its digest identifies it when it was applied."""
        workspace = await self._workspaces.settled(caller, ref)
        return await self._tasks.shield(self._accepted(workspace, paths, exclude))

    async def _accepted(self, workspace: ReviewedWorkspace, paths: Sequence[bytes], exclude: Sequence[str]) -> PatchSet:
        async with self.locked(workspace) as current:
            selected = current.select(paths, exclude)
            patch_set = await self._threads.read(workspace, self._store_patch_set, workspace, current, selected)
        return await self._threads.read(workspace, views.accepted, workspace, patch_set)

    async def preview(
        self, caller: Caller, ref: str, paths: Sequence[bytes] = (), exclude: Sequence[str] = ()
    ) -> PatchSet:
        """Return the patch set as if all open hunks were accepted, except risky ones, which `held_back` lists. Nothing
        is decided or stored."""
        workspace = await self._workspaces.settled(caller, ref)
        current, _ = await self._current_state(workspace)
        selected = current.select(paths, exclude)
        return await self._threads.read(workspace, self._preview, workspace, current, selected)

    def _preview(self, workspace: ReviewedWorkspace, current: ReviewState, selected: Selection) -> PatchSet:
        outcome = decide(current, Decisions(do="accept", all=True), {}, time.time(), only=selected)
        accepted = replace(current, decided={**current.decided, **outcome.decided})
        found = views.accepted(workspace, build_patch_set(accepted, selected))
        skipped = views.decided(outcome)
        return msgspec.structs.replace(found, held_back=skipped.held_back, generated=skipped.generated)

    def _store_patch_set(
        self, workspace: ReviewedWorkspace, current: ReviewState, selected: Selection
    ) -> LedgerPatchSet:
        patch_set = build_patch_set(current, selected)
        if patch_set.files:
            self._table.store_patch_set(workspace.sandbox_id, patch_set.digest, msgspec.msgpack.encode(patch_set))
        return patch_set

    async def count_unapplied(self, workspace: ReviewedWorkspace) -> tuple[int, int]:
        """Count the accepted hunks that were not applied, and the files that differ from the user's."""
        current, _ = await self._current_state(workspace)
        return await self._threads.read(workspace, views.count_unapplied, current)

    async def blob(self, caller: Caller, ref: str, oid: str) -> tuple[int, AsyncGenerator[bytes, None]]:
        """A content by its object id: how long it is, and its bytes."""
        workspace = self._workspaces.get(caller, ref)
        size = await self._threads.read(workspace, workspace.ledger.size_of, oid)
        pieces = await self._threads.read(workspace, workspace.ledger.blob, oid)
        return size, stream_from_thread(partial(self._threads.read, workspace), views.whole(pieces))

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def decide(self, caller: Caller, ref: str, request: Decisions) -> DecisionResult:
        workspace = await self._workspaces.settled(caller, ref)
        return await self._tasks.shield(self._decide(workspace, request, caller.person))

    async def _decide(self, workspace: ReviewedWorkspace, request: Decisions, by: str) -> DecisionResult:
        memo = self._memo(workspace)
        async with self.locked(workspace) as current:
            fresh = memo.moment == self._version(workspace, current)
            known = memo.paths if fresh else {}
            outcome = await self._threads.read(workspace, decide, current, request, known, time.time(), by=by)
            if outcome.decided:
                await self.put(workspace, outcome.decided)
            if fresh:
                memo.moment = self._version(workspace, current)
                memo.paths.update(outcome.paths)
        decided = views.decided(outcome)
        if decided.hunks:
            workspace.publish(
                ReviewEvent(type="decision", sandbox=workspace.sandbox_id, tip=current.tip, hunks=decided.hunks)
            )
            states = Counter(hunk.state for hunk in decided.hunks)
            self._notify(workspace, "decided", ", ".join(f"{count} {state}" for state, count in states.items()))
            await self.write_rejections(workspace)
        return decided

    def _notify(self, workspace: ReviewedWorkspace, what: str, reason: str) -> None:
        """Publish an event for callers that do not follow this review."""
        sandbox = self._registry.get(workspace.sandbox_id)
        if sandbox is not None:
            record = sandbox.record
            news = PendingEvent(f"review.{what}", record.owner, record.id, record.name, time.time(), reason)
            self._events.publish(news)

    # -- applying -----------------------------------------------------------------------------------------------------

    async def applied(self, caller: Caller, ref: str, request: AppliedRequest) -> None:
        """Record that a client applied a patch set: its files are the user's from now on."""
        workspace = self._workspaces.get(caller, ref)
        await self._tasks.shield(self._applied(workspace, request))

    async def _applied(self, workspace: ReviewedWorkspace, request: AppliedRequest) -> None:
        async with self.locked(workspace):
            before = await self._threads.read(workspace, self._table.apply, workspace.sandbox_id, request.id)
            if before is not None:
                if request.digest not in (None, decode_patch_set(before.body).digest):
                    raise Conflict("id: it was used for another apply", hint="a new one for each")
                return
            if request.digest is None:
                raise InvalidRequest(
                    "digest: the digest of the applied patch set is missing", hint="as …/review/patch-set gave it"
                )
            body = await self._threads.read(
                workspace, self._table.stored_patch_set, workspace.sandbox_id, request.digest
            )
            if body is None:
                raise NotFound("unknown patch set", hint="`digest` as …/review/patch-set gave it")
            patch_set = await self._threads.read(workspace, decode_patch_set, body)
            if request.hunks and set(request.hunks) != {hunk for file in patch_set.files for hunk in file.hunks}:
                raise InvalidRequest("hunks: not those of that digest")
            apply = Apply(request.id, ApplyState.APPLYING, body)
            await self._threads.read(workspace, self._table.begin, workspace.sandbox_id, apply)
            fault_point("apply.record")
            if not request.elsewhere:
                await self._record_working_tree(workspace, patch_set, applied=True)
            await self._complete_apply(workspace, apply)
        await self._publish_decision(workspace, patch_set, "applied")

    async def unapplied(self, caller: Caller, ref: str, request: AppliedRequest) -> None:
        """Record that a client undid an apply: its hunks are accepted again."""
        workspace = self._workspaces.get(caller, ref)
        await self._tasks.shield(self._unapplied(workspace, request))

    async def _unapplied(self, workspace: ReviewedWorkspace, request: AppliedRequest) -> None:
        async with self.locked(workspace):
            apply = await self._threads.read(workspace, self._table.apply, workspace.sandbox_id, request.id)
            if apply is None:
                raise NotFound("that apply is not known here", hint="report the apply first, then its undo")
            if apply.state == ApplyState.UNDONE:
                return
            undoing = Apply(apply.id, ApplyState.UNDOING, apply.body)
            await self.put(workspace, {}, (apply.id, ApplyState.UNDOING))
            try:
                await self._complete_apply(workspace, undoing)
            except SkerryError:
                await self.put(workspace, {}, (apply.id, ApplyState.APPLIED))
                raise
            patch_set = await self._threads.read(workspace, decode_patch_set, apply.body)
            await self._record_working_tree(workspace, patch_set, applied=False)
        await self._publish_decision(workspace, patch_set, "accepted")

    async def _record_working_tree(
        self, workspace: ReviewedWorkspace, patch_set: LedgerPatchSet, *, applied: bool
    ) -> None:
        """Record that the user has or lost the changes in the working tree. A server that dies before it leaves them
        to the next pull, which finds them as edits that both sides made."""
        info = CommitInfo(kind="moved", at=time.time())
        work = partial(record_working_tree, workspace.ledger, patch_set, info, applied=applied)
        await self._threads.read(workspace, work)

    async def _complete_apply(self, workspace: ReviewedWorkspace, apply: Apply) -> None:
        """Complete an apply or undo: the base first, then the decisions. A server that dies in between repeats the
        same."""
        current = await self._read_state(workspace)
        patch_set = await self._threads.read(workspace, decode_patch_set, apply.body)
        applying = apply.state == ApplyState.APPLYING
        info = CommitInfo(
            kind="applied" if applying else "unapplied", at=time.time(), note=f"{apply.id} {patch_set.digest}"
        )
        work = record_apply if applying else record_undo
        _, decided = await self._threads.read(workspace, work, current, patch_set, info)
        fault_point("apply.base")
        await self.put(workspace, decided, (apply.id, ApplyState.APPLIED if applying else ApplyState.UNDONE))
        fault_point("apply.done")

    async def _publish_decision(
        self, workspace: ReviewedWorkspace, patch_set: LedgerPatchSet, state: HunkState
    ) -> None:
        hunks = await self._threads.read(workspace, views.in_state, patch_set, state)
        workspace.publish(ReviewEvent(type="decision", sandbox=workspace.sandbox_id, tip=patch_set.tip, hunks=hunks))
        self._notify(
            workspace,
            "applied" if state == "applied" else "undone",
            f"{len(hunks)} hunk{'s' if len(hunks) != 1 else ''}",
        )
        await self.write_rejections(workspace)

    # -- for programs inside ------------------------------------------------------------------------------------------

    async def write_rejections(self, workspace: ReviewedWorkspace, keeper: Keeper | None = None) -> None:
        """Write the rejected hunks to /run/skerry/review.json. `keeper`: it is new and has no file yet."""
        sandbox, memo = workspace.sandbox, self._memo(workspace)
        if sandbox.record.state != "running" or sandbox.keeper is None or not workspace.has_ledger:
            return
        try:
            async with asyncio.timeout(REJECTIONS_TIMEOUT_S), memo.rejections_lock:
                current, _ = await self._current_state(workspace)
                content = await self._threads.read(workspace, rejections, current)
                if content == (memo.inside if keeper is None else None) or not (current.decided or memo.inside):
                    return
                with sandbox.in_use():
                    await sandbox.thawed.wait()
                    await sandbox.keeper.put_review_file(content)
                memo.inside = content
        except (SkerryError, OSError, TimeoutError) as error:  # root inside may be in the way, which is its own loss
            log.warning(
                "failed to write rejections into the sandbox",
                extra={"sandbox": workspace.sandbox_id, "error": str(error)},
            )

    async def with_hunks(self, workspace: ReviewedWorkspace, event: ReviewEvent) -> ReviewEvent:
        current, _ = await self._current_state(workspace)
        return await self._threads.read(workspace, views.with_hunks, current, event)

    # -- review state -------------------------------------------------------------------------------------------------

    async def _current_state(self, workspace: ReviewedWorkspace) -> tuple[ReviewState, StateVersion]:
        async with self.locked(workspace) as current:
            return current, self._version(workspace, current)

    @asynccontextmanager
    async def locked(self, workspace: ReviewedWorkspace) -> AsyncIterator[ReviewState]:
        """Hold the review's lock and yield its state, after interrupted applies were completed."""
        async with workspace.lock:
            if workspace.sandbox.workspace is not workspace:
                raise NotFound(f"sandbox {workspace.sandbox_id} not found")
            if not self._memo(workspace).whole:
                await self._repair(workspace)
            yield await self._read_state(workspace)

    async def _repair(self, workspace: ReviewedWorkspace) -> None:
        """Complete applies that a server which died had started."""
        sandbox_id = workspace.sandbox_id
        for apply in await self._threads.read(
            workspace, self._table.applies, sandbox_id, ApplyState.APPLYING, ApplyState.UNDOING
        ):
            try:
                await self._complete_apply(workspace, apply)
            except Conflict as error:
                log.warning(
                    "failed to complete an undo", extra={"sandbox": workspace.sandbox_id, "error": error.message}
                )
                await self.put(workspace, {}, (apply.id, ApplyState.APPLIED))
        self._memo(workspace).whole = True

    async def _read_state(self, workspace: ReviewedWorkspace) -> ReviewState:
        return await self._threads.read(workspace, self._read_state_now, workspace)

    def _read_state_now(self, workspace: ReviewedWorkspace) -> ReviewState:
        ledger = workspace.ledger
        key, decided = self._table.state(workspace.sandbox_id)
        known = workspace.state
        return ReviewState(ledger, ledger.base, ledger.tip, key, decided, known.large, known.exclude)

    async def put(
        self, workspace: ReviewedWorkspace, decided: dict[bytes, bytes], apply: tuple[str, int] | None = None
    ) -> None:
        """Store decisions and the state of an apply. The caller holds the lock."""
        self._memo(workspace).version += 1
        await self._threads.read(workspace, self._table.put, workspace.sandbox_id, decided, apply)

    def _memo(self, workspace: ReviewedWorkspace) -> _Memo:
        return self._memos.setdefault(workspace, _Memo())

    def _version(self, workspace: ReviewedWorkspace, current: ReviewState) -> StateVersion:
        return current.base, current.tip, self._memo(workspace).version

    def _path_filter(self, workspace: ReviewedWorkspace, moment: StateVersion, hunk: str) -> PathFilter | None:
        """The file of a hunk, if it is known; None: any."""
        memo = self._memo(workspace)
        path = memo.paths.get(hunk) if memo.moment == moment else None
        return None if path is None else lambda delta: delta.path == path
