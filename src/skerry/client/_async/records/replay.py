"""Replays: the steps of a trace, run again in a new sandbox and compared."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from skerry.client._async.code import run_code
from skerry.client._async.processes import AsyncProcess, AsyncRun, prepare_stdin
from skerry.client._async.repository import review_tree
from skerry.client.replay import actions as plans
from skerry.client.replay.actions import NotRepeatable, ReplayAction
from skerry.client.replay.compare import StepComparison, compare_trees
from skerry.client.replay.report import Observation, end_of, report_of
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests import sandboxes, snapshots
from skerry.client.transport.requests.sandboxes import json_request
from skerry.codecs.cassette import MAX_SIZE
from skerry.codecs.traces import TraceFile
from skerry.errors import (
    CommandTimeout,
    InvalidRequest,
    NotFound,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.types import ProcessInfo, RunRequest, SandboxInfo, SnapshotDiff, SnapshotInfo
from skerry.types.replays import ReplayReport, ReplayRequest
from skerry.types.traces import TraceStep

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient
    from skerry.client._async.sandbox import AsyncSandbox

MAX_TRACE = 4 << 30  # bytes of an exported trace


@dataclass(frozen=True)
class ReplayOptions:
    """`until`: the number of the last step to repeat. `keep`: keep the sandbox. `network`: allow the hosts of the
    recorded policy, by default no host. `step_timeout`: the maximum seconds of a step. `on_step`: called before each
    step."""

    until: int | None = None
    keep: bool = False
    network: bool = False
    step_timeout: float | None = None
    on_step: backend.Callback[TraceStep] | None = None


async def replay_file(client: AsyncClient, path: str | os.PathLike[str], options: ReplayOptions) -> ReplayReport:
    """Replay an exported trace of this machine."""
    try:
        file = await backend.in_thread(open, path, "rb")
    except OSError as error:
        raise InvalidRequest(f"{os.fspath(path)}: {error.strerror}", hint="`skerry trace export` makes it") from None
    with file:
        return await _Replay(client, await _opened(file), options).run()


async def replay_sandbox(client: AsyncClient, ref: str, options: ReplayOptions) -> ReplayReport:
    """Replay a sandbox, by ID or name, also a deleted one by its ID; or the steps after a snapshot, from its files."""
    snapshot = await _snapshot(client, ref)
    source = ref if snapshot is None else snapshot.sandbox or ""
    async with exported(client, source) as file:
        return await _Replay(client, await _opened(file), options, snapshot, is_own=True).run()


async def _snapshot(client: AsyncClient, ref: str) -> SnapshotInfo | None:
    """Return the snapshot of that ID or name, unless a sandbox has it."""
    try:
        await client.request_json(sandboxes.get(ref), SandboxInfo)
    except NotFound:
        with contextlib.suppress(NotFound):
            return await client.request_json(snapshots.get(ref), SnapshotInfo)
    return None


async def _opened(file: IO[bytes]) -> TraceFile:
    return await backend.in_thread(lambda: TraceFile(file, max_size=MAX_TRACE))


@contextlib.asynccontextmanager
async def exported(client: AsyncClient, ref: str) -> AsyncIterator[IO[bytes]]:
    """Yield a temporary file with the trace of a sandbox."""
    with tempfile.TemporaryFile(prefix="skerry-trace-") as file:
        async with client.stream(sandboxes.export_trace(ref)) as chunks:
            async for chunk in chunks:
                file.write(chunk)
        yield file


@dataclass
class _Running:
    """A command that other steps overlap."""

    action: ReplayAction
    process: AsyncProcess
    timeout: float


@dataclass
class _Replay:
    client: AsyncClient
    trace: TraceFile
    options: ReplayOptions
    snapshot: SnapshotInfo | None = None
    is_own: bool = False  # the server's trace: a file from elsewhere must not name another sandbox of the caller
    processes: dict[str, str] = field(default_factory=dict)  # IDs of the replay by IDs of the trace
    snapshots: dict[str, str] = field(default_factory=dict)
    running: list[_Running] = field(default_factory=list)
    observed: dict[int, Observation] = field(default_factory=dict)

    async def run(self) -> ReplayReport:
        steps, options = self.trace.trace.steps, self.options
        after = plans.first_step(steps, self.snapshot)
        every = plans.actions_of(steps, after)
        chosen = [action for action in every if options.until is None or action.step.n <= options.until]
        beyond = every[len(chosen)].step if len(chosen) < len(every) else None
        cassette = self.trace.manifest.cassette if not options.network else None
        if cassette is not None and self.trace.manifest.blobs[cassette] > MAX_SIZE:
            raise InvalidRequest("this is not an exported trace: its cassette is too large")
        request, notes = plans.replay_request(
            steps, self.snapshot, network=options.network, keep=options.keep, cassette=cassette is not None
        )
        sandbox = await self._create(request)
        done = False
        try:
            if cassette is not None:
                await sandbox.network.load_cassette(await backend.in_thread(self.trace.blob, cassette))
            await self._repeat(sandbox, chosen)
            base = await self._base(sandbox, chosen)
            async with exported(self.client, sandbox.id) as file:
                again = await _opened(file)
                trees, why = await self._trees(sandbox, beyond)
                notes += plans.notes_of(self.trace) + [f"files were not compared: {why}"] * (why is not None)
                report = await backend.in_thread(
                    report_of, self.trace, again, chosen, self.observed,
                    beyond=beyond, base=base, trees=trees, sandbox=sandbox.id, kept=options.keep, notes=notes,
                )  # fmt: skip
            done = True
            return report
        finally:
            if not (done and options.keep):
                await self._remove(sandbox)

    async def _create(self, request: ReplayRequest) -> AsyncSandbox:
        from skerry.client._async.sandbox import AsyncSandbox  # it has the records, which start replays

        message = replace(json_request("POST", "/v1/replays", request), key=str(uuid4()))
        try:
            info = await self.client.request_json(message, SandboxInfo)
        except Exception:
            raise
        except BaseException:  # interrupted: the same key names the same sandbox
            with contextlib.suppress(SkerryError):
                info = await self.client.request_json(sandboxes.for_clean_up(message), SandboxInfo)
                await self._delete(info.id)
            raise
        return AsyncSandbox._of(info, self.client, shared=True)

    async def _remove(self, sandbox: AsyncSandbox) -> None:
        """Delete the sandbox, then its snapshots, which it needs."""
        await self._delete(sandbox.id)
        for snapshot in set(self.snapshots.values()):
            with contextlib.suppress(SkerryError):
                await self.client.request(sandboxes.for_clean_up(snapshots.delete(snapshot)))

    async def _delete(self, sandbox_id: str) -> None:
        with contextlib.suppress(NotFound, ServerUnreachable):
            await self.client.request(sandboxes.for_clean_up(sandboxes.delete(sandbox_id, force=True, purge=True)))

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _repeat(self, sandbox: AsyncSandbox, chosen: list[ReplayAction]) -> None:
        if self.snapshot is not None:
            await self._take_snapshot(sandbox, {self.snapshot.id, self.snapshot.name or self.snapshot.id})
        for action in chosen:
            await self._finish(action.step.n)
            if self.options.on_step is not None:
                await backend.deliver(self.options.on_step, action.step)
            self.observed[action.step.n] = await self._observed(sandbox, action)
        await self._finish(None)

    async def _base(self, sandbox: AsyncSandbox, chosen: list[ReplayAction]) -> set[str] | None:
        """Return the paths at the start of the review. Reading them collects changes that no command has collected
        yet."""
        if not any(action.step.kind == "review.begin" for action in chosen):
            return None
        try:
            head, files = await review_tree(self.client, sandbox.id, ())
        except SkerryError:
            return None
        known = (path for path, versions in files.items() if versions.synced is not None)
        return {f"{head.path.rstrip('/')}/{os.fsdecode(path)}" for path in known}

    async def _trees(self, sandbox: AsyncSandbox, beyond: TraceStep | None) -> tuple[StepComparison, str | None]:
        """Compare the files at the end of the trace without a review, as long as its sandbox has them: with a snapshot
        of the replay. Return the reason if they were not compared."""
        if plans.has_review(self.trace):
            return StepComparison(), None
        if not self.is_own:
            return StepComparison(), "the trace has no review, and is a file"
        if beyond is not None:
            return StepComparison(), "the trace has no review, and the replay ended before its last step"
        source, steps = self.trace.manifest.sandbox, self.trace.trace.steps
        try:
            taken = await self.client.request_json(plans.snapshot_request(sandbox.id), SnapshotInfo)
        except SkerryError as error:
            return StepComparison(), error.message
        try:
            diff = await self.client.request_json(snapshots.changes(taken.id, source), SnapshotDiff)
            async with exported(self.client, source) as file:
                now = (await _opened(file)).trace.steps
        except NotFound:
            return StepComparison(), "the trace has no review, and its sandbox was deleted"
        except SkerryError as error:
            return StepComparison(), error.message
        finally:
            with contextlib.suppress(SkerryError):
                await self.client.request(sandboxes.for_clean_up(snapshots.delete(taken.id)))
        if len(plans.actions_of(now)) != len(plans.actions_of(steps)):
            return StepComparison(), "the trace has no review, and its sandbox has gone on since"
        if diff.truncated:
            return StepComparison(), "too many files differ"
        return await backend.in_thread(compare_trees, diff, plans.workspace_of(steps)), None

    async def _observed(self, sandbox: AsyncSandbox, action: ReplayAction) -> Observation:
        """Repeat a step. A failure of the server ends the replay; a failure of the step is its outcome."""
        try:
            return await self._perform(sandbox, action)
        except NotRepeatable as error:
            return Observation(reason=str(error))
        except (ServerUnreachable, plans.InvalidTrace):
            raise
        except SkerryError as error:
            return Observation(error=error)

    async def _perform(self, sandbox: AsyncSandbox, action: ReplayAction) -> Observation:
        step, most = action.step, self.options.step_timeout
        if step.kind == "code.run":
            await run_code(sandbox, plans.code_of(action, self.trace, most), False, None)
            return Observation()
        if step.kind in ("process.run", "process.spawn"):
            return await self._command(sandbox, action, *plans.run_of(action, self.trace, most))
        if step.kind == "snapshot.take":
            await self._take_snapshot(sandbox, plans.snapshot_names(step, self.trace))
            return Observation(end=step.end)
        if step.kind == "sandbox.rollback":
            request = plans.rollback_request(sandbox.id, step, self.trace, self.snapshots)
        else:
            request = plans.request_of(sandbox.id, step, self.trace, self.processes)
        await self.client.request(plans.with_body(request, backend.chunks))
        return Observation()

    async def _command(
        self, sandbox: AsyncSandbox, action: ReplayAction, request: RunRequest, stdin: bytes | None
    ) -> Observation:
        step = action.step
        if step.kind == "process.run" and not action.background:
            payload, source = prepare_stdin(request, stdin)
            result = await AsyncRun(sandbox, payload, source, None).result()
            self.processes[step.process or ""] = result.id
            return Observation(process=result.id)
        payload = request if stdin is None else sandboxes.with_stdin(request, stdin)
        info = await self.client.request_json(sandboxes.spawn(sandbox.id, payload), ProcessInfo)
        self.processes[step.process or ""] = info.id
        if step.end is not None:
            timeout = plans.step_timeout(step, request.timeout, self.options.step_timeout)
            self.running.append(_Running(action, AsyncProcess(sandbox, info), timeout))
        return Observation(process=info.id)

    async def _finish(self, before: int | None) -> None:
        """Wait for the background processes that had ended before this step of the trace; None: for all."""
        for one in self.running[:]:
            if before is None or one.action.last < before:
                self.running.remove(one)
                self.observed[one.action.step.n] = await self._waited(one)

    async def _waited(self, one: _Running) -> Observation:
        try:
            return Observation(process=one.process.id, end=end_of(await one.process.wait(one.timeout)))
        except CommandTimeout:
            await one.process.kill()
            return Observation(reason=f"it was still running after {one.timeout:g} seconds")
        except SandboxUnavailable as error:
            return Observation(error=error)

    async def _take_snapshot(self, sandbox: AsyncSandbox, names: set[str]) -> None:
        """Take a snapshot if the trace rolls back to it later."""
        if names & plans.rollback_targets(self.trace):
            info = await self.client.request_json(plans.snapshot_request(sandbox.id), SnapshotInfo)
            self.snapshots |= dict.fromkeys(names, info.id)
