"""Whose turn it is in a session, or a context of code: one command of each at a time, those who wait in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from skerry.errors import QuotaExceeded
from skerry.keeper import Keeper

MOST_WAITING: Final = 64


class Line:
    """`turn` is held by the command that runs; asyncio's lock is fair, and a caller who gives up while waiting is out
    of the queue."""

    what = "session"

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0

    @property
    def busy(self) -> bool:
        return self.turn.locked() or self.waiting > 0

    async def take_turn(self) -> None:
        if self.waiting >= MOST_WAITING:
            raise QuotaExceeded(
                f"{self.waiting} commands wait for their turn in this {self.what} already",
                hint=f"commands of one {self.what} run one after another; another {self.what} runs beside it",
            )
        self.waiting += 1
        try:
            await self.turn.acquire()
        finally:
            self.waiting -= 1


class Shell(Line):
    """What the server holds of one session."""

    def __init__(self) -> None:
        super().__init__()
        self.bash = ""
        self.user = ""
        self.keeper: Keeper | None = None  # for which its files were made ready
        self.holders = 0


class Shells:
    """The sessions of one sandbox that are in use, or were since its start. `making`: held to make or remove one."""

    def __init__(self) -> None:
        self.making = asyncio.Lock()
        self._known: dict[str, Shell] = {}

    def look(self, name: str) -> tuple[bool, int]:
        """Whether a command of it runs, and how many wait."""
        shell = self._known.get(name)
        return (shell.busy, shell.waiting) if shell is not None else (False, 0)

    @contextmanager
    def hold(self, name: str) -> Iterator[Shell]:
        """One that turns out not to exist is not remembered: asking for names must not fill the memory."""
        shell = self._known.setdefault(name, Shell())
        shell.holders += 1
        try:
            yield shell
        finally:
            shell.holders -= 1
            if not shell.holders and shell.keeper is None:
                del self._known[name]
