"""Writers: commands and calls of the files API that may have written to a workspace since the last collection.

A `Collection` names every writer that was active at any moment since the previous one. A writer that had ended by then
is forgotten once the commit is safe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from skerry.keeper import Process

MAX_COMMAND = 4096  # characters of a command in a ledger entry
MAX_NAMED = 64  # commands that one entry names
MAX_KNOWN = 10_000


@dataclass(frozen=True)
class Writer:
    """`command` None: a call of the files API. `heard`: the number of network attempts before it started. `started`:
    the keeper knows it. `kernel`: the process that runs it, if that outlives it. `steps`: commits made while it ran.
    `within`: the command of an agent that reported this as its tool call; `paths`: the files that the call named."""

    id: str
    command: str | None = None
    heard: int = 0
    started: bool = True
    ended: bool = False
    exit_code: int | None = None
    duration_s: float | None = None
    kernel: str | None = None
    ended_at: float | None = None
    signal: str | None = None
    cpu_s: float | None = None
    memory_peak: int | None = None
    steps: int = 0
    within: str | None = None
    paths: tuple[str, ...] = ()

    @property
    def process(self) -> str:
        return self.kernel or self.id

    def after(self, process: Process) -> Writer:
        """As its end shows it."""
        return replace(
            self, ended=True, exit_code=process.exit_code, duration_s=process.duration_s, ended_at=process.ended_at,
            signal=process.signal, cpu_s=process.cpu_s, memory_peak=process.max_rss,
        )  # fmt: skip


@dataclass(frozen=True)
class Collection:
    """The actors that count for one collection."""

    writers: tuple[Writer, ...]

    @property
    def commands(self) -> tuple[Writer, ...]:
        """Return the commands, without an agent's while its tool calls are known."""
        agents = {writer.process for writer in self.writers if writer.within is not None}
        return tuple(writer for writer in self.writers if writer.command is not None and writer.id not in agents)

    @property
    def kind(self) -> Literal["api", "command", "background"]:
        """Return the kind of entry. Changes during a call of the files API are attributed to it: calls are short, while
        a command may run for hours."""
        if any(writer.command is None for writer in self.writers):
            return "api"
        return "command" if self.writers else "background"

    @property
    def text(self) -> str:
        named = list(dict.fromkeys(writer.command or "" for writer in self.commands[:MAX_NAMED]))
        if (more := len(self.commands) - MAX_NAMED) > 0:
            named.append(f"… and {more} more")
        return "\n".join(named)[:MAX_COMMAND]

    @property
    def alone(self) -> Writer | None:
        """The one command that it can only have been, if it has ended."""
        return self.writers[0] if len(self.writers) == 1 and self.commands and self.writers[0].ended else None

    @property
    def running(self) -> bool:
        return any(not writer.ended for writer in self.commands)


class Writers:
    def __init__(self) -> None:
        self._known: dict[str, Writer] = {}

    def begin(self, writer: Writer) -> None:
        """While nothing can be kept, they add up: the oldest that have ended are forgotten."""
        self._known.setdefault(writer.id, writer)
        if len(self._known) > MAX_KNOWN:
            ended = (name for name, one in self._known.items() if one.ended)
            self._known.pop(next(ended, ""), None)

    def end(self, name: str, process: Process | None = None) -> bool:
        """Was it known, and not to have ended?"""
        writer = self._known.get(name)
        if writer is None or writer.ended:
            return False
        self._known[name] = writer.after(process) if process is not None else replace(writer, ended=True)
        for one in self.tool_calls(name):
            self._known[one.id] = replace(one, ended=True)
        return True

    def tool_calls(self, process: str) -> list[Writer]:
        """Return the tool calls of a process that have not ended."""
        return [
            one for one in self._known.values() if one.within is not None and one.kernel == process and not one.ended
        ]

    def get(self, name: str) -> Writer | None:
        return self._known.get(name)

    def end_run(self, name: str, exit_code: int | None, duration_s: float | None) -> None:
        """End the writer of a kernel's run, or of a tool call."""
        if (writer := self._known.get(name)) is not None:
            self._known[name] = replace(writer, ended=True, exit_code=exit_code, duration_s=duration_s)

    def renamed(self, name: str, command: str, paths: tuple[str, ...]) -> None:
        """Replace the title of a tool call, and its files, by those that are given."""
        if (writer := self._known.get(name)) is not None:
            self._known[name] = replace(writer, command=command or writer.command, paths=paths or writer.paths)

    def started(self, name: str) -> None:
        if (writer := self._known.get(name)) is not None:
            self._known[name] = replace(writer, started=True)

    def forget(self, name: str) -> None:
        """Forget a command that was not started after all."""
        self._known.pop(name, None)

    def end_all(self) -> None:
        """End all writers: the sandbox ended."""
        for name in self._known:
            self.end(name)

    @property
    def running(self) -> list[str]:
        """Return commands that started and are not known to have ended, without runs in kernels, which report their own
        end."""
        known = (one for one in self._known.values() if one.command is not None and one.kernel is None)
        return [one.id for one in known if one.started and not one.ended]

    def start_collection(self) -> Collection:
        return Collection(tuple(self._known.values()))

    def finish_collection(self, collection: Collection, *, committed: bool) -> list[Writer]:
        """Return the writers that ended before the collection: their changes are in the ledger. One that ended since
        needs another collection."""
        finished = []
        for writer in collection.writers:
            now = self._known.get(writer.id)
            if writer.ended and now == writer:
                finished.append(writer)
            elif now is not None and committed:
                self._known[writer.id] = replace(now, steps=now.steps + 1)
        return finished

    def forget_all(self, writers: Iterable[Writer]) -> None:
        """Forget writers with stored records: a reader that takes `snapshot()` first sees each in one of the two."""
        for writer in writers:
            if self._known.get(writer.id) == writer:
                del self._known[writer.id]

    def snapshot(self) -> dict[str, Writer]:
        """Return the writers that were not collected to their end, by ID."""
        return dict(self._known)


def shown(command: str | Iterable[str]) -> str:
    """A command as it was typed, within bounds."""
    text = command if isinstance(command, str) else " ".join(map(_quoted, command))
    return text if len(text) <= MAX_COMMAND else text[: MAX_COMMAND - 1] + "…"


def _quoted(word: str) -> str:
    """Quote a word for a shell with as few quotes as possible, so that people can read it."""
    return f'"{word}"' if "'" in word and not set('"$`\\!\n') & set(word) else shlex.quote(word)
