"""Who may have written to a workspace since it was last looked at: commands, and calls of the files API.

A look (`Look`) is one collection of changes. Whoever was active at any moment since the look before is named by it;
whoever had ended by then is forgotten once its outcome is safe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from skerry.keeper import Process

COMMAND_MOST = 4096  # characters of a command that an entry of the ledger tells
NAMED_MOST = 64  # commands that one entry names
KNOWN_MOST = 10_000


@dataclass(frozen=True)
class Actor:
    """`command` None: a call of the files API. `heard`: how many tries to get out were told before it began. `started`:
    its keeper knows it. `kernel`: the process that runs it, if that outlives it."""

    id: str
    command: str | None = None
    heard: int = 0
    started: bool = True
    ended: bool = False
    exit_code: int | None = None
    duration_s: float | None = None
    kernel: str | None = None

    @property
    def process(self) -> str:
        return self.kernel or self.id

    def after(self, process: Process) -> Actor:
        """As its end shows it."""
        return replace(self, ended=True, exit_code=process.exit_code, duration_s=process.duration_s)


@dataclass(frozen=True)
class Look:
    """The actors that count for one collection."""

    actors: tuple[Actor, ...]

    @property
    def commands(self) -> tuple[Actor, ...]:
        return tuple(actor for actor in self.actors if actor.command is not None)

    @property
    def kind(self) -> Literal["api", "command", "background"]:
        """What came by the files API is told as that: its calls are short, a command beside them may last for hours."""
        if len(self.actors) > len(self.commands):
            return "api"
        return "command" if self.actors else "background"

    @property
    def text(self) -> str:
        named = list(dict.fromkeys(actor.command or "" for actor in self.commands[:NAMED_MOST]))
        if (more := len(self.commands) - NAMED_MOST) > 0:
            named.append(f"… and {more} more")
        return "\n".join(named)[:COMMAND_MOST]

    @property
    def alone(self) -> Actor | None:
        """The one command that it can only have been, if it has ended."""
        return self.actors[0] if len(self.actors) == 1 and self.commands and self.actors[0].ended else None

    @property
    def running(self) -> bool:
        return any(not actor.ended for actor in self.commands)


class Actors:
    def __init__(self) -> None:
        self._known: dict[str, Actor] = {}

    def begin(self, actor: Actor) -> None:
        """While nothing can be kept, they add up: the oldest that have ended are forgotten."""
        self._known.setdefault(actor.id, actor)
        if len(self._known) > KNOWN_MOST:
            ended = (name for name, one in self._known.items() if one.ended)
            self._known.pop(next(ended, ""), None)

    def end(self, name: str, process: Process | None = None) -> bool:
        """Was it known, and not to have ended?"""
        actor = self._known.get(name)
        if actor is None or actor.ended:
            return False
        self._known[name] = actor.after(process) if process is not None else replace(actor, ended=True)
        return True

    def turned(self, name: str, exit_code: int | None, duration_s: float) -> None:
        """What a kernel ran is over."""
        if (actor := self._known.get(name)) is not None:
            self._known[name] = replace(actor, ended=True, exit_code=exit_code, duration_s=duration_s)

    def started(self, name: str) -> None:
        if (actor := self._known.get(name)) is not None:
            self._known[name] = replace(actor, started=True)

    def never(self, name: str) -> None:
        """It was not started after all."""
        self._known.pop(name, None)

    def over(self) -> None:
        """The sandbox ended, and with it what ran."""
        for name in self._known:
            self.end(name)

    @property
    def running(self) -> list[str]:
        """Commands that were started, and are not known to have ended; what a kernel runs, its run tells of."""
        known = (one for one in self._known.values() if one.command is not None and one.kernel is None)
        return [one.id for one in known if one.started and not one.ended]

    def look(self) -> Look:
        return Look(tuple(self._known.values()))

    def seen(self, look: Look) -> None:
        """What they did is in the ledger. One that ended since is still to be looked after."""
        for actor in look.actors:
            if actor.ended and self._known.get(actor.id) == actor:
                del self._known[actor.id]


def shown(command: str | Iterable[str]) -> str:
    """A command as it was typed, within bounds."""
    text = command if isinstance(command, str) else " ".join(map(_quoted, command))
    return text if len(text) <= COMMAND_MOST else text[: COMMAND_MOST - 1] + "…"


def _quoted(word: str) -> str:
    """For a shell, and for people: as few quotes as will do."""
    return f'"{word}"' if "'" in word and not set('"$`\\!\n') & set(word) else shlex.quote(word)
