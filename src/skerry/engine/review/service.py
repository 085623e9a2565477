"""Reviews: workspaces with changes that are recorded command by command, for decisions.

A sandbox has a review from its `begin` on. Changes are collected before each command, after it, and whenever the files
have been quiet for a moment. A sandbox without a review pays nothing: its `workspace` is None."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.concurrency import stream_from_thread
from skerry.engine.database import Database
from skerry.engine.events import Events
from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hook
from skerry.engine.network.gateway import GatewayManager
from skerry.engine.records.trace.service import TraceService
from skerry.engine.repair.quarantine import Quarantine
from skerry.engine.review import views
from skerry.engine.review.collect import Collected, CollectTools, NewCommit, collect, save_now
from skerry.engine.review.commands import LOG
from skerry.engine.review.decisions import DecisionService
from skerry.engine.review.deleted import GONE, DeletedReviews, KeptReview, remove_ledger
from skerry.engine.review.manifest import Manifest
from skerry.engine.review.subscribers import ReviewSubscriber
from skerry.engine.review.tables import DecisionTable, DeletedMark, ReviewRecord, ReviewTable, putting
from skerry.engine.review.threads import ReviewThreads
from skerry.engine.review.workspace import MANIFEST, ReviewedWorkspace
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, NotFound, QuotaExceeded, SandboxUnavailable, SkerryError, UnappliedChanges
from skerry.keeper import HostResourceError, Keeper
from skerry.review.ledger.git import git_missing
from skerry.review.ledger.ledger import Ledger
from skerry.types import BeginReview, Caller, DiffStat, History, ReportedCall, Review, ReviewEvent, parse_size

log = logging.getLogger("skerry.engine")
QUIET_MS = 200
MAX_DIRTY_MS = 2_000  # changes of a command that never stops writing are collected all the same
PAUSE_S = 0.2
RETRY_S = 2.0
TRIES = 3
PACED_AFTER = 20  # entries
PACE_S = 0.25
MAX_PACE_S = 30.0
LEDGER = "ledger.git"
_COPY = "copy-"
_TEMPORARY = (_COPY, GONE)  # prefixes of ledgers that are being copied or removed
FINAL_COLLECT_TIMEOUT_S = 5.0  # before a sandbox is stopped or paused


@dataclass(frozen=True)
class LedgerCopy:
    """A copy of the ledger and manifest of the sandbox `source`."""

    place: Path
    source: str
    state: ReviewRecord


class ReviewService(Hook):
    """`engine.reviews`. `decisions`: decisions about the changes."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        events: Events,
        traces: TraceService,
        gateways: GatewayManager,
        quarantine: Quarantine,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._quarantine, self._registry, self._lifecycle, self._tasks = quarantine, registry, lifecycle, tasks
        self._directory = settings.state_dir / "ledgers"
        self.threads, self.table = ReviewThreads(), ReviewTable(database)
        names = "review.max_file_size", "review.max_ledger_size", "storage.min_free_space"
        self.tools = CollectTools(
            self.threads, gateways, self.table, traces, *(parse_size(settings[name]) for name in names)
        )
        self.decisions = DecisionService(
            self, DecisionTable(database), self.threads, events, registry, lifecycle, tasks
        )
        self.deleted = DeletedReviews(settings, self._directory, self.table, self.threads, events)
        self._beginning: set[str] = set()
        self._unopened: dict[str, ReviewRecord] = {}

    async def open(self) -> None:
        """Load the reviews of an earlier server. Those of sandboxes that were never complete are removed, and unknown
        ledgers go into quarantine. A damaged one harms no other."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        states, sandboxes = self.table.all(), {sandbox.record.id: sandbox for sandbox in self._registry}
        deleted = {sandbox_id: states.pop(sandbox_id) for sandbox_id in states.keys() - sandboxes.keys()}
        for sandbox_id in [sandbox_id for sandbox_id, state in deleted.items() if state.deleted is None]:
            self.table.remove(sandbox_id)
            del deleted[sandbox_id]
        kept = {**states, **deleted}
        unowned = [place for place in self._directory.iterdir() if place.name not in kept]
        leftovers = self._quarantine.leftovers("ledger", (place.name for place in unowned))
        for place in unowned:
            if place.name in leftovers or place.name.startswith(_TEMPORARY):
                await self.threads.in_thread(remove_ledger, place)
            else:
                await self._quarantine.take_ledger(place)
        self._quarantine.set_known("ledger", kept)
        self.deleted.load(deleted)
        self._unopened = states

    def is_unopened(self, sandbox: Sandbox) -> bool:
        """Return whether the sandbox has a review of an earlier server that `adopt` has not opened yet."""
        return sandbox.record.id in self._unopened

    async def adopt(self, sandbox: Sandbox) -> None:
        """Open the review of an earlier server, if the sandbox has one."""
        state = self._unopened.pop(sandbox.record.id, None)
        if state is None:
            return
        try:
            ledger = await self.threads.in_thread(Ledger.open, self._directory / sandbox.record.id / LEDGER)
        except (SkerryError, OSError) as error:
            log.error("the ledger is damaged", extra={"sandbox": sandbox.record.id, "error": str(error)})
            ledger = None
        workspace = sandbox.workspace = ReviewedWorkspace(sandbox, state, ledger, self)
        if state.deleted is not None and sandbox.record.state != "deleting":  # a server died before the deletion
            workspace.keep(self.table, deleted=None)
        self.on_running(sandbox)

    async def close(self) -> None:
        """Nothing of it runs any more."""
        for sandbox in self._registry:
            if sandbox.workspace is not None:
                with contextlib.suppress(SkerryError, OSError):
                    await save_now(self.tools, sandbox.workspace)
        self.threads.close()

    # -- start and end ------------------------------------------------------------------------------------------------

    async def begin(self, caller: Caller, ref: str, request: BeginReview) -> Review:
        """Start a review. The current files are the user's; later changes are recorded."""
        if shutil.which("git") is None:
            raise git_missing()
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            sandbox_id = sandbox.record.id
            if sandbox.workspace is not None or sandbox_id in self._beginning:
                raise Conflict(f"{sandbox_id} already has a review", hint="create another sandbox for another review")
            self._beginning.add(sandbox_id)
            try:
                workspace = await self._tasks.shield(self._begin(sandbox, keeper, request))
            finally:
                self._beginning.discard(sandbox_id)
        return await self.threads.in_thread(views.summary, workspace)

    async def _begin(self, sandbox: Sandbox, keeper: Keeper, request: BeginReview) -> ReviewedWorkspace:
        place = self._directory / sandbox.record.id
        state = ReviewRecord(
            path=request.path, begun_at=time.time(), origin=request.origin, head=request.head, ignore=request.ignore,
            tracked=request.tracked, known=request.known, exclude=request.exclude,
            copied_at=request.copied_at,
        )  # fmt: skip
        self._quarantine.expect("ledger", sandbox.record.id)
        await self.threads.in_thread(remove_ledger, place)
        try:
            ledger = await self.threads.in_thread(Ledger.create, place / LEDGER)
            fault_point("review.ledger")
            workspace = ReviewedWorkspace(sandbox, state, ledger, self)
            workspace.manifest = Manifest()
            async with workspace.lock:
                await collect(self.tools, workspace, keeper, base=True)
            workspace.state = replace(workspace.state, base_size=await self.threads.in_thread(ledger.size))
            fault_point("review.base")
            if sandbox.keeper is not keeper or sandbox.record.state == "deleting":
                raise sandbox.interrupted_error()
            self.table.put(sandbox.record.id, workspace.state)
            sandbox.workspace = workspace
            fault_point("review.record")
        except BaseException:
            await self.threads.in_thread(remove_ledger, place)
            raise
        self.on_running(sandbox)
        log.info("review started", extra={"sandbox": sandbox.record.id})
        return workspace

    async def check_applied(self, sandbox: Sandbox) -> None:
        """Raise UnappliedChanges if the sandbox has accepted changes that were not applied."""
        workspace = sandbox.workspace
        if workspace is None or not workspace.has_ledger:
            return
        accepted, _ = await self.decisions.count_unapplied(workspace)
        if accepted:
            name, hunks = (
                sandbox.record.name or sandbox.record.id,
                "hunk that was" if accepted == 1 else "hunks that were",
            )
            raise UnappliedChanges(
                f"{name} has {accepted} accepted {hunks} not applied",
                hint=f"`skerry apply {name}` applies them; `skerry rm --force {name}` deletes the sandbox anyway",
                details={"sandbox": sandbox.record.id, "accepted": accepted},
            )

    async def reason_to_keep(self, sandbox: Sandbox) -> str | None:
        """Keep a sandbox with accepted changes, but not longer than the review of a deleted one."""
        if sandbox.record.ends_at is not None and time.time() > sandbox.record.ends_at + self.deleted.retention:
            return None
        if sandbox.workspace is None:
            async with sandbox.lock:
                await self.adopt(sandbox)  # it ended while no server was running
        try:
            await self.check_applied(sandbox)
        except UnappliedChanges as error:
            return f"kept because {error.message}"
        return None

    def discard(self, sandbox: Sandbox) -> None:
        """Do not keep the review of a sandbox that is about to be deleted."""
        if sandbox.workspace is not None:
            sandbox.workspace.kept_after_deletion = False

    async def before_delete(self, sandbox: Sandbox) -> None:
        """Mark a review with changes as that of a deleted sandbox, before the sandbox loses its name."""
        if self.is_unopened(sandbox):  # it ended while no server was running
            await self.adopt(sandbox)
        workspace = sandbox.workspace
        if workspace is None or not workspace.has_ledger or not workspace.kept_after_deletion:
            return
        if sandbox.record.state in ("creating", "deleting"):  # a fork that failed, or a repeated deletion
            return
        accepted, files = await self.decisions.count_unapplied(workspace)
        if files:
            size = await self.threads.in_thread(workspace.ledger.size)
            async with workspace.lock:
                mark = DeletedMark(
                    at=time.time(), info=sandbox.record.info(), accepted=accepted, files=files, size=size
                )
                workspace.keep(self.table, deleted=mark)
            fault_point("review.deleted")

    async def restore(self, kept: KeptReview, sandbox: Sandbox) -> None:
        """Give the review of a deleted sandbox to a running one, which has its files already."""
        state = replace(kept.state, deleted=None)
        await self.hand_out(LedgerCopy(kept.place, kept.id, state), (sandbox,))
        self.table.put(sandbox.record.id, state)
        fault_point("review.restored")
        self.on_running(sandbox)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        workspace, sandbox.workspace = sandbox.workspace, None
        if workspace is None:
            return
        workspace.close()
        try:
            async with workspace.lock:  # a decision that is being stored must not come after this
                if workspace.state.deleted is not None:
                    await self.deleted.keep(sandbox.record.id, workspace.state)
                else:
                    self.table.remove(sandbox.record.id)
                    await self.threads.in_thread(remove_ledger, self._directory / sandbox.record.id)
        except (SkerryError, OSError) as error:  # the next server does
            log.error("failed to remove a ledger", extra={"sandbox": sandbox.record.id, "error": str(error)})

    @contextlib.asynccontextmanager
    async def copied(self, sandbox: Sandbox) -> AsyncIterator[LedgerCopy | None]:
        """Yield a copy of the ledger for forks, made before their files are captured: changes in between become changes
        of the forks."""
        workspace = sandbox.workspace
        if workspace is None or not workspace.has_ledger:
            yield None
            return
        await self.before_stop(sandbox)
        place = self._directory / new_id(_COPY)
        try:
            async with workspace.lock:
                await save_now(self.tools, workspace)
                await self.threads.in_thread(_copy, workspace.ledger, place)
                copied = LedgerCopy(place, sandbox.record.id, workspace.state)
            yield copied
        finally:
            await self.threads.in_thread(remove_ledger, place)

    async def hand_out(self, copied: LedgerCopy, sandboxes: Sequence[Sandbox]) -> None:
        """Give each fork a separate review. Their records exist and say `creating`."""
        self._quarantine.expect("ledger", *(sandbox.record.id for sandbox in sandboxes))
        for sandbox in sandboxes:
            ledger = await self.threads.in_thread(Ledger, copied.place / LEDGER)
            await self.threads.in_thread(_copy, ledger, self._directory / sandbox.record.id)
        self.table.copy(copied.source, [sandbox.record.id for sandbox in sandboxes])
        for sandbox in sandboxes:
            ledger = await self.threads.in_thread(Ledger.open, self._directory / sandbox.record.id / LEDGER)
            sandbox.workspace = ReviewedWorkspace(sandbox, copied.state, ledger, self)

    def rolling_back(self, sandbox: Sandbox, why: str) -> Callable[[sqlite3.Cursor], None]:
        """Return work for the transaction that gives a sandbox other files: the next collection records the
        rollback."""
        workspace = sandbox.workspace
        if workspace is None:
            return lambda cursor: None
        workspace.state = replace(workspace.state, rolled_back=why)
        return putting(sandbox.record.id, workspace.state)

    # -- collecting ---------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, ref: str) -> ReviewedWorkspace:
        sandbox = self._registry.find(caller, ref)
        if sandbox.workspace is None:
            raise NotFound(
                f"{sandbox.record.name or sandbox.record.id} has no review",
                hint="a sandbox that is made with --repo, Sandbox(repo=…), has one",
                details={"sandbox": sandbox.record.id},
            )
        return sandbox.workspace

    def of(self, caller: Caller) -> list[ReviewedWorkspace]:
        """Of all sandboxes that the caller may see."""
        sandboxes = (sandbox for sandbox in self._registry if sandbox.record.is_seen_by(caller))
        return [
            sandbox.workspace
            for sandbox in sandboxes
            if sandbox.workspace is not None and sandbox.record.state != "deleting"
        ]

    async def settled(self, caller: Caller, ref: str) -> ReviewedWorkspace:
        """Return the workspace after all changes so far were collected. A sandbox that does not run is not started for
        it."""
        workspace = self.get(caller, ref)
        await self.settle(workspace)
        return workspace

    async def settle(self, workspace: ReviewedWorkspace) -> None:
        sandbox, keeper = workspace.sandbox, workspace.sandbox.keeper
        if sandbox.record.state != "running" or keeper is None:
            if workspace.manifest is None and workspace.has_ledger:
                manifest = await self.threads.read(workspace, workspace.load)
                workspace.manifest = workspace.manifest or manifest
            return
        with sandbox.in_use():
            await sandbox.thawed.wait()
            try:
                await self._tasks.shield(self._collect(workspace, keeper))
            except SandboxUnavailable as error:  # the ledger is readable all the same
                with contextlib.suppress(SandboxUnavailable):
                    await self._lifecycle.fail(sandbox, keeper, error)

    async def before_command(self, sandbox: Sandbox) -> None:
        """Collect earlier changes, which do not belong to this command. A ledger that can't be written does not prevent
        the command."""
        if sandbox.workspace is None or sandbox.keeper is None:
            return
        if sandbox.workspace.followed_keeper is sandbox.keeper:
            await sandbox.workspace.begun.wait()  # after a start: rejections are readable inside by then
        if sandbox.keeper is not None and not _failed_recently(sandbox.workspace):
            await self._tasks.shield(self._collect(sandbox.workspace, sandbox.keeper))

    async def before_stop(self, sandbox: Sandbox) -> None:
        """Collect changes before a stop, pause or copy. Changes missed here are collected when the sandbox runs
        again."""
        if sandbox.workspace is not None and sandbox.keeper is not None and sandbox.record.state == "running":
            with contextlib.suppress(TimeoutError, SkerryError):
                async with asyncio.timeout(FINAL_COLLECT_TIMEOUT_S):
                    await sandbox.thawed.wait()
                    await self._tasks.shield(self._collect(sandbox.workspace, sandbox.keeper))

    async def report(self, caller: Caller, ref: str, process: str, calls: Sequence[ReportedCall]) -> None:
        """Note tool calls of an agent. Changes up to the end of a call are collected before the next report counts. The
        start of one collects nothing: its first changes may be there already."""
        workspace = self.get(caller, ref)
        if workspace.report(process, calls):
            workspace.needs_full_scan = True
            await self.settle(workspace)

    @contextlib.asynccontextmanager
    async def writing(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """A call of the files API."""
        if sandbox.workspace is None:
            yield
            return
        await self.before_command(sandbox)
        with sandbox.workspace.writing(new_id("w-")):
            yield

    async def _collect(self, workspace: ReviewedWorkspace, keeper: Keeper) -> None:
        async with workspace.lock:
            if workspace.sandbox.keeper is not keeper or workspace.sandbox.workspace is not workspace:
                return
            workspace.collect_pending, workspace.tried_at = False, time.monotonic()
            try:
                collected = await collect(self.tools, workspace, keeper)
                workspace.clear_trouble()
                workspace.background_commits += collected.commit is not None
            except SandboxUnavailable:
                raise
            except (SkerryError, OSError) as error:
                workspace.report_trouble(error.message if isinstance(error, SkerryError) else str(error))
                if isinstance(error, QuotaExceeded):
                    await self.deleted.purge()
                return
            self.announce(workspace, collected)

    def announce(self, workspace: ReviewedWorkspace, collected: Collected) -> None:
        """Publish a new commit and ended commands to the subscribers, in the background."""
        if workspace.watched and (collected.commit is not None or collected.ended):
            workspace.publish_task = self._tasks.spawn(self._publish(workspace, collected, workspace.publish_task))

    async def _publish(
        self, workspace: ReviewedWorkspace, collected: Collected, before: asyncio.Task[None] | None
    ) -> None:
        """In the order of the commits, and while the next command may run already."""
        if before is not None:
            await asyncio.wait((before,))
        made = collected.commit
        if made is not None:
            await self._publish_change(workspace, made)
        for command in collected.ended:
            if command.within is None and (made is None or command.id != made.alone):
                workspace.publish(
                    ReviewEvent(type="command", sandbox=workspace.sandbox_id, tip="", entry=views.command(command))
                )

    async def _publish_change(self, workspace: ReviewedWorkspace, made: NewCommit) -> None:
        try:
            event = await self.threads.read(workspace, views.change, workspace, made.commit, made.parent)
            workspace.publish(await self.decisions.with_hunks(workspace, event))
        except (SkerryError, OSError) as error:
            if workspace.sandbox.workspace is workspace:  # else its sandbox was deleted meanwhile
                log.error("failed to publish a change", extra={"sandbox": workspace.sandbox_id, "error": str(error)})
                workspace.publish(ReviewEvent(type="lost", sandbox=workspace.sandbox_id, tip=made.commit))

    def command_ended(self, workspace: ReviewedWorkspace) -> None:
        """From the event loop: a command of it, or a call of the files API, has ended."""
        workspace.background_commits, workspace.needs_full_scan = 0, True
        if workspace.sandbox.keeper is not None and not workspace.collect_pending:
            workspace.collect_pending = True
            self._tasks.spawn(self._collect_in_background(workspace, workspace.sandbox.keeper))

    async def _collect_in_background(self, workspace: ReviewedWorkspace, keeper: Keeper) -> None:
        try:
            await workspace.sandbox.thawed.wait()
            if not _failed_recently(workspace):
                await self._tasks.shield(self._collect(workspace, keeper))
        except SkerryError as error:  # the follow task gets the same error and fails the sandbox
            log.debug("failed to collect changes", extra={"sandbox": workspace.sandbox_id, "error": error.message})
        finally:
            workspace.collect_pending = False

    # -- reading ------------------------------------------------------------------------------------------------------

    async def stat(self, caller: Caller, ref: str, paths: Sequence[bytes]) -> DiffStat:
        workspace = await self.settled(caller, ref)
        return await self.threads.read(workspace, views.stat, workspace, paths)

    async def diff(self, caller: Caller, ref: str, paths: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
        """Return the patch, piece by piece."""
        workspace = await self.settled(caller, ref)
        pieces = await self.threads.in_thread(views.diff, workspace, paths)
        return stream_from_thread(partial(self.threads.read, workspace), pieces)

    async def history(
        self, caller: Caller, ref: str, since: str | None, paths: Sequence[bytes], limit: int, patch: bool
    ) -> History:
        workspace = await self.settled(caller, ref)
        return await self.threads.read(workspace, views.history, workspace, since, paths, limit, patch)

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self, caller: Caller, ref: str, since: str | None) -> ReviewSubscriber:
        """Subscribe to events from now on, and after the given commit. The sandbox is not in use by that, and not
        started."""
        workspace = await self.settled(caller, ref)
        subscriber = workspace.watch()
        try:
            events, tip = await self.threads.read(workspace, views.earlier, workspace, since)
            subscriber.first(
                [await self.decisions.with_hunks(workspace, event) if event.files else event for event in events], tip
            )
        except BaseException:
            await subscriber.aclose()
            raise
        return subscriber

    # -- following ----------------------------------------------------------------------------------------------------

    def on_running(self, sandbox: Sandbox) -> None:
        """Follow the changes of its workspace, unless that happens already."""
        workspace, keeper = sandbox.workspace, sandbox.keeper
        if workspace is None or keeper is None or not workspace.has_ledger:
            return
        if workspace.follow_task is None or workspace.follow_task.done() or workspace.followed_keeper is not keeper:
            workspace.followed_keeper, workspace.begun = keeper, asyncio.Event()
            workspace.follow_task = self._tasks.spawn(self._follow(workspace, keeper))

    async def _follow(self, workspace: ReviewedWorkspace, keeper: Keeper) -> None:
        sandbox, failures = workspace.sandbox, 0
        try:
            await self.decisions.write_rejections(workspace, keeper)
        finally:
            workspace.begun.set()
        while _runs(sandbox, keeper) and sandbox.workspace is workspace:
            try:
                await sandbox.thawed.wait()
                if workspace.keeper is not keeper or await self._wait_for_changes(workspace, keeper):
                    await self._tasks.shield(self._collect(workspace, keeper))
                failures = 0
                await asyncio.sleep(RETRY_S if workspace.trouble is not None else _pace(workspace.background_commits))
            except HostResourceError:
                await asyncio.sleep(PAUSE_S)
            except SandboxUnavailable as error:
                failures += 1
                if failures >= TRIES and _runs(sandbox, keeper):
                    with contextlib.suppress(SandboxUnavailable):  # it was ended by another task just now
                        await self._lifecycle.fail(sandbox, keeper, error)
                    return
                await asyncio.sleep(PAUSE_S)
            except SkerryError as error:
                log.warning("failed to follow changes", extra={"sandbox": workspace.sandbox_id, "error": error.message})
                workspace.keeper = None
                await asyncio.sleep(RETRY_S)

    async def _wait_for_changes(self, workspace: ReviewedWorkspace, keeper: Keeper) -> bool:
        """Wait for changes. Once all is quiet after a command, also return True for a full scan: no inotify watch
        reports a file that was written through a hard link elsewhere."""
        if await keeper.tracking.wait(workspace.tracker, workspace.seq, QUIET_MS, MAX_DIRTY_MS):
            return True
        if not workspace.needs_full_scan or workspace.writers.running:
            return False
        workspace.needs_full_scan, workspace.seq = False, 0
        return True


def _pace(alone: int) -> float:
    """Of commands and services that write again and again, entry after entry with no end of any: the first ones come as
    they are, later ones ever less often."""
    return min(MAX_PACE_S, max(0, alone - PACED_AFTER) * PACE_S)


def _failed_recently(workspace: ReviewedWorkspace) -> bool:
    """Return whether a collection failed a moment ago: the follow task and explicit requests try again."""
    return workspace.trouble is not None and time.monotonic() - workspace.tried_at < RETRY_S


def _runs(sandbox: Sandbox, keeper: Keeper) -> bool:
    return sandbox.keeper is keeper and sandbox.record.state == "running"


def _copy(ledger: Ledger, place: Path) -> None:
    ledger.copy_to(place / LEDGER)
    for name in (MANIFEST, LOG):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(ledger.path.parent / name, place / name)
