"""Decisions: what somebody says of the hunks of a review, and what follows from it.

Whoever decides, or says what has landed, holds the review's lock: the base, the tip and what is decided belong
together. What was answered is on disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import msgspec

from skerry.engine import explaining, telling
from skerry.engine.database import Database
from skerry.engine.decision_table import LANDED, LANDING, LEAVING, UNDONE, Apply, DecisionTable
from skerry.engine.faults import passed
from skerry.engine.pulling import pulled
from skerry.engine.rejections import REJECTED_S, rejections
from skerry.engine.reviews import Reviews, Use
from skerry.engine.snapshots import Uncut
from skerry.engine.tracked import Tracked
from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.keeper import Keeper
from skerry.review.deciding import decide
from skerry.review.facts import Facts
from skerry.review.offers import Offer, decode_offer, landed, offered, taken_back
from skerry.review.survey import Chosen, Ground, below
from skerry.types import (
    Accepted,
    AppliedRequest,
    Caller,
    Decided,
    DecideRequest,
    Hunk,
    HunkState,
    Review,
    ReviewEvent,
    Why,
)

log = logging.getLogger("skerry.engine")


Moment = tuple[str, str, int]
"""The base, the tip, and how often something was decided."""


@dataclass
class _Desk:
    """What is remembered of a review while it is there. `paths`: which file each hunk is of, as of a moment. `whole`:
    what was applied was carried through. `inside`: what stands in its review.json."""

    version: int = 0
    moment: Moment | None = None
    paths: dict[str, bytes] = field(default_factory=dict)
    whole: bool = False
    inside: bytes | None = None
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)


class Decisions:
    """`engine.decisions`."""

    def __init__(self, reviews: Reviews, database: Database, use: Use, uncut: Uncut) -> None:
        self._reviews, self._use, self._uncut = reviews, use, uncut
        self._table = DecisionTable(database)
        self._desks: WeakKeyDictionary[Tracked, _Desk] = WeakKeyDictionary()
        reviews.hunks = self._with_hunks
        reviews.began = self.tell_inside

    # -- looking ------------------------------------------------------------------------------------------------------

    async def review(
        self, caller: Caller, ref: str, paths: Sequence[bytes] = (), state: HunkState | None = None
    ) -> Review:
        tracked = await self._reviews.settled(caller, ref)
        ground, moment = await self._ground(tracked)
        applied = [decode_offer(one.body) for one in self._table.applies(tracked.sandbox, LANDED)]
        found = await self._reviews.read(tracked, telling.review, tracked, ground, below(paths), state, applied)
        if not paths:
            desk = self._desk(tracked)
            desk.moment, desk.paths = moment, found.paths
        return found.review

    async def hunk(self, caller: Caller, ref: str, name: str) -> Hunk:
        """All of it, however long."""
        tracked = await self._reviews.settled(caller, ref)
        ground, moment = await self._ground(tracked)
        chosen = self._where(tracked, moment, name)
        found = await self._reviews.read(tracked, telling.hunk, ground, chosen, name)
        if found is None:
            raise NotFound(f"there is no hunk {name}", hint="its content changed, or it was applied: look again")
        return found

    async def why(self, caller: Caller, ref: str, name: str) -> Why:
        """Which commands made it, and what they printed, as far as that is kept. A sandbox that does not run is not
        woken for it."""
        tracked = await self._reviews.settled(caller, ref)
        ground, moment = await self._ground(tracked)
        chosen = self._where(tracked, moment, name)
        found = await self._reviews.read(tracked, explaining.origin, ground, chosen, name)
        if found is None:
            raise NotFound(f"there is no hunk {name}", hint="its content changed, or it was applied: look again")
        hunk, entries = found
        processes = explaining.named(entries)
        if tracked.live.row.state != "running":
            output = dict.fromkeys(processes, explaining.ASLEEP)
        else:
            async with self._use(caller, tracked.sandbox) as (_, keeper):
                output = {process: await explaining.printed(keeper, process) for process in processes}
        return Why(hunk=hunk, entries=tuple(entries), output=output)

    async def accepted(self, caller: Caller, ref: str, paths: Sequence[bytes] = ()) -> Accepted:
        """What is to land; it is known again by its digest when it has."""
        tracked = await self._reviews.settled(caller, ref)
        return await self._uncut(self._accepted(tracked, paths))

    async def _accepted(self, tracked: Tracked, paths: Sequence[bytes]) -> Accepted:
        async with self._held(tracked) as ground:
            offer = await self._reviews.read(tracked, offered, ground, below(paths))
            if offer.files:
                self._table.offer(tracked.sandbox, offer.digest, msgspec.msgpack.encode(offer))
        return await self._reviews.read(tracked, telling.accepted, tracked, offer)

    async def blob(self, caller: Caller, ref: str, oid: str) -> tuple[int, AsyncGenerator[bytes, None]]:
        """A content by its object id: how long it is, and its bytes."""
        tracked = self._reviews.get(caller, ref)
        size = await self._reviews.read(tracked, tracked.ledger.size_of, oid)
        pieces = await self._reviews.read(tracked, tracked.ledger.blob, oid)
        return size, pulled(partial(self._reviews.read, tracked), telling.whole(pieces))

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def decide(self, caller: Caller, ref: str, request: DecideRequest) -> Decided:
        tracked = await self._reviews.settled(caller, ref)
        return await self._uncut(self._decide(tracked, request))

    async def _decide(self, tracked: Tracked, request: DecideRequest) -> Decided:
        desk = self._desk(tracked)
        async with self._held(tracked) as ground:
            fresh = desk.moment == self._moment(tracked, ground)
            known = desk.paths if fresh else {}
            outcome = await self._reviews.read(tracked, decide, ground, request, known, time.time())
            if outcome.decided:
                self._put(tracked, outcome.decided)
            if fresh:
                desk.moment = self._moment(tracked, ground)
                desk.paths.update({unit.id: one.delta.path for one, _ in outcome.files for unit in one.units})
        decided = await self._reviews.read(tracked, telling.decided, outcome)
        if decided.hunks:
            tracked.tell(ReviewEvent(type="decision", sandbox=tracked.sandbox, tip=ground.tip, hunks=decided.hunks))
            await self.tell_inside(tracked)
        return decided

    # -- landing ------------------------------------------------------------------------------------------------------

    async def applied(self, caller: Caller, ref: str, request: AppliedRequest) -> None:
        """It has landed at the client: that is what the user has now."""
        tracked = self._reviews.get(caller, ref)
        await self._uncut(self._applied(tracked, request))

    async def _applied(self, tracked: Tracked, request: AppliedRequest) -> None:
        async with self._held(tracked):
            before = self._table.apply(tracked.sandbox, request.id)
            if before is not None:
                if request.digest not in (None, decode_offer(before.body).digest):
                    raise Conflict("id: it was used for another apply", hint="a new one for each")
                return
            if request.digest is None:
                raise InvalidRequest("digest: which offer was applied is missing", hint="as …/review/accepted gave it")
            body = self._table.offered(tracked.sandbox, request.digest)
            if body is None:
                raise NotFound("what was applied is not known here", hint="`digest` as …/review/accepted gave it")
            offer = decode_offer(body)
            if request.hunks and set(request.hunks) != {hunk for file in offer.files for hunk in file.hunks}:
                raise InvalidRequest("hunks: not those of that digest")
            apply = Apply(request.id, LANDING, body)
            self._table.begin(tracked.sandbox, apply)
            passed("applied.row")
            await self._carry_through(tracked, apply)
        await self._told(tracked, offer, "applied")

    async def unapplied(self, caller: Caller, ref: str, request: AppliedRequest) -> None:
        """It was taken back there: what was accepted is accepted again."""
        tracked = self._reviews.get(caller, ref)
        await self._uncut(self._unapplied(tracked, request))

    async def _unapplied(self, tracked: Tracked, request: AppliedRequest) -> None:
        async with self._held(tracked):
            apply = self._table.apply(tracked.sandbox, request.id)
            if apply is None:
                raise NotFound("that apply is not known here", hint="tell of an apply first, then that it was undone")
            if apply.state == UNDONE:
                return
            leaving = Apply(apply.id, LEAVING, apply.body)
            self._table.put(tracked.sandbox, {}, (apply.id, LEAVING))
            try:
                await self._carry_through(tracked, leaving)
            except SkerryError:
                self._table.put(tracked.sandbox, {}, (apply.id, LANDED))
                raise
        await self._told(tracked, decode_offer(apply.body), "accepted")

    async def _carry_through(self, tracked: Tracked, apply: Apply) -> None:
        """The base first, then what is decided: a server that dies in between does the same again."""
        ground, offer = await self._now(tracked), decode_offer(apply.body)
        landing = apply.state == LANDING
        said = Facts(kind="applied" if landing else "unapplied", at=time.time(), note=f"{apply.id} {offer.digest}")
        work = landed if landing else taken_back
        _, decided = await self._reviews.read(tracked, work, ground, offer, said)
        passed("applied.base")
        self._put(tracked, decided, (apply.id, LANDED if landing else UNDONE))
        passed("applied.done")

    async def _told(self, tracked: Tracked, offer: Offer, state: HunkState) -> None:
        hunks = tuple(msgspec.structs.replace(hunk, state=state) for hunk in offer.shown)
        tracked.tell(ReviewEvent(type="decision", sandbox=tracked.sandbox, tip=offer.tip, hunks=hunks))
        await self.tell_inside(tracked)

    # -- for who works inside -----------------------------------------------------------------------------------------

    async def tell_inside(self, tracked: Tracked, keeper: Keeper | None = None) -> None:
        """/run/skerry/review.json: what was rejected. `keeper`: it is new, and nothing stands there yet."""
        live, desk = tracked.live, self._desk(tracked)
        if live.row.state != "running" or live.keeper is None or not tracked.sound:
            return
        try:
            async with asyncio.timeout(REJECTED_S), desk.telling:
                ground, _ = await self._ground(tracked)
                content = await self._reviews.read(tracked, rejections, ground)
                if content == (desk.inside if keeper is None else None) or not (ground.decided or desk.inside):
                    return
                with live.in_use():
                    await live.moving.wait()
                    await live.keeper.put_review(content)
                desk.inside = content
        except (SkerryError, OSError, TimeoutError) as error:  # root inside may be in the way, which is its own loss
            log.warning("rejections not told inside", extra={"sandbox": tracked.sandbox, "error": str(error)})

    async def _with_hunks(self, tracked: Tracked, event: ReviewEvent) -> ReviewEvent:
        ground, _ = await self._ground(tracked)
        return await self._reviews.read(tracked, telling.with_hunks, ground, event)

    # -- the ground ---------------------------------------------------------------------------------------------------

    async def _ground(self, tracked: Tracked) -> tuple[Ground, Moment]:
        async with self._held(tracked) as ground:
            return ground, self._moment(tracked, ground)

    @asynccontextmanager
    async def _held(self, tracked: Tracked) -> AsyncIterator[Ground]:
        async with tracked.lock:
            if tracked.live.tracked is not tracked:
                raise NotFound(f"there is no sandbox {tracked.sandbox}")
            if not self._desk(tracked).whole:
                await self._repair(tracked)
            yield await self._now(tracked)

    async def _repair(self, tracked: Tracked) -> None:
        """What a server that died had begun."""
        for apply in self._table.applies(tracked.sandbox, LANDING, LEAVING):
            try:
                await self._carry_through(tracked, apply)
            except Conflict as error:
                log.warning("not taken back", extra={"sandbox": tracked.sandbox, "error": error.message})
                self._table.put(tracked.sandbox, {}, (apply.id, LANDED))
        self._desk(tracked).whole = True

    async def _now(self, tracked: Tracked) -> Ground:
        ledger, sandbox = tracked.ledger, tracked.sandbox
        base, tip = await self._reviews.in_thread(lambda: (ledger.base, ledger.tip))
        return Ground(ledger, base, tip, self._table.key(sandbox), self._table.decided(sandbox), tracked.state.large)

    def _put(self, tracked: Tracked, decided: dict[bytes, bytes], apply: tuple[str, int] | None = None) -> None:
        self._table.put(tracked.sandbox, decided, apply)
        self._desk(tracked).version += 1

    def _desk(self, tracked: Tracked) -> _Desk:
        return self._desks.setdefault(tracked, _Desk())

    def _moment(self, tracked: Tracked, ground: Ground) -> Moment:
        return ground.base, ground.tip, self._desk(tracked).version

    def _where(self, tracked: Tracked, moment: Moment, hunk: str) -> Chosen | None:
        """The file of a hunk, if it is known; None: any."""
        desk = self._desk(tracked)
        path = desk.paths.get(hunk) if desk.moment == moment else None
        return None if path is None else lambda delta: delta.path == path
