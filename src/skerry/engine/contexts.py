"""Contexts of code: the memory of a language that lasts from run to run. Their records, whose turn it is in each, and
their ends. How one remembers is its language's: a kernel (`kernels`), or a session of a shell."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec.structs import replace

from skerry.code.table import Language
from skerry.config import Settings
from skerry.engine import plan
from skerry.engine.code_runs import CodeRun
from skerry.engine.context_table import ContextRow, ContextTable
from skerry.engine.database import Database
from skerry.engine.languages import Languages
from skerry.engine.live import Live
from skerry.engine.processes import Find, Use
from skerry.engine.turns import Line
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.keeper import Keeper
from skerry.types import Caller, CodeRequest, ContextInfo, ContextRequest, parse_span

log = logging.getLogger("skerry.engine")
TICK_S: Final = 1.0


class Seat(Line):
    """What the server holds of one context. `running`: the process of the run whose turn it is. `ending`: why its
    memory is being taken from it in the middle of a run, of which `ended` is told then. `gone`: it was deleted, also
    for those who still wait."""

    what = "context"

    def __init__(self, row: ContextRow) -> None:
        super().__init__()
        self.row = row
        self.running: str | None = None
        self.pid: int | None = None  # its kernel's, as far as this server has seen it
        self.told: dict[str, tuple[int, float]] = {}  # files that its last run made
        self.ending: str | None = None
        self.ended: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.signal: Callable[[str], Coroutine[Any, Any, None]] | None = None  # to that run, and to none after it
        self.gone = False
        self.adopted = row.process is not None  # a server before this one may have left a run in it
        self.used = time.monotonic() - max(0.0, time.time() - row.used_at)


@dataclass(frozen=True)
class Asked:
    """A run whose turn it is. `version`: what was found there, if one was asked for. `seat`: the context's, whose turn
    the run gives back when it is over; None: it leaves no memory behind."""

    caller: Caller
    live: Live
    keeper: Keeper
    language: Language
    version: str | None
    request: CodeRequest
    seat: Seat | None


class Memory(Protocol):
    """How contexts of a kind remember."""

    async def run(self, asked: Asked) -> CodeRun:
        """The turn is the run's from here on, unless this raises."""

    def lives(self, live: Live, seat: Seat) -> bool:
        """Whether it has anything in memory now."""

    async def forget(self, live: Live, keeper: Keeper, seat: Seat) -> None:
        """End what has its memory, also in the middle of a run."""

    async def is_at_work(self, keeper: Keeper, seat: Seat) -> bool:
        """Whether it does something by itself, between two runs."""


