"""Running code for its values: which language, in whose memory, by what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from skerry.code.kernels import KERNELS
from skerry.code.table import Language
from skerry.config import Settings
from skerry.engine.code_files import CodeFiles
from skerry.engine.code_runs import CodeRun
from skerry.engine.contexts import Asked, Contexts, Memory, Seat, not_there
from skerry.engine.database import Database
from skerry.engine.kernels import Kernels
from skerry.engine.languages import Languages
from skerry.engine.live import Live
from skerry.engine.processes import Fail, Find, Processes, Use
from skerry.engine.sessions import Sessions
from skerry.engine.shell_contexts import ShellContexts
from skerry.errors import InvalidRequest, SetupFailed, SkerryError
from skerry.types import Caller, CodeRequest


class Code:
    """`engine.code`."""

    def __init__(
        self,
        settings: Settings,
        find: Find,
        use: Use,
        fail: Fail,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        before: Callable[[Live], Awaitable[None]],
        languages: Languages,
        processes: Processes,
        sessions: Sessions,
    ) -> None:
        self._use = use
        self._spawn = spawn
        self._languages = languages
        self.contexts = Contexts(settings, find, use, spawn, languages)
        kernels = Kernels(self.contexts, fail, spawn, before)
        self.contexts.memories |= dict.fromkeys(KERNELS, kernels)
        self.contexts.memories["shell"] = ShellContexts(self.contexts, sessions, languages)
        self._files = CodeFiles(processes, languages, spawn)

    def begin(self, database: Database, lives: Mapping[str, Live]) -> None:
        self.contexts.begin(database, lives)

    async def run(self, caller: Caller, ref: str, request: CodeRequest) -> CodeRun:
        """Code in its turn. Cancelled while it waits for that, it is out of the queue."""
        async with self._use(caller, ref) as (live, keeper):
            seat = self.contexts.seat(live, request.context) if request.context is not None else None
            language, version = self._language(live, seat, request)
            if version is not None:
                version = await self._languages.check(live, keeper, language, version)
            if seat is None and not request.fresh and language.context:
                seat = self.contexts.default(live, language)
            asked = Asked(caller, live, keeper, language, version, request, seat)
            if seat is not None:
                _check_own(seat, request)
                await seat.take_turn()
            beginning = self._alone(asked) if seat is None else self._in_turn(asked, seat)
            return await (self._whole(beginning) if language.kernel in KERNELS else beginning)

    async def _whole(self, beginning: Coroutine[Any, Any, CodeRun]) -> CodeRun:
        """Who leaves while a kernel's run begins leaves one that is closed as soon as it has: cut in half, the kernel
        would run it for nobody, or wait for the other half."""
        task = asyncio.ensure_future(beginning)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spawn(_closed(task))
            raise

    async def _in_turn(self, asked: Asked, seat: Seat) -> CodeRun:
        """The context may be deleted while it begins, before there is anything to end with it."""
        try:
            if seat.gone:
                raise not_there(seat.row.name)
            run = await self._memory(asked.language).run(asked)
        except BaseException:
            seat.turn.release()
            raise
        if seat.gone:
            await run.aclose()
            raise not_there(seat.row.name)
        return run

    async def _alone(self, asked: Asked) -> CodeRun:
        """Without a memory: a kernel of its own, or a file that is run."""
        if asked.language.kernel in (None, "shell"):
            return await self._files.run(asked)
        return await self._memory(asked.language).run(asked)

    def _memory(self, language: Language) -> Memory:
        memory = self.contexts.memories.get(language.kernel or "")
        if memory is None:
            raise SetupFailed(f"{language.name} can't be run in a context here")
        return memory

    def _language(self, live: Live, seat: Seat | None, request: CodeRequest) -> tuple[Language, str | None]:
        wish = request.language or (seat.row.language if seat is not None else "python")
        language, version = self._languages.find(live, wish)
        if seat is not None and language.name != seat.row.language:
            raise InvalidRequest(
                f"language: the context {seat.row.name!r} is one of {seat.row.language}", hint="leave language= out"
            )
        return language, version


async def _closed(beginning: asyncio.Future[CodeRun]) -> None:
    with contextlib.suppress(SkerryError):  # it did not even begin
        await (await beginning).aclose()


def _check_own(seat: Seat, request: CodeRequest) -> None:
    if request.cwd is not None or request.env or request.user not in (None, seat.row.user):
        raise InvalidRequest(
            f"cwd, env, user: the context {seat.row.name!r} has its own",
            hint="make a context with them, or run it with fresh=True",
        )
