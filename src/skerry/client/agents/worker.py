"""A worker: claims sessions of a service that runs agents, and runs the tools of each session in a separate sandbox.

The service is a `Provider`. The worker keeps no state: the sandbox of a session is found by its labels, and its runs
are processes there. They do not end with this program, so that a worker that was killed loses no session, and the next
one waits for the runs that it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from msgspec.structs import replace

from skerry.client._async.client import AsyncClient
from skerry.client._async.processes import AsyncProcess
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client.policy_inputs import resolve_presets, secret_values
from skerry.client.secrets import Secret
from skerry.errors import Conflict, NotFound, ServerUnreachable, SkerryError
from skerry.types import WORKSPACE, Network, Result

LABEL: Final = "skerry.worker"
LABEL_ENVIRONMENT: Final = "skerry.worker.environment"
LABEL_SESSION: Final = "skerry.worker.session"
LABEL_USED: Final = "skerry.worker.used"  # the time of the last end of a run
INTERRUPT_GRACE_S: Final = 90.0  # the SDK saves memory stores in at most 60 s
SWEEP_S: Final = 600.0
POLL_PAUSE_S: Final = 1.0
CLAIM_GRACE_S: Final = 5.0
MAX_REASON: Final = 400
_RUN: Final = "worker-"  # processes with this prefix are runs
_WORK: Final = "--work"  # the argument of a run that names its item


@dataclass(frozen=True)
class WorkItem:
    """A claimed session. `credential`: of this session only."""

    id: str
    session: str
    credential: str = field(repr=False)


@dataclass(frozen=True)
class SessionRun:
    """The program that serves an item inside. Its arguments contain `--work` and the ID of the item. `setup`: run as
    root in a new sandbox. `network`: added to the policy of a new sandbox."""

    argv: tuple[str, ...]
    setup: tuple[str, ...]
    env: Mapping[str, str]
    secrets: tuple[Secret, ...]
    network: Network


class Provider(Protocol):
    """A service that hands out sessions. `handled`: the exit code of a run that failed, and has stopped its item."""

    name: str
    environment: str
    handled: int

    async def claim(self) -> WorkItem | None:
        """Claim the next session. Return None if the queue is empty."""

    def describe(self, item: WorkItem) -> SessionRun:
        """Return the program that serves an item."""

    async def stop(self, work: str, reason: str) -> None:
        """Stop an item whose run cannot do it. Ignore an item that is stopped."""

    async def has_ended(self, session: str) -> bool:
        """Return whether a session can never continue."""


@dataclass(frozen=True)
class WorkerEvent:
    """`adopted`: found running at the start. `released`: not served, so that the service hands it out again."""

    kind: Literal["started", "adopted", "ended", "failed", "released", "deleted", "draining", "interrupting", "warning"]
    session: str | None = None
    work: str | None = None
    sandbox: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class WorkerTerms:
    """`creation`: the arguments of `Sandbox.create`. `keep_s`: delete the sandbox of a session after this time without
    a run; None: when the session has ended."""

    image: str
    creation: Mapping[str, Any]
    max_sessions: int
    keep_s: float | None


class Worker:
    """Serves one environment of a provider. `async for event in worker.events():` runs it."""

    def __init__(self, provider: Provider, client: AsyncClient, terms: WorkerTerms) -> None:
        self._provider = provider
        self._client = client
        self._terms = terms
        self._queue: asyncio.Queue[WorkerEvent | None] = asyncio.Queue()
        self._runs: dict[asyncio.Task[None], str] = {}  # to the sessions
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()  # by session
        self._replaced: set[str] = set()  # runs that a newer item of their session has ended
        self._draining = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._failure: SkerryError | None = None

    def drain(self) -> None:
        """Claim no more sessions, and end after the running ones. A second call interrupts those: their memory is
        saved and their items are stopped."""
        if self._draining.is_set():
            self._report("interrupting")
            self._interrupted.set()
        else:
            self._report("draining")
            self._draining.set()

    async def events(self, *, once: bool = False) -> AsyncIterator[WorkerEvent]:
        """Run until drained; with `once`, until the queue is empty. Raise the error that ended it, after the running
        sessions have ended."""
        main = asyncio.create_task(self._main(once))
        main.add_done_callback(lambda _: self._queue.put_nowait(None))
        try:
            while (event := await self._queue.get()) is not None:
                yield event
            await main
        finally:
            for task in (main, *self._runs):
                task.cancel()
            await asyncio.gather(main, *self._runs, return_exceptions=True)

    async def _main(self, once: bool) -> None:
        try:
            await self._adopt()
            await self._claim_all(once)
        except SkerryError as error:
            self._failure = self._failure or error
            self._draining.set()
        while self._runs:
            await asyncio.wait(self._runs)
        if self._failure is not None:
            raise self._failure

    async def _claim_all(self, once: bool) -> None:
        swept = -SWEEP_S
        while not self._draining.is_set():
            if len(self._runs) >= self._terms.max_sessions:
                await self._pause(None)
                continue
            if time.monotonic() - swept >= SWEEP_S:
                await self._sweep()
                swept = time.monotonic()
            item = await self._claim()
            if item is not None:
                self._start(item.session, self._serve(item))
            elif once:
                return
            else:
                await self._pause(POLL_PAUSE_S)

    async def _claim(self) -> WorkItem | None:
        """Claim an item. When drained, wait a moment for a claim under way: a service that is out of reach is polled
        again and again, and an item that is cut off here is handed out again."""
        claim, drained = asyncio.create_task(self._provider.claim()), asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({claim, drained}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({claim}, timeout=CLAIM_GRACE_S)
            return claim.result() if claim.done() else None
        finally:
            drained.cancel()
            claim.cancel()
            await asyncio.wait({claim})

    async def _pause(self, timeout: float | None) -> None:
        """Wait until it is drained, a run has ended, or the time is over."""
        drained = asyncio.create_task(self._draining.wait())
        waited = {drained, *self._runs} if timeout is None else {drained}
        await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()

    def _start(self, session: str, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run)
        self._runs[task] = session
        task.add_done_callback(lambda _: self._runs.pop(task))

    def _report(self, kind: Any, **fields: Any) -> None:
        self._queue.put_nowait(WorkerEvent(kind, **fields))

    # -- one item -----------------------------------------------------------------------------------------------------

    async def _serve(self, item: WorkItem) -> None:
        try:
            run = self._provider.describe(item)
            lock = self._locks.setdefault(item.session, asyncio.Lock())
            async with lock:
                sandbox = await self._sandbox(item, run)
                name = f"{_RUN}{secrets.token_hex(8)}"
                process = await sandbox.spawn(list(run.argv), env=run.env, cwd=WORKSPACE, stdin=False, id=name)
        except ServerUnreachable as error:
            # Without a heartbeat the service hands the item out again. A worker without a server claims no more.
            self._failure = self._failure or error
            self._draining.set()
            self._report("released", session=item.session, work=item.id, reason=str(error))
        except SkerryError as error:
            await self._fail(item.id, item.session, None, str(error))
        else:
            self._report("started", session=item.session, work=item.id, sandbox=sandbox.name)
            await self._follow(sandbox, process, item.id)

    async def _sandbox(self, item: WorkItem, run: SessionRun) -> AsyncSandbox:
        """Return the sandbox of the session, new or that of its earlier items."""
        labels, name = self._labels(item.session), sandbox_name(self._provider.name, item.session)
        try:
            found = await AsyncSandbox.get(name, server=self._client)
        except NotFound:
            return await self._create(name, labels, run)
        if any(found.labels.get(key) != value for key, value in labels.items()):
            raise Conflict(f"sandbox {name} is not one of this environment", hint=f"skerry rename {name} NAME")
        if found.state == "paused":  # otherwise an earlier run would continue beside the new one
            await found.resume()
        for process in await self._runs_in(found):
            await self._replace(found, process, item.id)
        await found.update(secrets=await asyncio.to_thread(self._secrets, run))
        return found

    def _secrets(self, run: SessionRun) -> tuple[object, ...]:
        """Return all secrets, which can only be replaced together: those of the options, of presets, and of the run."""
        given = secret_values(self._terms.creation.get("secrets", ()))
        names, policy = {secret.name for secret in given}, self._terms.creation.get("network")
        carried = resolve_presets(policy)[1] if policy is not None else ()
        return (*given, *(one for one in carried if one.name not in names), *run.secrets)

    async def _create(self, name: str, labels: Mapping[str, str], run: SessionRun) -> AsyncSandbox:
        given = dict(self._terms.creation)
        given["labels"] = {**given.get("labels", {}), **labels}
        policy: Network = given.pop("network", None) or Network()
        network = replace(
            policy,
            allow=(*policy.allow, *run.network.allow),
            deny=(*policy.deny, *run.network.deny),
            handlers=(*policy.handlers, *run.network.handlers),
        )
        given["secrets"] = (*given.get("secrets", ()), *run.secrets)
        sandbox = await AsyncSandbox.create(self._terms.image, name=name, network=network, server=self._client, **given)
        try:
            await sandbox.run(list(run.setup), user="root", check=True)
        except SkerryError:
            await sandbox.delete(force=True, purge=True)
            raise
        return sandbox

    async def _replace(self, sandbox: AsyncSandbox, process: AsyncProcess, work: str) -> None:
        """End an earlier run of the session, and stop its item unless it is the claimed one: two runs would answer the
        same tool calls."""
        earlier = work_of(process) if process.state == "running" else None
        self._replaced.add(process.id)
        await process.kill()
        await process.wait()
        with contextlib.suppress(NotFound):
            await sandbox.processes.remove(process.id)
        if earlier is not None and earlier != work:
            await self._provider.stop(earlier, "a newer work item of its session was claimed")

    async def _follow(self, sandbox: AsyncSandbox, process: AsyncProcess, work: str) -> None:
        """Wait for the end of a run. Stop its item if the run could not."""
        session = sandbox.labels[LABEL_SESSION]
        try:
            result = await self._ended(process)
            if process.id in self._replaced:
                self._replaced.discard(process.id)
                return
            if result.exit_code == 0:
                self._report("ended", session=session, work=work, sandbox=sandbox.name)
            elif result.exit_code == self._provider.handled:
                self._report("failed", session=session, work=work, sandbox=sandbox.name, reason=last_line(result))
            else:
                await self._fail(work, session, sandbox.name, f"{end_of(result)}: {last_line(result)}")
            with contextlib.suppress(NotFound):
                await sandbox.processes.remove(process.id)
            await sandbox.update(labels={**sandbox.labels, LABEL_USED: str(int(time.time()))})
        except ServerUnreachable as error:  # the run goes on; the next worker waits for it
            self._failure = self._failure or error
            self._draining.set()
        except SkerryError as error:
            await self._fail(work, session, sandbox.name, str(error))

    async def _ended(self, process: AsyncProcess) -> Result:
        end, stop = asyncio.create_task(process.wait()), asyncio.create_task(self._interrupted.wait())
        try:
            await asyncio.wait({end, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                with contextlib.suppress(Conflict):
                    await process.signal("TERM")
                await asyncio.wait({end}, timeout=INTERRUPT_GRACE_S)
            if not end.done():
                await process.kill()
            return await end
        finally:
            stop.cancel()
            end.cancel()

    async def _fail(self, work: str, session: str, sandbox: str | None, reason: str) -> None:
        reason = reason[:MAX_REASON]
        try:
            await self._provider.stop(work, reason)
        except SkerryError as error:
            reason = f"{reason}; and the item was not stopped: {error}"
        self._report("failed", session=session, work=work, sandbox=sandbox, reason=reason)

    # -- all sandboxes of the environment -----------------------------------------------------------------------------

    def _labels(self, session: str | None = None) -> dict[str, str]:
        labels = {LABEL: self._provider.name, LABEL_ENVIRONMENT: self._provider.environment}
        return labels if session is None else {**labels, LABEL_SESSION: session}

    async def _runs_in(self, sandbox: AsyncSandbox) -> list[AsyncProcess]:
        if sandbox.state != "running":
            return []
        return [process for process in await sandbox.processes.list() if process.id.startswith(_RUN)]

    async def _adopt(self) -> None:
        """Wait for the runs of an earlier worker, also for those that have ended since."""
        for sandbox in await AsyncSandbox.list(labels=self._labels(), server=self._client):
            for process in await self._runs_in(sandbox):
                work, session = work_of(process), sandbox.labels.get(LABEL_SESSION)
                if work is not None and session is not None:
                    self._report("adopted", session=session, work=work, sandbox=sandbox.name)
                    self._start(session, self._follow(sandbox, process, work))

    async def _sweep(self) -> None:
        """Delete the sandboxes of sessions that have ended, and those without a run for a long time."""
        for sandbox in await AsyncSandbox.list(labels=self._labels(), server=self._client):
            session = sandbox.labels.get(LABEL_SESSION, "")
            if session in self._runs.values() or await self._runs_in(sandbox):
                continue
            used = int(sandbox.labels.get(LABEL_USED, "") or sandbox.cached_info.created_at)
            old = self._terms.keep_s is not None and time.time() - used > self._terms.keep_s
            try:
                if old or await self._provider.has_ended(session):
                    await sandbox.delete(force=True)
                    self._report("deleted", session=session, sandbox=sandbox.name)
            except SkerryError as error:
                self._report("failed", session=session, sandbox=sandbox.name, reason=f"not deleted: {error}")


def sandbox_name(provider: str, session: str) -> str:
    """Return the name of a session's sandbox. IDs of sessions are case-sensitive, names are not."""
    slug = re.sub(r"[^a-z0-9]+", "-", session.lower()).strip("-")[:32]
    return f"{provider}-{slug}-{hashlib.sha256(session.encode()).hexdigest()[:8]}"


def work_of(process: AsyncProcess) -> str | None:
    """Return the item of a run, from its arguments."""
    words = process.cached_info.cmd
    if isinstance(words, str) or _WORK not in words[:-1]:
        return None
    return words[words.index(_WORK) + 1]


def end_of(result: Result) -> str:
    if result.oom_killed:
        return "the run was out of memory"
    return f"the run ended by {result.signal}" if result.signal else f"the run ended with exit code {result.exit_code}"


def last_line(result: Result) -> str:
    return " ".join((result.stderr or result.stdout)[-MAX_REASON:].strip().rpartition("\n")[2].split())
