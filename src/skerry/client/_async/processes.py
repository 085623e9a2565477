"""`sandbox.processes`: what runs, or ran, inside."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client import requests
from skerry.client._async.process import AsyncProcess
from skerry.client.responses import ProcessList
from skerry.types import ProcessInfo

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncProcesses:
    """Runs and spawned ones alike; those that have ended stay until they are removed, or the sandbox goes."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncProcess]:
        """All of them, oldest first."""
        sandbox = self._sandbox
        listed = await sandbox.client.value(requests.processes(sandbox.id), ProcessList)
        return [AsyncProcess(sandbox, info) for info in listed.processes]

    async def get(self, process: str) -> AsyncProcess:
        """One, by its id; also `result.id` of a run."""
        sandbox = self._sandbox
        return AsyncProcess(sandbox, await sandbox.client.value(requests.process(sandbox.id, process), ProcessInfo))

    async def signal(self, process: str, name: str = "TERM") -> None:
        """Send a signal to a process. KILL takes its whole tree, also what left its session."""
        sandbox = self._sandbox
        await sandbox.client.done(requests.signal(sandbox.id, process, name))

    async def remove(self, process: str) -> None:
        """Forget a process that has ended, and its output."""
        sandbox = self._sandbox
        await sandbox.client.done(requests.remove_process(sandbox.id, process))
