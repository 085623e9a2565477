"""Running code: selects the language, the context and the backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from skerry.code.kernels import KERNELS
from skerry.code.languages import Language
from skerry.engine.code.compiled import FileRunner, first_line
from skerry.engine.code.contexts import CodeJob, ContextBackend, ContextBackends, ContextState, ContextStore, not_there
from skerry.engine.code.languages import LanguageService
from skerry.engine.code.run import CodeRun, RecordedRun
from skerry.engine.processes.service import ProcessService
from skerry.engine.records.trace.recorder import Step
from skerry.engine.records.trace.service import TraceService
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import InvalidRequest, SkerryError, ToolchainMissing
from skerry.types import Caller, CodeRequest


class CodeService:
    """`engine.code`."""

    def __init__(
        self,
        store: ContextStore,
        backends: ContextBackends,
        lifecycle: Lifecycle,
        languages: LanguageService,
        processes: ProcessService,
        traces: TraceService,
        tasks: Tasks,
    ) -> None:
        self._store, self._backends, self._lifecycle = store, backends, lifecycle
        self._languages, self._processes, self._traces, self._tasks = languages, processes, traces, tasks
        self._files = FileRunner(processes, languages, tasks)

    async def run(self, caller: Caller, ref: str, request: CodeRequest) -> CodeRun:
        """Code in its turn. Cancelled while it waits for that, it is out of the queue."""
        request = replace(request, timeout=self._processes.limit_timeout(request.timeout))
        async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
            context = self._store.get(sandbox, request.context) if request.context is not None else None
            language, version = self._language(sandbox, context, request)
            if version is not None:
                version = await self._languages.check(sandbox, keeper, language, version)
            if context is None and not request.fresh and language.context:
                context = self._store.default(sandbox, language)
            job = CodeJob(caller, sandbox, keeper, language, version, request, context)
            if context is not None:
                _check_options(context, request)
                await context.take_turn()
            step = self._begin_step(job)
            beginning = self._run_without_context(job) if context is None else self._run_in_context(job, context)
            try:
                run = await (self._start_to_end(beginning) if language.kernel in KERNELS else beginning)
            except BaseException as error:
                step.end(error=error)
                raise
            return RecordedRun(run, step)

    def _begin_step(self, job: CodeJob) -> Step:
        """Record the run in the sandbox's trace: the language and the context as they were found."""
        request, context = job.request, job.context
        params = replace(
            request, code="", stdin=None, stdin_base64=None, language=request.language or job.language.name,
            context=context.record.name if context is not None else None,
        )  # fmt: skip
        inputs = {"code": request.code.encode()} | ({"stdin": request.input} if request.input is not None else {})
        text = f"{job.language.name}: {first_line(request.code)}"
        return self._traces.begin(job.sandbox, "code.run", params, text=text, inputs=inputs)

    async def _start_to_end(self, beginning: Coroutine[Any, Any, CodeRun]) -> CodeRun:
        """Start a kernel's run to the end. If the caller leaves meanwhile, the run is closed as soon as it has started:
        interrupted half-way, the kernel would run the code without a caller, or wait for the other half."""
        task = asyncio.ensure_future(beginning)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._tasks.spawn(_close_when_started(task))
            raise

    async def _run_in_context(self, job: CodeJob, context: ContextState) -> CodeRun:
        """Run the job. The context may be deleted while the run starts, before the deletion finds a process to end."""
        try:
            if context.gone:
                raise not_there(context.record.name)
            run = await self._backend(job.language).run(job)
        except BaseException:
            context.turn.release()
            raise
        if context.gone:
            await run.aclose()
            raise not_there(context.record.name)
        return run

    async def _run_without_context(self, job: CodeJob) -> CodeRun:
        """Run without a context: in a new kernel, or as a file."""
        if job.language.kernel in (None, "shell"):
            return await self._files.run(job)
        return await self._backend(job.language).run(job)

    def _backend(self, language: Language) -> ContextBackend:
        backend = self._backends.get(language.kernel or "")
        if backend is None:
            raise ToolchainMissing(f"{language.name} can't run in a context on this server")
        return backend

    def _language(
        self, sandbox: Sandbox, context: ContextState | None, request: CodeRequest
    ) -> tuple[Language, str | None]:
        requested = request.language or (context.record.language if context is not None else "python")
        language, version = self._languages.find(sandbox, requested)
        if context is not None and language.name != context.record.language:
            raise InvalidRequest(
                f"language: the context {context.record.name!r} is one of {context.record.language}",
                hint="leave language= out",
            )
        return language, version


async def _close_when_started(beginning: asyncio.Future[CodeRun]) -> None:
    with contextlib.suppress(SkerryError):  # it did not even begin
        await (await beginning).aclose()


def _check_options(context: ContextState, request: CodeRequest) -> None:
    if request.cwd is not None or request.user not in (None, context.record.user):
        raise InvalidRequest(
            f"cwd, user: the context {context.record.name!r} has its own",
            hint="make a context with them, or run it with fresh=True",
        )
