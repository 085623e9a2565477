"""Code contexts: state of a language that lasts from run to run. Their records, their locks and their ends. The state
is kept by a backend: a kernel (`kernels`) or a shell session (`shell_contexts`)."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec.structs import replace

from skerry.code.languages import Language
from skerry.config import Settings
from skerry.engine.code.context_table import ContextRecord, ContextTable
from skerry.engine.code.languages import LanguageService
from skerry.engine.code.run import CodeRun
from skerry.engine.hooks import Hook
from skerry.engine.processes.session_lock import FifoLock
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.keeper import Keeper
from skerry.types import Caller, CodeRequest, ContextInfo, ContextRequest, parse_span

log = logging.getLogger("skerry.engine")
TICK_S: Final = 1.0


class ActiveRun(Protocol):
    """A run in a kernel (`code.kernel_run`)."""

    async def ended(self) -> None:
        """Finish the run of a kernel that was killed."""

    async def signal(self, name: str) -> None:
        """Send a signal to that run, and to none after it."""


class ContextState(FifoLock):
    """A context in memory. `running`: the process of the current run. `ending`: why the state is being discarded in the
    middle of a run. `gone`: it was deleted, also for waiting runs."""

    what = "context"

    def __init__(self, record: ContextRecord) -> None:
        super().__init__()
        self.record = record
        self.running: str | None = None
        self.pid: int | None = None  # its kernel's, as far as this server has seen it
        self.reported_files: dict[str, tuple[int, float]] = {}  # files that its last run created
        self.ending: str | None = None
        self.run: ActiveRun | None = None  # the current run, if a kernel runs it
        self.gone = False
        self.adopted = record.process is not None  # a server before this one may have left a run in it
        self.used = time.monotonic() - max(0.0, time.time() - record.used_at)


@dataclass(frozen=True)
class CodeJob:
    """A run that holds its context's lock. `version`: the version found, if one was requested. `context`: the run
    releases its lock at the end; None: the run leaves no state behind."""

    caller: Caller
    sandbox: Sandbox
    keeper: Keeper
    language: Language
    version: str | None
    request: CodeRequest
    context: ContextState | None


class ContextBackend(Protocol):
    """How contexts of a kind remember."""

    async def run(self, job: CodeJob) -> CodeRun:
        """Run the job. The run owns the turn from here on and ends it, unless this call raises."""

    def has_state(self, sandbox: Sandbox, context: ContextState) -> bool:
        """Whether it has anything in memory now."""

    async def end_state(self, sandbox: Sandbox, keeper: Keeper, context: ContextState) -> None:
        """Discard the context's state, also in the middle of a run."""

    async def is_busy(self, keeper: Keeper, context: ContextState) -> bool:
        """Whether it does something by itself, between two runs."""


ContextBackends = Mapping[str, ContextBackend]
"""By the kind of kernel that a language has."""


class ContextStore(Hook):
    """The contexts of all sandboxes, in memory and on disk. `started`: kernels that this server started and that may
    still run."""

    def __init__(self, settings: Settings, table: ContextTable) -> None:
        self._max_contexts: int = settings["contexts.max_per_sandbox"]
        self._table = table
        self._contexts: dict[str, dict[str, ContextState]] = {}
        self.started: set[str] = set()

    def recover(self, registry: SandboxRegistry) -> None:
        """Load the contexts of an earlier server. Those of deleted sandboxes are removed."""
        for sandbox_id, record in self._table.all():
            if (sandbox := registry.get(sandbox_id)) is None:
                self._table.remove(sandbox_id)
                continue
            self._contexts.setdefault(sandbox_id, {})[record.name] = ContextState(record)
            if record.process is not None and sandbox.record.state == "paused":
                sandbox.activity.mark_resting(record.process)

    def on_running(self, sandbox: Sandbox) -> None:
        """The kernels of an adopted sandbox wait for their next runs."""
        for context in self.of(sandbox):
            process = context.record.process
            if process is not None and process in sandbox.activity.running and context.running is None:
                sandbox.activity.mark_resting(process)

    async def on_deleted(self, sandbox: Sandbox) -> None:
        if self._contexts.pop(sandbox.record.id, None) is not None:
            self._table.remove(sandbox.record.id)

    def of(self, sandbox: Sandbox) -> list[ContextState]:
        """Return the sandbox's contexts."""
        return list(self._contexts.get(sandbox.record.id, {}).values())

    def has(self, sandbox: Sandbox, context: ContextState) -> bool:
        return self._contexts.get(sandbox.record.id, {}).get(context.record.name) is context

    def remove(self, sandbox: Sandbox, context: ContextState) -> None:
        if self.has(sandbox, context):
            del self._contexts[sandbox.record.id][context.record.name]
            self._table.remove(sandbox.record.id, context.record.name)

    def get(self, sandbox: Sandbox, name: str) -> ContextState:
        context = self._contexts.get(sandbox.record.id, {}).get(name)
        if context is None:
            raise not_there(name)
        return context

    def default(self, sandbox: Sandbox, language: Language) -> ContextState:
        """Return the context for runs that name none; create it if need be."""
        context = self._contexts.get(sandbox.record.id, {}).get(language.name)
        return context or self.make(sandbox, language, ContextRequest(language=language.name, name=language.name))

    def note(self, sandbox: Sandbox, context: ContextState, **changes: Any) -> None:
        """Store a changed record, unless the context was deleted meanwhile. On a full disk the next run starts all the
        same: a later server treats a kernel without a record as a leftover."""
        context.record = replace(context.record, **changes)
        try:
            if not context.gone and not sandbox.deleted:
                self._table.put(sandbox.record.id, context.record)
        except sqlite3.Error as error:
            log.error(
                "failed to store a context",
                extra={"sandbox": sandbox.record.id, "context": context.record.name, "error": str(error)},
            )

    def make(self, sandbox: Sandbox, language: Language, request: ContextRequest) -> ContextState:
        mine, now, spec = self._contexts.setdefault(sandbox.record.id, {}), time.time(), sandbox.record.spec
        name = request.name or new_id(f"{language.name}-")
        if name in mine:
            raise Conflict(f"context {name!r} already exists", hint="use it, or delete it", details={"context": name})
        self._make_room(sandbox, mine)
        record = ContextRecord(
            name=name, language=language.name, user=request.user or spec.user, cwd=spec.directory(request.cwd),
            env=request.env, created_at=now, used_at=now, default=name == language.name, made_up=request.name is None,
        )  # fmt: skip
        self._table.put(sandbox.record.id, record)
        mine[name] = ContextState(record)
        return mine[name]

    def _make_room(self, sandbox: Sandbox, mine: dict[str, ContextState]) -> None:
        """Remove contexts with generated names and without state, to make room."""
        if len(mine) < self._max_contexts:
            return
        idle = [
            context for context in mine.values() if context.record.made_up and context.record.lost and not context.busy
        ]
        for context in sorted(idle, key=lambda context: context.used)[: len(mine) - self._max_contexts + 1]:
            context.gone = True
            del mine[context.record.name]
            self._table.remove(sandbox.record.id, context.record.name)
        if len(mine) >= self._max_contexts:
            raise QuotaExceeded(
                f"the sandbox already has {len(mine)} contexts",
                hint="delete some; the setting contexts.max_per_sandbox",
            )


