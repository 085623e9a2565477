"""Hears what a sandbox's keeper tells of its processes, for as long as the sandbox runs: one connection that is silent
while nothing happens, so that nobody has to ask, and an idle sandbox is not woken.

A frozen keeper says nothing, and the connection outlasts that. What was told while nobody listened comes first on the
next connection; what a keeper has forgotten by then is found out from its list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from msgspec.structs import replace

from skerry.engine.events import Events, News
from skerry.engine.live import Live
from skerry.engine.runs import process_info
from skerry.engine.work import is_killed
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import EventsHello, HostShort, Keeper, KeeperLied, Process, ProcessEvent
from skerry.types import ProcessInfo

AT_ONCE = 100  # events that are taken within PACE_S: a keeper that floods its host is slowed down
PACE_S = 0.05
LOOK_EVERY_S = 1.0
TRIES = 3
PAUSE_S = 0.2
RUNNING_MOST = 4096
COMMAND_MOST = 1000  # characters of a command that an event tells

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
Fail = Callable[[Live, Keeper, SandboxUnavailable], Awaitable[None]]


class Watcher:
    """`spawn` does work beside, `fail` ends a sandbox whose keeper lied."""

    def __init__(self, events: Events, spawn: Spawn, fail: Fail) -> None:
        self._events = events
        self._spawn = spawn
        self._fail = fail

    def watch(self, live: Live) -> None:
        """For a sandbox that has come to run. One that is watched already stays so."""
        if live.keeper is not None and (live.watching is None or live.watching.done()):
            live.watching = self._spawn(self._watch(live, live.keeper))

    async def _watch(self, live: Live, keeper: Keeper) -> None:
        ears, failures = _Ears(live, keeper, self._events), 0
        while _runs(live, keeper):
            before = ears.heard
            try:
                await ears.listen()
            except HostShort:  # later, then
                pass
            except SkerryError as error:
                failures = failures + 1 if ears.heard == before else 1
                await live.moving.wait()
                if failures >= TRIES and _runs(live, keeper):
                    with suppress(SandboxUnavailable):  # somebody else has ended it just now
                        await self._fail(live, keeper, _lie(error))
                    return
            if _runs(live, keeper):  # whoever stops it waits for us
                await asyncio.sleep(PAUSE_S)


def _runs(live: Live, keeper: Keeper) -> bool:
    return live.keeper is keeper and live.row.state in ("running", "ready")


def _lie(error: SkerryError) -> SandboxUnavailable:
    if isinstance(error, SandboxUnavailable):
        return error
    return KeeperLied(f"the keeper does not tell what happens: {error.message}")


class _Ears:
    """One sandbox's."""

    def __init__(self, live: Live, keeper: Keeper, events: Events) -> None:
        self.heard = events.heard(live.row.id)
        self._live = live
        self._keeper = keeper
        self._events = events
        self._told_early: set[str] = set()

    async def listen(self) -> None:
        """Until the connection ends."""
        async with aclosing(await self._keeper.events(self.heard)) as stream:
            if stream.hello.lost:
                await self._look_around(stream.hello)
            taken, since = 0, time.monotonic()
            async for event in stream:
                if isinstance(event, EventsHello):
                    await self._look_around(event)
                else:
                    self._take(event)
                taken += 1
                if taken == AT_ONCE:
                    await asyncio.sleep(max(0.0, since + PACE_S - time.monotonic()))
                    taken, since = 0, time.monotonic()

    def _take(self, event: ProcessEvent) -> None:
        process, work = event.process, self._live.work
        self.heard = event.seq
        if event.type == "process_started":
            if len(work.running) >= RUNNING_MOST:
                raise KeeperLied(f"the keeper says that more than {RUNNING_MOST} processes run")
            work.started(process.id)
            self._live.tries.whose.note(process.cgroup, process.id, process.started_at)
            self._tell("process.started", process, event.at)
        elif process.id in self._told_early:
            self._told_early.discard(process.id)
        else:
            self._ended(process, event.at)

    def _ended(self, process: Process, at: float) -> None:
        live = self._live
        live.work.left_behind |= bool(process.children)
        killed = is_killed(process.exit_code, process.signal, process.timed_out)
        live.work.end(process.id, live.count_oom_kills, killed)
        live.work.ended(process.id)
        if live.tracked is not None:
            live.tracked.ended(process)
        live.touch()  # idleness counts from here
        self._tell("process.ended", process, at)

    async def _look_around(self, hello: EventsHello) -> None:
        """Events were lost, ends perhaps among them: the list has them."""
        live = self._live
        self.heard = hello.seq
        self._events.tell(self._news("lost", time.time()))
        untold = self._events.unended(live.row.id).keys() | live.work.running
        listed = await self._keeper.processes()
        found_out = [process for process in listed if process.state == "exited" and process.id in untold]
        for process in found_out:
            self._ended(process, process.ended_at or time.time())
        self._told_early = {process.id for process in found_out}
        live.work.found(process.id for process in listed if process.state == "running")
        await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, what: str, process: Process, at: float) -> None:
        self._events.tell(self._news(what, at, _brief(process_info(process))))

    def _news(self, what: str, at: float, process: ProcessInfo | None = None) -> News:
        row = self._live.row
        return News(what, row.owner, row.id, row.name, min(at, time.time()), process=process, heard=self.heard)


def _brief(process: ProcessInfo) -> ProcessInfo:
    """Thousands of these are kept: a command of megabytes is cut."""
    if isinstance(process.cmd, str):
        return process if len(process.cmd) <= COMMAND_MOST else replace(process, cmd=process.cmd[:COMMAND_MOST] + "…")
    words: list[str] = []
    room = COMMAND_MOST
    for word in process.cmd:
        if room <= 0:
            words.append("…")
            break
        words.append(word if len(word) <= room else word[:room] + "…")
        room -= len(word) + 1
    return replace(process, cmd=words)
