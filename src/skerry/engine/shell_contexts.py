"""Contexts of a shell. Each is a session: no process is left between two runs, and what it remembers is on the disk of
its sandbox, where it costs nothing and outlives the sandbox's stops."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from functools import partial
from typing import Any, Final

from skerry.code import failures
from skerry.engine.code_files import first_line
from skerry.engine.code_runs import CommandRun, code_end
from skerry.engine.contexts import Asked, Contexts, Seat
from skerry.engine.languages import Languages, missing
from skerry.engine.live import Live
from skerry.engine.made import made
from skerry.engine.runs import Run
from skerry.engine.sessions import Sessions, state_of
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.keeper import Keeper
from skerry.types import CodeEnd, CodeError, MadeFile, RunRequest, RunResult, SessionRequest

log = logging.getLogger("skerry.engine")
_PREFIX: Final = "code."
_NAME_MOST: Final = 63
_STEP_S: Final = 0.01  # the clock of files goes in steps


class ShellContexts:
    """A `Memory`."""

    def __init__(self, contexts: Contexts, sessions: Sessions, languages: Languages) -> None:
        self._contexts, self._sessions, self._languages = contexts, sessions, languages

    async def run(self, asked: Asked) -> CommandRun:
        seat = _seat(asked)
        version = asked.version or await self._languages.version(
            asked.live, asked.keeper, asked.language, seat.row.user
        )
        if version is None:
            raise missing(asked.language)
        run, lost = await self._begin(asked, seat)
        try:
            self._contexts.note(asked.live, seat, lost=None, version=version)
        except BaseException:
            await run.aclose()
            raise
        seat.running, seat.pid = run.id, run.pid
        run.at_end(partial(self._over, asked.live, seat))
        return CommandRun(run, partial(self._end, asked, lost))

    def lives(self, live: Live, seat: Seat) -> bool:
        return seat.running is not None or (seat.row.runs > 0 and seat.row.lost is None)

    async def forget(self, live: Live, keeper: Keeper, seat: Seat) -> None:
        if (process := seat.running) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await keeper.signal(process, "KILL")
        await self._sessions.forget(live, keeper, session_of(seat.row.name))

    async def is_at_work(self, keeper: Keeper, seat: Seat) -> bool:
        """There is nothing that would have to be ended when it is idle."""
        return True

    # -- inner workings -----------------------------------------------------------------------------------------------

    async def _begin(self, asked: Asked, seat: Seat) -> tuple[Run, str | None]:
        """With what it remembers; or why that is gone. One that begins anew may find the session of another that had
        its name, and was deleted while the sandbox was stopped."""
        row, name = seat.row, session_of(seat.row.name)
        if row.runs and row.lost is None:
            try:
                return await self._start(asked, name), None
            except NotFound:
                pass
        else:
            await self._sessions.forget(asked.live, asked.keeper, name)
        env = {**asked.language.environment(row.cwd), **row.env}
        new = SessionRequest(name=name, user=row.user, cwd=row.cwd, env=env)
        await self._sessions.open(asked.caller, asked.live.row.id, new)
        return await self._start(asked, name), (row.lost or "its session is gone") if row.runs else None

    async def _start(self, asked: Asked, name: str) -> Run:
        code = asked.request.code
        request = RunRequest(
            cmd=code if code.strip() else ":", session=name, stdin_base64=asked.request.input,
            timeout=asked.request.timeout,
        )  # fmt: skip
        show = f"{asked.language.name}: {first_line(code)}"
        return await self._sessions.run(asked.caller, asked.live.row.id, request, show=show)

    async def _end(self, asked: Asked, lost: str | None, result: RunResult, printed: str) -> CodeEnd:
        seat = _seat(asked)
        files, more = await self._made(asked, seat, result.id)
        return code_end(
            result, language=asked.language.name, version=seat.row.version, context=seat.row.name, lost=lost,
            after="kept" if seat.ending is None else "replaced", error=_error(asked, seat, result, printed),
            files=files, files_cut=more,
        )  # fmt: skip

    async def _made(self, asked: Asked, seat: Seat, process: str) -> tuple[tuple[MadeFile, ...], bool]:
        if not asked.request.files:
            return (), False
        try:
            since = (await asked.keeper.process(process)).started_at - _STEP_S
        except SkerryError:
            return (), False
        files, more = await made(asked.keeper, seat.row.cwd, int(since * 1e9), seat.row.user)
        told, seat.told = seat.told, {file.path: (file.size, file.mtime) for file in files}
        return tuple(one for one in files if told.get(one.path) != (one.size, one.mtime)), more

    def _over(self, live: Live, seat: Seat) -> None:
        changes: dict[str, Any] = {"used_at": time.time(), "runs": seat.row.runs + 1}
        try:
            self._contexts.note(live, seat, **changes)
        except Exception:  # a full disk: the next one's turn comes all the same
            log.exception("not noted", extra={"sandbox": live.row.id, "context": seat.row.name})
        seat.used = time.monotonic()
        seat.running = seat.ending = None
        seat.turn.release()


def session_of(context: str) -> str:
    """The session's name; a context's may be as long as that already."""
    if len(_PREFIX + context) <= _NAME_MOST:
        return _PREFIX + context
    return f"{_PREFIX}{context[:40]}-{hashlib.sha256(context.encode()).hexdigest()[:12]}"


def _seat(asked: Asked) -> Seat:
    if asked.seat is None:
        raise Conflict("a shell without a context has no memory")
    return asked.seat


def _error(asked: Asked, seat: Seat, result: RunResult, printed: str) -> CodeError | None:
    if seat.ending is not None:
        return CodeError(name="Interrupted", message=f"{seat.ending}; the context was replaced")
    if result.signal == "INT" or result.exit_code == 128 + 2:
        return CodeError(name="Interrupted", message="it was interrupted", traceback=printed.strip())
    return failures.of_program(asked.language, result, printed, state_of(session_of(seat.row.name)))
