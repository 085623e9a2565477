"""Locks of sessions and code contexts: one command of each at a time, waiting commands in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from skerry.errors import QuotaExceeded
from skerry.keeper import Keeper

MAX_WAITING: Final = 64


class FifoLock:
    """`turn` is held by the running command. asyncio's lock is fair, and a caller that is cancelled while waiting
    leaves the queue."""

    what = "session"

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0

    @property
    def busy(self) -> bool:
        return self.turn.locked() or self.waiting > 0

    async def take_turn(self) -> None:
        if self.waiting >= MAX_WAITING:
            raise QuotaExceeded(
                f"{self.waiting} commands are already waiting in this {self.what}",
                hint=f"commands of one {self.what} run one after another; another {self.what} runs beside it",
            )
        self.waiting += 1
        try:
            await self.turn.acquire()
        finally:
            self.waiting -= 1


class SessionState(FifoLock):
    """A session in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.bash = ""
        self.user = ""
        self.keeper: Keeper | None = None  # for which the session's files were prepared
        self.full = False  # the disk was full then
        self.holders = 0


class SessionStates:
    """The sessions of one sandbox that are in use, or were since its start. `making`: held to make or remove one."""

    def __init__(self) -> None:
        self.making = asyncio.Lock()
        self._known: dict[str, SessionState] = {}

    def look(self, name: str) -> tuple[bool, int]:
        """Whether a command of it runs, and how many wait."""
        shell = self._known.get(name)
        return (shell.busy, shell.waiting) if shell is not None else (False, 0)

    @contextmanager
    def hold(self, name: str) -> Iterator[SessionState]:
        """One that turns out not to exist is not remembered: asking for names must not fill the memory."""
        shell = self._known.setdefault(name, SessionState())
        shell.holders += 1
        try:
            yield shell
        finally:
            shell.holders -= 1
            if not shell.holders and shell.keeper is None:
                del self._known[name]
