"""Contexts of a shell. Each is a session: no process runs between two runs, and the state is on the sandbox's disk,
where it costs nothing and survives a stop of the sandbox."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from functools import partial
from typing import Any, Final

from skerry.code import failures
from skerry.engine.code.changed_files import changed_files
from skerry.engine.code.compiled import first_line
from skerry.engine.code.contexts import CodeJob, ContextState, ContextStore
from skerry.engine.code.languages import LanguageService, toolchain_missing
from skerry.engine.code.run import CommandRun, code_end
from skerry.engine.processes.run import Run
from skerry.engine.processes.sessions import SessionService, state_of
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.keeper import Keeper
from skerry.types import CodeEnd, CodeError, OutputFile, RunRequest, RunResult, SessionRequest

log = logging.getLogger("skerry.engine")
_PREFIX: Final = "code."
_MAX_NAME: Final = 63
_STEP_S: Final = 0.01  # the clock of files advances in steps


class ShellContexts:
    """The `ContextBackend` of bash."""

    def __init__(self, contexts: ContextStore, sessions: SessionService, languages: LanguageService) -> None:
        self._contexts, self._sessions, self._languages = contexts, sessions, languages

    async def run(self, job: CodeJob) -> CommandRun:
        context = _seat(job)
        version = job.version or await self._languages.version(
            job.sandbox, job.keeper, job.language, context.record.user
        )
        if version is None:
            raise toolchain_missing(job.language)
        run, lost = await self._begin(job, context)
        try:
            self._contexts.note(job.sandbox, context, lost=None, version=version)
        except BaseException:
            await run.aclose()
            raise
        context.running, context.pid = run.id, run.pid
        run.at_end(partial(self._over, job.sandbox, context))
        return CommandRun(run, partial(self._end, job, lost))

    def has_state(self, sandbox: Sandbox, context: ContextState) -> bool:
        return context.running is not None or (context.record.runs > 0 and context.record.lost is None)

    async def end_state(self, sandbox: Sandbox, keeper: Keeper, context: ContextState) -> None:
        if (process := context.running) is not None:
            with contextlib.suppress(NotFound, Conflict):
                await keeper.signal(process, "KILL")
        await self._sessions.forget(sandbox, keeper, session_of(context.record.name))

    async def is_busy(self, keeper: Keeper, context: ContextState) -> bool:
        """There is nothing that would have to be ended when it is idle."""
        return True

    # -- internals ----------------------------------------------------------------------------------------------------

    async def _begin(self, job: CodeJob, context: ContextState) -> tuple[Run, str | None]:
        """Start with the context's state; or return why that is gone. A new context may find the session of a deleted
        context with the same name, if the sandbox was stopped then."""
        record, name = context.record, session_of(context.record.name)
        if record.runs and record.lost is None:
            try:
                return await self._start(job, name), None
            except NotFound:
                pass
        else:
            await self._sessions.forget(job.sandbox, job.keeper, name)
        env = {**job.language.environment(record.cwd), **record.env}
        new = SessionRequest(name=name, user=record.user, cwd=record.cwd, env=env)
        await self._sessions.open(job.caller, job.sandbox.record.id, new)
        return await self._start(job, name), (record.lost or "its session is gone") if record.runs else None

    async def _start(self, job: CodeJob, name: str) -> Run:
        code = job.request.code
        request = RunRequest(
            cmd=code if code.strip() else ":", session=name, stdin_base64=job.request.input,
            timeout=job.request.timeout, env=job.request.env,
        )  # fmt: skip
        show = f"{job.language.name}: {first_line(code)}"
        return await self._sessions.start(job.caller, job.sandbox.record.id, request, show=show)

    async def _end(self, job: CodeJob, lost: str | None, result: RunResult, printed: str) -> CodeEnd:
        context = _seat(job)
        files, more = await self._made(job, context, result.id)
        return code_end(
            result, language=job.language.name, version=context.record.version, context=context.record.name, lost=lost,
            after="kept" if context.ending is None else "replaced", error=_error(job, context, result, printed),
            files=files, files_cut=more,
        )  # fmt: skip

    async def _made(self, job: CodeJob, context: ContextState, process: str) -> tuple[tuple[OutputFile, ...], bool]:
        if not job.request.files:
            return (), False
        try:
            since = (await job.keeper.process(process)).started_at - _STEP_S
        except SkerryError:
            return (), False
        files, more = await changed_files(job.keeper, context.record.cwd, int(since * 1e9), context.record.user)
        before = context.reported_files
        context.reported_files = {file.path: (file.size, file.mtime) for file in files}
        return tuple(one for one in files if before.get(one.path) != (one.size, one.mtime)), more

    def _over(self, sandbox: Sandbox, context: ContextState) -> None:
        changes: dict[str, Any] = {"used_at": time.time(), "runs": context.record.runs + 1}
        try:
            self._contexts.note(sandbox, context, **changes)
        except Exception:  # a full disk: the next one's turn comes all the same
            log.exception(
                "failed to store a context", extra={"sandbox": sandbox.record.id, "context": context.record.name}
            )
        context.used = time.monotonic()
        context.running = context.ending = None
        context.turn.release()


def session_of(context: str) -> str:
    """The session's name; a context's may be as long as that already."""
    if len(_PREFIX + context) <= _MAX_NAME:
        return _PREFIX + context
    return f"{_PREFIX}{context[:40]}-{hashlib.sha256(context.encode()).hexdigest()[:12]}"


def _seat(job: CodeJob) -> ContextState:
    if job.context is None:
        raise Conflict("a shell without a context has no memory")
    return job.context


def _error(job: CodeJob, context: ContextState, result: RunResult, printed: str) -> CodeError | None:
    if context.ending is not None:
        return CodeError(name="Interrupted", message=f"{context.ending}; the context was replaced")
    if result.signal == "INT" or result.exit_code == 128 + 2:
        return CodeError(name="Interrupted", message="it was interrupted", traceback=printed.strip())
    return failures.of_program(job.language, result, printed, state_of(session_of(context.record.name)))
