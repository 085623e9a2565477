"""Reviews: workspaces whose changes are kept, command by command, for somebody to decide about.

A sandbox has one from its `begin` on, and is then looked at before each command, after it, and whenever its files have
been quiet for a moment. One without pays nothing: its `live.tracked` is None."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine import plan
from skerry.engine import review_reading as reading
from skerry.engine.collecting import Made, Tools, collect, save_now
from skerry.engine.faults import passed
from skerry.engine.lanes import Lanes
from skerry.engine.live import Live
from skerry.engine.manifest import Manifest
from skerry.engine.onlookers import Onlooker
from skerry.engine.review_table import ReviewState, ReviewTable, putting
from skerry.engine.snapshots import Grip
from skerry.engine.tracked import MANIFEST, Tracked
from skerry.errors import Conflict, NotFound, SandboxUnavailable, SkerryError
from skerry.keeper import HostShort, Keeper
from skerry.review.git import missing
from skerry.review.ledger import Ledger
from skerry.types import BeginReview, Caller, ReviewEvent, parse_size

log = logging.getLogger("skerry.engine")
T = TypeVar("T")
P = ParamSpec("P")
THREADS = 4
QUIET_MS = 200
DIRTY_MOST_MS = 2_000  # a command that never stops writing is looked at all the same
PAUSE_S = 0.2
RETRY_S = 2.0
TRIES = 3
PACED_AFTER = 20  # entries
PACE_S = 0.25
PACE_MOST_S = 30.0
LEDGER = "ledger.git"
LAST_LOOK_S = 5.0  # before a sandbox is stopped or paused
Use = Callable[[Caller, str], contextlib.AbstractAsyncContextManager[tuple[Live, Keeper]]]
Fail = Callable[[Live, Keeper, SandboxUnavailable], Awaitable[None]]
Hosts = Callable[[str, tuple[str, ...], int], Awaitable[tuple[str, ...]]]


@dataclass(frozen=True)
class Copied:
    """A ledger and what belongs to it, of the sandbox `source`."""

    place: Path
    source: str
    state: ReviewState


class Reviews:
    """`engine.reviews`."""

    def __init__(self, settings: Settings, grip: Grip, use: Use, fail: Fail) -> None:
        self._grip, self._use, self._fail = grip, use, fail
        self._place = settings.state_dir / "ledgers"
        self._sizes = parse_size(settings["review.file"]), parse_size(settings["review.ledger"])
        self._threads = ThreadPoolExecutor(THREADS, "review")  # of its own: starting a sandbox must not wait for git
        self._readers = Lanes("reading")  # nor a command for who looks at what another one changed
        self._beginning: set[str] = set()
        self.hunks: Callable[[Tracked, ReviewEvent], Awaitable[ReviewEvent]] = _as_it_is  # adds them to a change
        self.began: Callable[[Tracked, Keeper], Awaitable[None]] = _nothing  # it has come to run

    async def open(self, table: ReviewTable, hosts: Hosts) -> None:
        """Take up what there is; what belongs to no sandbox goes. One that is damaged harms no other."""
        self.table = table
        self.tools = Tools(self.in_thread, hosts, table, *self._sizes)
        self._place.mkdir(mode=0o700, exist_ok=True)
        states, lives = table.all(), self._grip.lives
        for sandbox in states.keys() - lives.keys():
            table.remove(sandbox)
        kept = {sandbox: state for sandbox, state in states.items() if sandbox in lives}
        for place in self._place.iterdir():
            if place.name not in kept:
                await self.in_thread(_remove, place)
        await asyncio.gather(*(self._take_up(lives[sandbox], state) for sandbox, state in kept.items()))

    async def _take_up(self, live: Live, state: ReviewState) -> None:
        try:
            ledger = await self.in_thread(Ledger.open, self._place / live.row.id / LEDGER)
        except (SkerryError, OSError) as error:
            log.error("the ledger is damaged", extra={"sandbox": live.row.id, "error": str(error)})
            ledger = None
        live.tracked = Tracked(live, state, ledger, self._ended)
        self.follow(live)

    async def close(self) -> None:
        """Nothing of it runs any more."""
        for live in self._grip.lives.values():
            if live.tracked is not None:
                with contextlib.suppress(SkerryError, OSError):
                    await save_now(self.tools, live.tracked)
        self._threads.shutdown()
        self._readers.close()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def read(self, tracked: Tracked, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread, what may take long: its files decide how long."""
        return await self._readers.run(tracked, work, *args, **kwargs)

    # -- beginning and ending -----------------------------------------------------------------------------------------

    async def begin(self, caller: Caller, ref: str, request: BeginReview) -> Tracked:
        """From now on its changes are kept. What is there now is what the user has."""
        if shutil.which("git") is None:
            raise missing()
        async with self._use(caller, ref) as (live, keeper):
            sandbox = live.row.id
            if live.tracked is not None or sandbox in self._beginning:
                raise Conflict(f"{sandbox} has a review already", hint="a new sandbox begins a new one")
            self._beginning.add(sandbox)
            try:
                return await self._grip.uncut(self._begin(live, keeper, request))
            finally:
                self._beginning.discard(sandbox)

    async def _begin(self, live: Live, keeper: Keeper, request: BeginReview) -> Tracked:
        place = self._place / live.row.id
        state = ReviewState(
            path=request.path, begun_at=time.time(), origin=request.origin, head=request.head, ignore=request.ignore,
            tracked=request.tracked, known=request.known,
        )  # fmt: skip
        await self.in_thread(_remove, place)
        try:
            ledger = await self.in_thread(Ledger.create, place / LEDGER)
            passed("review.ledger")
            tracked = Tracked(live, state, ledger, self._ended)
            tracked.manifest = Manifest()
            async with tracked.lock:
                await collect(self.tools, tracked, keeper, base=True)
            passed("review.base")
            if live.keeper is not keeper or live.row.state == "deleting":
                raise live.cut_off()
            self.table.put(live.row.id, tracked.state)
            live.tracked = tracked
            passed("review.row")
        except BaseException:
            await self.in_thread(_remove, place)
            raise
        self.follow(live)
        log.info("review begun", extra={"sandbox": live.row.id})
        return tracked

    async def gone(self, live: Live) -> None:
        """The sandbox was deleted."""
        tracked, live.tracked = live.tracked, None
        if tracked is None:
            return
        tracked.over()
        try:
            self.table.remove(live.row.id)
            async with tracked.lock:
                await self.in_thread(_remove, self._place / live.row.id)
        except (SkerryError, OSError) as error:  # the next server does
            log.error("ledger not removed", extra={"sandbox": live.row.id, "error": str(error)})

    @contextlib.asynccontextmanager
    async def copied(self, live: Live) -> AsyncIterator[Copied | None]:
        """A copy of its ledger for its forks, as it is before their files are taken of it: what came in between is
        found as a change of theirs."""
        tracked = live.tracked
        if tracked is None or not tracked.sound:
            yield None
            return
        await self.before_end(live)
        place = self._place / plan.new_id("copy-")
        try:
            async with tracked.lock:
                await save_now(self.tools, tracked)
                await self.in_thread(_copy, tracked.ledger, place)
                copied = Copied(place, live.row.id, tracked.state)
            yield copied
        finally:
            await self.in_thread(_remove, place)

    async def hand_out(self, copied: Copied, lives: Sequence[Live]) -> None:
        """Each fork has a review of its own from here on. Their rows are there, and say that they are being made."""
        for live in lives:
            ledger = await self.in_thread(Ledger, copied.place / LEDGER)
            await self.in_thread(_copy, ledger, self._place / live.row.id)
        self.table.copy(copied.source, [live.row.id for live in lives])
        for live in lives:
            ledger = await self.in_thread(Ledger.open, self._place / live.row.id / LEDGER)
            live.tracked = Tracked(live, copied.state, ledger, self._ended)

    def rolling_back(self, live: Live, why: str) -> Callable[[sqlite3.Cursor], None]:
        """As part of the transaction that gives a sandbox other files: the next look tells what became of them."""
        tracked = live.tracked
        if tracked is None:
            return lambda cursor: None
        tracked.state = replace(tracked.state, rolled_back=why)
        return putting(live.row.id, tracked.state)

    # -- looking ------------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, ref: str) -> Tracked:
        live = self._grip.find(caller, ref)
        if live.tracked is None:
            raise NotFound(
                f"{live.row.name or live.row.id} has no review",
                hint="a sandbox that is made with --repo, Sandbox(repo=…), has one",
                details={"sandbox": live.row.id},
            )
        return live.tracked

    def of(self, caller: Caller) -> list[Tracked]:
        """Of all sandboxes that the caller may see."""
        lives = (live for live in self._grip.lives.values() if live.row.is_seen_by(caller))
        return [live.tracked for live in lives if live.tracked is not None and live.row.state != "deleting"]

    async def settled(self, caller: Caller, ref: str) -> Tracked:
        """With all in its ledger that was written so far. A sandbox that does not run is not woken for it."""
        tracked = self.get(caller, ref)
        await self.settle(tracked)
        return tracked

    async def settle(self, tracked: Tracked) -> None:
        live, keeper = tracked.live, tracked.live.keeper
        if live.row.state != "running" or keeper is None:
            if tracked.manifest is None and tracked.sound:
                manifest = await self.read(tracked, tracked.load)
                tracked.manifest = tracked.manifest or manifest
            return
        with live.in_use():
            await live.moving.wait()
            try:
                await self._grip.uncut(self._look(tracked, keeper))
            except SandboxUnavailable as error:  # what the ledger has is there all the same
                with contextlib.suppress(SandboxUnavailable):
                    await self._fail(live, keeper, error)

    async def before_command(self, live: Live) -> None:
        """What others did is not this command's. A ledger that can't be written to does not keep it from running."""
        if live.tracked is None or live.keeper is None:
            return
        if live.tracked.followed is live.keeper:
            await live.tracked.begun.wait()  # after a start: what was rejected can be read inside
        if live.keeper is not None and not _in_vain(live.tracked):
            await self._grip.uncut(self._look(live.tracked, live.keeper))

    async def before_end(self, live: Live) -> None:
        """It is about to be stopped, paused or copied: what is not seen now is seen when it runs again."""
        if live.tracked is not None and live.keeper is not None and live.row.state == "running":
            with contextlib.suppress(TimeoutError, SkerryError):
                async with asyncio.timeout(LAST_LOOK_S):
                    await live.moving.wait()
                    await self._grip.uncut(self._look(live.tracked, live.keeper))

    @contextlib.asynccontextmanager
    async def writing(self, live: Live) -> AsyncIterator[None]:
        """A call of the files API."""
        if live.tracked is None:
            yield
            return
        await self.before_command(live)
        with live.tracked.writing(plan.new_id("w-")):
            yield

    async def _look(self, tracked: Tracked, keeper: Keeper) -> None:
        async with tracked.lock:
            if tracked.live.keeper is not keeper or tracked.live.tracked is not tracked:
                return
            tracked.due, tracked.tried_at = False, time.monotonic()
            try:
                made = await collect(self.tools, tracked, keeper)
                tracked.well()
                tracked.alone += made is not None
            except SandboxUnavailable:
                raise
            except (SkerryError, OSError) as error:
                tracked.ill(error.message if isinstance(error, SkerryError) else str(error))
                return
            if made is not None and tracked.watched:
                tracked.telling = self._grip.spawn(self._tell(tracked, made, tracked.telling))

    async def _tell(self, tracked: Tracked, made: Made, before: asyncio.Task[None] | None) -> None:
        """In the order of the commits, and while the next command may run already."""
        if before is not None:
            await asyncio.wait((before,))
        try:
            event = await self.read(tracked, reading.change, tracked, made.commit, made.parent)
            tracked.tell(await self.hunks(tracked, event))
        except (SkerryError, OSError) as error:
            if tracked.live.tracked is tracked:  # else its sandbox was deleted meanwhile
                log.error("not told", extra={"sandbox": tracked.sandbox, "error": str(error)})
                tracked.tell(ReviewEvent(type="lost", sandbox=tracked.sandbox, tip=made.commit))

    def _ended(self, tracked: Tracked) -> None:
        """From the event loop: a command of it, or a call of the files API, has ended."""
        tracked.alone, tracked.stale = 0, True
        if tracked.live.keeper is not None and not tracked.due:
            tracked.due = True
            self._grip.spawn(self._look_beside(tracked, tracked.live.keeper))

    async def _look_beside(self, tracked: Tracked, keeper: Keeper) -> None:
        try:
            await tracked.live.moving.wait()
            if not _in_vain(tracked):
                await self._grip.uncut(self._look(tracked, keeper))
        except SkerryError as error:  # who follows it meets the same, and fails it
            log.debug("not looked at", extra={"sandbox": tracked.sandbox, "error": error.message})
        finally:
            tracked.due = False

    # -- watching -----------------------------------------------------------------------------------------------------

    async def watch(self, caller: Caller, ref: str, since: str | None) -> Onlooker:
        """What is told from now on, and what came after a commit. The sandbox is not in use by that, and not woken."""
        tracked = await self.settled(caller, ref)
        onlooker = tracked.watch()
        try:
            events, tip = await self.read(tracked, reading.earlier, tracked, since)
            onlooker.first([await self.hunks(tracked, event) if event.files else event for event in events], tip)
        except BaseException:
            await onlooker.aclose()
            raise
        return onlooker

    # -- following ----------------------------------------------------------------------------------------------------

    def follow(self, live: Live) -> None:
        """For a sandbox that has come to run. One that is followed already stays so."""
        tracked, keeper = live.tracked, live.keeper
        if tracked is None or keeper is None or not tracked.sound:
            return
        if tracked.following is None or tracked.following.done() or tracked.followed is not keeper:
            tracked.followed, tracked.begun = keeper, asyncio.Event()
            tracked.following = self._grip.spawn(self._follow(tracked, keeper))

    async def _follow(self, tracked: Tracked, keeper: Keeper) -> None:
        live, failures = tracked.live, 0
        try:
            await self.began(tracked, keeper)
        finally:
            tracked.begun.set()
        while _runs(live, keeper) and live.tracked is tracked:
            try:
                await live.moving.wait()
                if tracked.keeper is not keeper or await self._stirs(tracked, keeper):
                    await self._grip.uncut(self._look(tracked, keeper))
                failures = 0
                await asyncio.sleep(RETRY_S if tracked.trouble is not None else _pace(tracked.alone))
            except HostShort:
                await asyncio.sleep(PAUSE_S)
            except SandboxUnavailable as error:
                failures += 1
                if failures >= TRIES and _runs(live, keeper):
                    with contextlib.suppress(SandboxUnavailable):  # somebody else has ended it just now
                        await self._fail(live, keeper, error)
                    return
                await asyncio.sleep(PAUSE_S)
            except SkerryError as error:
                log.warning("not followed", extra={"sandbox": tracked.sandbox, "error": error.message})
                tracked.keeper = None
                await asyncio.sleep(RETRY_S)

    async def _stirs(self, tracked: Tracked, keeper: Keeper) -> bool:
        """Something changed; or, once all is quiet after a command, something may have that no watch tells of: a file
        written through a hard link that lies elsewhere."""
        if await keeper.tracking.wait(tracked.tracker, tracked.seq, QUIET_MS, DIRTY_MOST_MS):
            return True
        if not tracked.stale or tracked.actors.running:
            return False
        tracked.stale, tracked.seq = False, 0
        return True


def _pace(alone: int) -> float:
    """Of commands and services that write again and again, entry after entry with no end of any: the first ones come as
    they are, later ones ever less often."""
    return min(PACE_MOST_S, max(0, alone - PACED_AFTER) * PACE_S)


def _in_vain(tracked: Tracked) -> bool:
    """It could not be kept a moment ago: who follows it tries again; whoever asks for the changes does, too."""
    return tracked.trouble is not None and time.monotonic() - tracked.tried_at < RETRY_S


def _runs(live: Live, keeper: Keeper) -> bool:
    return live.keeper is keeper and live.row.state == "running"


def _copy(ledger: Ledger, place: Path) -> None:
    ledger.copy_to(place / LEDGER)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(ledger.place.parent / MANIFEST, place / MANIFEST)


def _remove(place: Path) -> None:
    """Under another name first: whoever still reads it adds nothing to it."""
    gone = place.with_name(plan.new_id("gone-"))
    with contextlib.suppress(FileNotFoundError):
        place.rename(gone)
        shutil.rmtree(gone)


async def _as_it_is(tracked: Tracked, event: ReviewEvent) -> ReviewEvent:
    return event


async def _nothing(tracked: Tracked, keeper: Keeper) -> None:
    pass
