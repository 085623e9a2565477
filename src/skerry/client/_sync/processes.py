# Generated from client/_async/processes.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.processes`: what runs, or ran, inside."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client import requests
from skerry.client._sync.process import Process
from skerry.client.responses import ProcessList
from skerry.types import ProcessInfo

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


class Processes:
    """Runs and spawned ones alike; those that have ended stay until they are removed, or the sandbox goes."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def list(self) -> builtins.list[Process]:
        """All of them, oldest first."""
        sandbox = self._sandbox
        listed = sandbox.client.value(requests.processes(sandbox.id), ProcessList)
        return [Process(sandbox, info) for info in listed.processes]

    def get(self, process: str) -> Process:
        """One, by its id; also `result.id` of a run."""
        sandbox = self._sandbox
        return Process(sandbox, sandbox.client.value(requests.process(sandbox.id, process), ProcessInfo))

    def signal(self, process: str, name: str = "TERM") -> None:
        """Send a signal to a process. KILL takes its whole tree, also what left its session."""
        sandbox = self._sandbox
        sandbox.client.done(requests.signal(sandbox.id, process, name))

    def remove(self, process: str) -> None:
        """Forget a process that has ended, and its output."""
        sandbox = self._sandbox
        sandbox.client.done(requests.remove_process(sandbox.id, process))