class ContextService:
    """`engine.contexts`. Only operations that have to reach a kernel start a sandbox."""

    def __init__(
        self,
        settings: Settings,
        store: ContextStore,
        backends: ContextBackends,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        languages: LanguageService,
        tasks: Tasks,
    ) -> None:
        self._idle: str = settings["contexts.idle_timeout"]
        self._store, self._backends, self._languages = store, backends, languages
        self._registry, self._lifecycle, self._tasks = registry, lifecycle, tasks
        self._unswept: set[str] = set()

    def start(self) -> None:
        """Load the contexts, and watch for idle ones."""
        self._store.recover(self._registry)
        self._unswept = {sandbox.record.id for sandbox in self._registry if is_up(sandbox)}
        self._tasks.spawn(self._watch())

    # -- for the API --------------------------------------------------------------------------------------------------

    async def open(self, caller: Caller, ref: str, request: ContextRequest) -> ContextInfo:
        sandbox = self._registry.find(caller, ref)
        language, version = self._languages.find(sandbox, request.language)
        if not language.context:
            raise InvalidRequest(f"language: {language.name} has no contexts", hint="its code is run as a whole")
        if version is not None:
            async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
                await self._languages.check(sandbox, keeper, language, version)
        if request.name in self._languages.table and request.name != language.name:
            raise InvalidRequest(f"name: {request.name!r} is the default context of that language", hint="another name")
        context = self._store.make(sandbox, language, request)
        return self._info(sandbox, context)

    def list(self, caller: Caller, ref: str) -> builtins.list[ContextInfo]:
        sandbox = self._registry.find(caller, ref)
        return [self._info(sandbox, context) for context in self._store.of(sandbox)]

    def get(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        sandbox = self._registry.find(caller, ref)
        return self._info(sandbox, self._store.get(sandbox, name))

    async def restart(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        """Discard the context's state. A current run is ended."""
        sandbox = self._registry.find(caller, ref)
        context = self._store.get(sandbox, name)
        await self._forget(caller, sandbox, context, "it was restarted")
        return self._info(sandbox, context)

    async def delete(self, caller: Caller, ref: str, name: str) -> None:
        sandbox = self._registry.find(caller, ref)
        context = self._store.get(sandbox, name)
        context.gone = True
        try:
            await self._forget(caller, sandbox, context, "it was deleted")
        except BaseException:
            context.gone = not self._store.has(sandbox, context)
            raise
        self._store.remove(sandbox, context)

    async def interrupt(self, caller: Caller, ref: str, name: str) -> ContextInfo:
        """Interrupt the current run; the state stays. Do nothing if none runs."""
        sandbox = self._registry.find(caller, ref)
        context = self._store.get(sandbox, name)
        if (process := context.running) is not None:
            async with self._lifecycle.use(caller, ref) as (sandbox, keeper):
                with contextlib.suppress(NotFound, Conflict):
                    await (context.run.signal("INT") if context.run is not None else keeper.signal(process, "INT"))
        return self._info(sandbox, context)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _backend(self, sandbox: Sandbox, context: ContextState) -> ContextBackend | None:
        """None: of a language that is not in the table any more."""
        language = self._languages.table.get(context.record.language)
        return self._backends.get(language.kernel or "") if language is not None else None

    def _is_there(self, sandbox: Sandbox, context: ContextState) -> bool:
        backend = self._backend(sandbox, context)
        return backend is not None and backend.has_state(sandbox, context)

    def _info(self, sandbox: Sandbox, context: ContextState) -> ContextInfo:
        record, alive = context.record, self._is_there(sandbox, context)
        lost = record.lost
        if not alive and record.process is not None and context.running is None:
            lost = (
                lost_with(sandbox)
                if sandbox.record.started_at != record.since or not is_up(sandbox)
                else "its process is gone"
            )
        return ContextInfo(
            name=record.name, language=record.language, user=record.user, cwd=record.cwd, created_at=record.created_at,
            used_at=record.used_at, default=record.default, version=record.version, runs=record.runs,
            waiting=context.waiting,
            state="busy" if context.running is not None or context.waiting else "idle" if alive else "new",
            process=context.running or (record.process if alive else None),
            pid=context.pid if alive else None, lost=lost,
        )  # fmt: skip

    async def _forget(self, caller: Caller, sandbox: Sandbox, context: ContextState, why: str) -> None:
        """End the state of a context, also that of a run that has only just got its turn, but not that of a kernel that
        was started meanwhile."""
        backend, process = self._backend(sandbox, context), context.record.process
        in_turn = context.running is not None or (context.turn.locked() and is_up(sandbox))
        if backend is not None and (in_turn or self._is_there(sandbox, context)):
            context.ending = why
            try:
                async with self._lifecycle.use(caller, sandbox.record.id) as (sandbox, keeper):
                    await backend.end_state(sandbox, keeper, context)
            finally:
                if context.running is None:
                    context.ending = None
        if context.record.process == process:
            self._store.note(sandbox, context, process=None, lost=why if context.record.runs else None)

    async def _watch(self) -> None:
        """End idle contexts, and kernels that earlier servers left behind."""
        idle_s = parse_span(self._idle)
        while True:
            awake = [
                sandbox
                for sandbox in self._registry
                if sandbox.record.state == "running" and sandbox.thawed.is_set() and sandbox.adopted.is_set()
            ]
            for sandbox in awake:
                if sandbox.record.id in self._unswept:
                    self._unswept.discard(sandbox.record.id)
                    self._tasks.spawn(self._sweep(sandbox))
                self._look(sandbox, idle_s)
            await asyncio.sleep(TICK_S)

    def _look(self, sandbox: Sandbox, idle_s: float) -> None:
        now = time.monotonic()
        for context in self._store.of(sandbox):
            if now - context.used > idle_s and not context.busy and self._is_there(sandbox, context):
                context.used = now  # if it can't be ended now, try again after the same time
                self._tasks.spawn(self._end_idle(sandbox, context))

    async def _sweep(self, sandbox: Sandbox) -> None:
        """Kill kernels without a context: the callers of their runs left with the earlier server. Interrupt kernels of
        contexts: a run without a caller may still be under way."""
        contexts, keeper = self._store.of(sandbox), sandbox.keeper
        if keeper is None:
            return
        try:
            listed = await keeper.processes()
            mine = self._store.started | {context.record.process for context in contexts}
            for process in listed:
                if process.channel and process.state == "running" and process.id not in mine:
                    await keeper.signal(process.id, "KILL")
            for context in [
                context for context in contexts if context.adopted and context.record.process and not context.busy
            ]:
                async with context.turn:
                    if context.adopted and self._is_there(sandbox, context):
                        context.adopted = False
                        await keeper.signal(context.record.process or "", "INT")
        except SkerryError as error:
            log.warning(
                "failed to remove leftover kernels", extra={"sandbox": sandbox.record.id, "error": error.message}
            )

    async def _end_idle(self, sandbox: Sandbox, context: ContextState) -> None:
        backend, keeper = self._backend(sandbox, context), sandbox.keeper
        if backend is None or keeper is None or context.busy:
            return
        async with context.turn:
            try:
                if not await backend.is_busy(keeper, context):
                    await backend.end_state(sandbox, keeper, context)
                    self._store.note(sandbox, context, process=None, lost=f"it was idle for {self._idle}")
            except SkerryError as error:
                log.warning(
                    "failed to end a run or context",
                    extra={"sandbox": sandbox.record.id, "context": context.record.name, "error": str(error)},
                )


def not_there(name: str) -> NotFound:
    hint = "code.context(language, name) creates one"
    return NotFound(f"context {name[:80]!r} not found", hint=hint, details={"context": name[:80]})


def is_up(sandbox: Sandbox) -> bool:
    return sandbox.record.state in ("running", "paused")


def lost_with(sandbox: Sandbox) -> str:
    """Return why the sandbox's kernels are gone."""
    return "the sandbox was stopped" + (f": {sandbox.stop_reason}" if sandbox.stop_reason else "")
