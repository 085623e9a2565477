"""The open connections of the preview listener: how many there are in all and of each source."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from skerry.network.listen import source_of

Task = asyncio.Task[None]


class ConnectionTable:
    """The tasks of open connections by source. Of a source that has too many, and of all if there are too many, the
    oldest connection without a request is closed for a new one: slow clients lock out no other."""

    def __init__(self) -> None:
        self.max_per_address = 1024
        self.tasks: dict[Task, str] = {}
        self._of: defaultdict[str, set[Task]] = defaultdict(set)
        # Those that wait for a request, the oldest first
        self._idle: dict[Task, asyncio.StreamWriter] = {}
        self._idle_of: defaultdict[str, dict[Task, None]] = defaultdict(dict)

    def make_room(self, writer: asyncio.StreamWriter, most: int) -> bool:
        """Return whether the client of that connection may have another one."""
        source = _source(writer)
        if len(self._of.get(source, ())) >= self.max_per_address and not self._evict(self._idle_of.get(source, {})):
            return False
        return len(self.tasks) < most or self._evict(self._idle)

    def add(self, task: Task, writer: asyncio.StreamWriter) -> None:
        source = _source(writer)
        self.tasks[task] = source
        self._of[source].add(task)
        task.add_done_callback(self._remove)
        self.wait(task, writer)

    def wait(self, task: Task, writer: asyncio.StreamWriter) -> None:
        """Note that the connection waits for a request."""
        if task in self.tasks:
            self._idle[task] = writer
            self._idle_of[self.tasks[task]][task] = None

    def serve(self, task: Task) -> None:
        """Note that the connection has a request."""
        self._idle.pop(task, None)
        source = self.tasks.get(task, "")
        if waiting := self._idle_of.get(source):
            waiting.pop(task, None)
            if not waiting:
                del self._idle_of[source]

    def _remove(self, task: Task) -> None:
        if task not in self.tasks:
            return
        self.serve(task)
        source = self.tasks.pop(task)
        self._of[source].discard(task)
        if not self._of[source]:
            del self._of[source]

    def _evict(self, waiting: dict[Task, asyncio.StreamWriter] | dict[Task, None]) -> bool:
        task = next(iter(waiting), None)
        if task is None:
            return False
        self._idle[task].transport.abort()
        task.cancel()
        self._remove(task)
        return True


def _source(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return source_of(name[0]) if isinstance(name, tuple) else ""