class Contexts:
    """`engine.contexts`. `find` gives a caller's sandbox, `use` a running one for one call, `spawn` does work beside.
    Only what has to reach a kernel wakes a sandbox."""

    def __init__(
        self,
        settings: Settings,
        find: Find,
        use: Use,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        languages: Languages,
    ) -> None:
        self._most: int = settings["contexts.most"]
        self._idle: str = settings["contexts.idle"]
        self._find, self._use, self._spawn, self._languages = find, use, spawn, languages
        self._seats: dict[str, dict[str, Seat]] = {}
        self.memories: dict[str, Memory] = {}
        self.started: set[str] = set()  # kernels that this server started, and that may live

    def begin(self, database: Database, lives: Mapping[str, Live]) -> None:
        """Take up what there is; what belongs to no sandbox goes."""
        self._table, self._all = ContextTable(database), lives
        for sandbox, row in self._table.all():
            if (live := lives.get(sandbox)) is None:
                self._table.remove(sandbox)
                continue
            self._seats.setdefault(sandbox, {})[row.name] = Seat(row)
            if row.process is not None and (row.process in live.work.running or live.row.state == "paused"):
                live.work.rest(row.process)
        self._unswept = {sandbox for sandbox, live in lives.items() if is_up(live)}
        self._spawn(self._watch())

    def gone(self, sandbox: str) -> None:
        """The sandbox was deleted."""
        if self._seats.pop(sandbox, None) is not None:
            self._table.remove(sandbox)

    # -- for the API --------------------------------------------------------------------------------------------------

    async def open(self, caller: Caller, ref: str, request: ContextRequest) -> ContextInfo:
        live = self._find(caller, ref)
        language, version = self._languages.find(live, request.language)
        if not language.context:
            raise InvalidRequest(f"language: {language.name} has no contexts", hint="its code is run as a whole")
        if version is not None:
            async with self._use(caller, ref) as (live, keeper):
                await self._languages.check(live, keeper, language, version)
        if request.name in self._languages.table and request.name != language.name:
            raise InvalidRequest(f"name: {request.name!r} is the default context of that language", hint="another name")
        seat = self._make(live, language, request)
        return self._info(live, seat)

    def list(self, caller: Caller, ref: str) -> builtins.list[ContextInfo]:
        live = self._find(caller, ref)
        return [self._info(live, seat) for seat in self._seats.get(live.row.id, {}).values()]

    def get(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        live = self._find(caller, ref)
        return self._info(live, self.seat(live, name))

    async def restart(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        """It remembers nothing any more. What runs in it is ended."""
        live = self._find(caller, ref)
        seat = self.seat(live, name)
        await self._forget(caller, live, seat, "it was restarted")
        return self._info(live, seat)

    async def delete(self, caller: Caller, ref: str, name: str) -> None:
        live = self._find(caller, ref)
        seat = self.seat(live, name)
        seat.gone = True
        try:
            await self._forget(caller, live, seat, "it was deleted")
        except BaseException:
            seat.gone = self._seats.get(live.row.id, {}).get(name) is not seat
            raise
        if self._seats.get(live.row.id, {}).get(name) is seat:
            del self._seats[live.row.id][name]
            self._table.remove(live.row.id, name)

    async def interrupt(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        """What runs in it is interrupted; what it remembers stays. If nothing runs, nothing happens."""
        live = self._find(caller, ref)
        seat = self.seat(live, name)
        if (process := seat.running) is not None:
            async with self._use(caller, ref) as (live, keeper):
                with contextlib.suppress(NotFound, Conflict):
                    await (seat.signal("INT") if seat.signal is not None else keeper.signal(process, "INT"))
        return self._info(live, seat)

    # -- for runs -----------------------------------------------------------------------------------------------------

    def seat(self, live: Live, name: str) -> Seat:
        seat = self._seats.get(live.row.id, {}).get(name)
        if seat is None:
            raise not_there(name)
        return seat

    def default(self, live: Live, language: Language) -> Seat:
        """The context that runs what names none, made if need be."""
        seat = self._seats.get(live.row.id, {}).get(language.name)
        return seat or self._make(live, language, ContextRequest(language=language.name, name=language.name))

    def note(self, live: Live, seat: Seat, **changes: Any) -> None:
        """Another record; not of one that was deleted meanwhile. On a full disk the next one's turn comes all the same:
        a server after this one takes a kernel that it finds no record of for one that was left behind."""
        seat.row = replace(seat.row, **changes)
        try:
            if not seat.gone and not live.deleted:
                self._table.put(live.row.id, seat.row)
        except sqlite3.Error as error:
            log.error("not noted", extra={"sandbox": live.row.id, "context": seat.row.name, "error": str(error)})

    # -- inner workings -----------------------------------------------------------------------------------------------

    def _make(self, live: Live, language: Language, request: ContextRequest) -> Seat:
        mine, now, spec = self._seats.setdefault(live.row.id, {}), time.time(), live.row.spec
        name = request.name or plan.new_id(f"{language.name}-")
        if name in mine:
            raise Conflict(
                f"there is a context {name!r} already", hint="use it, or delete it", details={"context": name}
            )
        self._make_room(live, mine)
        row = ContextRow(
            name=name, language=language.name, user=request.user or spec.user, cwd=request.cwd or spec.cwd,
            env=request.env, created_at=now, used_at=now, default=name == language.name, made_up=request.name is None,
        )  # fmt: skip
        self._table.put(live.row.id, row)
        mine[name] = Seat(row)
        return mine[name]

    def _make_room(self, live: Live, mine: dict[str, Seat]) -> None:
        """What nobody named, and remembers nothing any more, gives way."""
        if len(mine) < self._most:
            return
        idle = [seat for seat in mine.values() if seat.row.made_up and seat.row.lost and not seat.busy]
        for seat in sorted(idle, key=lambda seat: seat.used)[: len(mine) - self._most + 1]:
            seat.gone = True
            del mine[seat.row.name]
            self._table.remove(live.row.id, seat.row.name)
        if len(mine) >= self._most:
            raise QuotaExceeded(
                f"the sandbox has {len(mine)} contexts already", hint="delete some; the setting contexts.most"
            )

    def _memory(self, live: Live, seat: Seat) -> Memory | None:
        """None: of a language that is not in the table any more."""
        language = self._languages.table.get(seat.row.language)
        return self.memories.get(language.kernel or "") if language is not None else None

    def _is_there(self, live: Live, seat: Seat) -> bool:
        memory = self._memory(live, seat)
        return memory is not None and memory.lives(live, seat)

    def _info(self, live: Live, seat: Seat) -> ContextInfo:
        row, alive = seat.row, self._is_there(live, seat)
        lost = row.lost
        if not alive and row.process is not None and seat.running is None:
            lost = lost_with(live) if live.row.started_at != row.since or not is_up(live) else "its process is gone"
        return ContextInfo(
            name=row.name, language=row.language, user=row.user, cwd=row.cwd, created_at=row.created_at,
            used_at=row.used_at, default=row.default, version=row.version, runs=row.runs, waiting=seat.waiting,
            state="busy" if seat.running is not None or seat.waiting else "idle" if alive else "new",
            process=seat.running or (row.process if alive else None), pid=seat.pid if alive else None, lost=lost,
        )  # fmt: skip

    async def _forget(self, caller: Caller, live: Live, seat: Seat, why: str) -> None:
        """Also of a run that has its turn and only just begins. A kernel that is started meanwhile is not meant."""
        memory, process = self._memory(live, seat), seat.row.process
        in_turn = seat.running is not None or (seat.turn.locked() and is_up(live))
        if memory is not None and (in_turn or self._is_there(live, seat)):
            seat.ending = why
            try:
                async with self._use(caller, live.row.id) as (live, keeper):
                    await memory.forget(live, keeper, seat)
            finally:
                if seat.running is None:
                    seat.ending = None
        if seat.row.process == process:
            self.note(live, seat, process=None, lost=why if seat.row.runs else None)

    async def _watch(self) -> None:
        """Idle ones go, and what servers before this one left behind."""
        idle_s = parse_span(self._idle)
        while True:
            awake = [live for live in self._all.values() if live.row.state == "running" and live.moving.is_set()]
            for live in awake:
                if live.row.id in self._unswept:
                    self._unswept.discard(live.row.id)
                    self._spawn(self._sweep(live))
                self._look(live, idle_s)
            await asyncio.sleep(TICK_S)

    def _look(self, live: Live, idle_s: float) -> None:
        now = time.monotonic()
        for seat in self._seats.get(live.row.id, {}).values():
            if now - seat.used > idle_s and not seat.busy and self._is_there(live, seat):
                seat.used = now  # one that can't be ended now is tried again after as long
                self._spawn(self._end_idle(live, seat))

    async def _sweep(self, live: Live) -> None:
        """Kernels that no context has: their runs' callers left with the server that ran them. In those that one has, a
        run may still be under way for nobody."""
        seats, keeper = self._seats.get(live.row.id, {}), live.keeper
        if keeper is None:
            return
        try:
            listed = await keeper.processes()
            mine = self.started | {seat.row.process for seat in seats.values()}
            for process in listed:
                if process.channel and process.state == "running" and process.id not in mine:
                    await keeper.signal(process.id, "KILL")
            for seat in [seat for seat in seats.values() if seat.adopted and seat.row.process and not seat.busy]:
                async with seat.turn:
                    if seat.adopted and self._is_there(live, seat):
                        seat.adopted = False
                        await keeper.signal(seat.row.process or "", "INT")
        except SkerryError as error:
            log.warning("not swept", extra={"sandbox": live.row.id, "error": error.message})

    async def _end_idle(self, live: Live, seat: Seat) -> None:
        memory, keeper = self._memory(live, seat), live.keeper
        if memory is None or keeper is None or seat.busy:
            return
        async with seat.turn:
            try:
                if not await memory.is_at_work(keeper, seat):
                    await memory.forget(live, keeper, seat)
                    self.note(live, seat, process=None, lost=f"it was idle for {self._idle}")
            except SkerryError as error:
                log.warning("not ended", extra={"sandbox": live.row.id, "context": seat.row.name, "error": str(error)})


def not_there(name: str) -> NotFound:
    hint = "code.context(language, name) makes one; deleted ones are gone"
    return NotFound(f"there is no context {name[:80]!r}", hint=hint, details={"context": name[:80]})


def is_up(live: Live) -> bool:
    return live.row.state in ("running", "paused")


def lost_with(live: Live) -> str:
    """Why the sandbox's kernels are gone."""
    return "the sandbox was stopped" + (f": {live.ended_because}" if live.ended_because else "")
