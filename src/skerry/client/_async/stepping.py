"""The steps of a build in its sandbox, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import network_requests, snapshot_requests
from skerry.client._async.placing import AsyncPlacer
from skerry.client.building.options import Tail, at_step, failed
from skerry.client.building.plan import Command, Placing, Plan, Task
from skerry.client.building.presets import Presets
from skerry.client.building.steps import Manager
from skerry.client.egress import secret_values
from skerry.client.outcome import Output
from skerry.errors import CommandFailed, CommandTimeout, SkerryError
from skerry.types import NetworkChange, NetworkInfo, SnapshotInfo, SnapshotRequest

if TYPE_CHECKING:
    from skerry.client._async.building import AsyncBuilder
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncStepping:
    def __init__(
        self, builder: AsyncBuilder, plan: Plan, sandbox: AsyncSandbox, presets: Presets, *, replace: bool
    ) -> None:
        self._builder = builder
        self._plan = plan
        self._sandbox = sandbox
        self._presets = presets
        self._network = sandbox.known.network  # what every step may reach
        self._preset: Manager | None = None
        self._ran = False
        self._replace = replace

    async def all(self, first: int) -> SnapshotInfo:
        """From that task on; the snapshot after the last."""
        plan, marks = self._plan, set(self._plan.marks)
        for at in range(first, len(plan.tasks)):
            await self._builder.tell(plan, at)
            task = plan.tasks[at]
            try:
                await self._do(at, task)
                info = await self._snapshot(task) if at in marks else None
            except (CommandFailed, CommandTimeout):
                raise
            except SkerryError as error:
                raise at_step(task.step, error) from error
        assert info is not None  # noqa: S101  (the last is always a mark)
        return info

    async def _do(self, at: int, task: Task) -> None:
        for directory in task.directories:
            await self._sandbox.files.mkdir(directory, user="root")
        match task.action:
            case Command() as command:
                await self._allow(command.preset)
                await self._run(at, task, command)
            case Placing() as placing:
                await AsyncPlacer(self._builder, self._sandbox, placing).place()

    async def _run(self, at: int, task: Task, command: Command) -> None:
        tail, on_output = Tail(), self._builder.options.on_output

        async def heard(output: Output) -> None:
            tail.add(output)
            if on_output is not None:
                await backend.deliver(on_output, output)

        self._ran = self._ran or command.preset is None
        result = await self._sandbox.run(
            command.cmd, env=command.env, cwd=command.cwd, user=command.user, stdin=command.stdin,
            timeout=self._builder.options.timeout, on_output=heard,
        )  # fmt: skip
        if not result.ok:
            raise failed(task.step, at + 1, len(self._plan.tasks), result, tail.text)

    async def _allow(self, preset: Manager | None) -> None:
        """What this step's program needs, and nothing of what the last one's did."""
        if preset == self._preset:
            return
        client, ref = self._sandbox.client, self._sandbox.id
        if preset is not None and self._ran:  # what an earlier step left running must not reach what this one may
            await self._sandbox.stop()
            await self._sandbox.resume()
            self._ran = False
        presets, secrets = self._presets[preset] if preset is not None else ((), ())
        if self._preset is not None:
            await client.value(network_requests.set_(ref, self._network), NetworkInfo)
        if secrets or (self._preset is not None and self._presets[self._preset][1]):
            given = await backend.in_thread(secret_values, self._builder.options.secrets)
            await self._sandbox.update(secrets=(*given, *secrets))
        if presets:
            await client.value(network_requests.change(ref, NetworkChange(presets=presets)), NetworkInfo)
        self._preset = preset

    async def _snapshot(self, task: Task) -> SnapshotInfo:
        state = task.state
        wish = SnapshotRequest(
            key=task.key, env=dict(state.added), user=state.user, cwd=state.cwd, entrypoint=state.entrypoint,
            cmd=state.cmd, replace=self._replace,
        )  # fmt: skip
        return await self._sandbox.client.value(snapshot_requests.take(self._sandbox.id, wish), SnapshotInfo)
