"""Kernels: the processes that are contexts' memories. Each is started with its first run, and told its script then: no
file of ours lies inside, and no trip is spent on it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from skerry.code import wire
from skerry.code.kernels import KERNELS
from skerry.engine import plan
from skerry.engine.code_ends import ended
from skerry.engine.code_files import first_line
from skerry.engine.code_results import Listener
from skerry.engine.contexts import Asked, Contexts, Seat, is_up, lost_with
from skerry.engine.kernel_runs import Begun, Hands, KernelRun
from skerry.engine.languages import missing
from skerry.engine.live import Live
from skerry.engine.processes import Fail
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.keeper import Keeper, Process, ProcessSpec, Turn
from skerry.types import CodeEnd

FREE_WITHIN_S: Final = 2.0
SETTLED_WITHIN_S: Final = 5.0
NOT_THERE: Final = (126, 127)  # how what can't be executed ends


class Kernels:
    """A `Memory`. `fail` ends a sandbox whose keeper lied, `spawn` does work beside, `before` is told of each run."""

    def __init__(
        self,
        contexts: Contexts,
        fail: Fail,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        before: Callable[[Live], Awaitable[None]],
    ) -> None:
        self._contexts, self._fail, self._spawn, self._before = contexts, fail, spawn, before

    async def run(self, asked: Asked) -> KernelRun:
        await self._before(asked.live)
        run, request = secrets.token_hex(8), asked.request
        fields = {"run": run.encode(), "code": request.code.encode()}
        if request.input is not None:
            fields["stdin"] = request.input
        if asked.seat is None:
            fields["last"] = b"1"
        said, lost = wire.encode(wire.RUN, fields), None
        if asked.seat is not None:
            going, lost = await self._go_on(asked, asked.seat, run, said)
            if going is not None:
                return going
        return await self._start(asked, run, said, lost if asked.seat is not None and asked.seat.row.runs else None)

    def lives(self, live: Live, seat: Seat) -> bool:
        row = seat.row
        if row.process is None or row.since != live.row.started_at or not is_up(live):
            return False
        return row.process == seat.running or live.work.is_resting(row.process) or live.row.state == "paused"

    async def forget(self, live: Live, keeper: Keeper, seat: Seat) -> None:
        if (process := seat.running or seat.row.process) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await keeper.signal(process, "KILL")
            self._contexts.started.discard(process)
            if seat.ended is not None:
                self._spawn(seat.ended())

    async def is_at_work(self, keeper: Keeper, seat: Seat) -> bool:
        with contextlib.suppress(NotFound):
            return bool(seat.row.process and (await keeper.process(seat.row.process)).children)
        return False

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def _go_on(self, asked: Asked, seat: Seat, run: str, said: bytes) -> tuple[KernelRun | None, str | None]:
        """A run in the kernel that there is; or why there is none."""
        process, keeper = seat.row.process, asked.keeper
        if process is None:
            return None, seat.row.lost
        if seat.row.since != asked.live.row.started_at:
            return None, lost_with(asked.live)
        try:
            if seat.adopted:
                await _settled(keeper, process)
                seat.adopted = False
            return await self._turn(asked, process, run, said, new=False), None
        except (NotFound, Conflict):
            return None, await _how_it_ended(keeper, process)

    async def _start(self, asked: Asked, run: str, said: bytes, lost: str | None) -> KernelRun:
        live, keeper, seat = asked.live, asked.keeper, asked.seat
        kernel = KERNELS[asked.language.kernel or ""]
        spec = _spec(asked, kernel.argv)
        self._contexts.started.add(spec.id)
        spawned = asyncio.ensure_future(keeper.spawn(spec))
        try:
            process = await asyncio.shield(spawned)
            live.tries.whose.note(process.cgroup, process.id, process.started_at)
            if process.state == "exited" and process.exit_code in NOT_THERE:
                raise missing(asked.language)
            script = wire.encode(wire.SCRIPT, {"script": kernel.script()})
            begun = await self._turn(asked, process.id, run, script + said, new=True, lost=lost)
        except BaseException:
            self._spawn(self._unwanted(keeper, spec.id, spawned))
            raise
        if seat is not None:
            self._contexts.note(live, seat, process=process.id, since=live.row.started_at, lost=None)
        return begun

    async def _unwanted(self, keeper: Keeper, process: str, spawned: asyncio.Future[Process]) -> None:
        """Also one that is only just being started, for a caller who has left."""
        await asyncio.wait((spawned,))
        if not spawned.cancelled() and spawned.exception() is None:
            await _killed(keeper, process)
        self._contexts.started.discard(process)

    async def _turn(
        self, asked: Asked, process: str, run: str, body: bytes, *, new: bool, lost: str | None = None
    ) -> KernelRun:
        """It counts among those at work before it can be killed, or write; not if its turn never began."""
        live, tracked = asked.live, asked.live.tracked
        live.work.begin(process, live.count_oom_kills())
        if tracked is not None:
            tracked.turn(f"{process}/{run}", process, f"{asked.language.name}: {first_line(asked.request.code)}")
        at, heard = time.time(), live.tries.heard
        try:
            turn = await _taken(asked.keeper, process, body)
        except BaseException:
            live.work.end(process, live.count_oom_kills)
            if process in live.work.running:
                live.work.rest(process)
            if tracked is not None:
                tracked.actors.never(f"{process}/{run}")
            raise
        begun = Begun(process=process, run=run, turn=turn, new=new, lost=lost, at=at, heard=heard)
        failed = partial(self._fail, live, asked.keeper)
        made = KernelRun(asked, begun, Hands(failed, self._spawn, self._over))
        if asked.seat is not None:
            asked.seat.running, asked.seat.pid = process, turn.pid
            asked.seat.ended, asked.seat.signal = made.ended, made.signal
        return made

    # -- ending -------------------------------------------------------------------------------------------------------

    def _over(self, run: KernelRun, end: CodeEnd | None) -> None:
        """`end` None: nobody knows how."""
        live, seat, process = run.asked.live, run.asked.seat, run.id
        live.work.end(process, live.count_oom_kills)
        if live.tracked is not None:
            exit_code, duration_s = (end.exit_code, end.duration_s) if end is not None else (None, 0.0)
            live.tracked.turned(f"{process}/{run.begun.run}", exit_code, duration_s)
        if seat is None:
            self._contexts.started.discard(process)
            if end is None:
                self._spawn(_killed(run.asked.keeper, process))
            return
        seat.adopted = end is None and process in live.work.running  # then it may not even be over
        if seat.adopted or (end is not None and end.after == "kept" and not seat.gone):
            live.work.rest(process)
        self._note(live, seat, run, end)
        seat.used = time.monotonic()
        seat.running = seat.ending = seat.ended = seat.signal = None
        seat.turn.release()

    def _note(self, live: Live, seat: Seat, run: KernelRun, end: CodeEnd | None) -> None:
        changes: dict[str, Any] = {"used_at": time.time()}
        if end is not None:
            changes |= {"runs": seat.row.runs + 1, "version": end.version}
            if end.after == "replaced":
                self._contexts.started.discard(run.id)
                changes |= {"process": None, "lost": run.course.why_died}
        self._contexts.note(live, seat, **changes)


def _spec(asked: Asked, argv: tuple[str, ...]) -> ProcessSpec:
    row, request, language = asked.seat.row if asked.seat is not None else None, asked.request, asked.language
    cwd, user, env = (row.cwd, row.user, row.env) if row is not None else (request.cwd, request.user, request.env)
    name = f"context {row.name}" if row is not None else "fresh"
    return ProcessSpec(
        id=plan.new_id("p-"), argv=[*language.context, *argv], cwd=cwd, user=user,
        env={**language.environment(cwd or "/"), **env}, channel=True, show=f"{language.name} ({name})",
    )  # fmt: skip


async def _taken(keeper: Keeper, process: str, body: bytes) -> Turn:
    """A turn that an earlier server had is over as soon as its keeper sees that; then it is free."""
    until = time.monotonic() + FREE_WITHIN_S
    while True:
        try:
            return await keeper.turn(process, body)
        except Conflict:
            if time.monotonic() > until or (await keeper.process(process)).state == "exited":
                raise
        await asyncio.sleep(0.02)


async def _settled(keeper: Keeper, process: str) -> None:
    """A server before this one may have left a run in it that nobody waits for. Once a run of nothing has come and
    gone, that one is over, with all that it printed."""
    await keeper.signal(process, "INT")
    run = secrets.token_hex(8)
    listener = Listener(run)
    turn = await _taken(keeper, process, wire.encode(wire.RUN, {"run": run.encode(), "code": b""}))
    try:
        async with asyncio.timeout(SETTLED_WITHIN_S), contextlib.aclosing(turn):
            async for kind, data in turn:
                list(listener.feed(data) if kind == "channel" else ())
                if listener.status is not None:
                    await turn.over()
                    return
    except (TimeoutError, wire.Violation):
        pass
    raise Conflict("what ran in the context before did not stop")


async def _how_it_ended(keeper: Keeper, process: str) -> str:
    try:
        known = await keeper.process(process)
    except NotFound:
        return "its process is gone"
    if known.state == "running":
        await _killed(keeper, process)
        return "its process did not answer"
    return ended(known.exit_code, known.signal)


async def _killed(keeper: Keeper, process: str) -> None:
    with contextlib.suppress(SkerryError):
        await keeper.signal(process, "KILL")
