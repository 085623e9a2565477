"""A workspace under review: its ledger, what was last seen of its files, and who watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skerry.engine.actors import Actor, Actors, shown
from skerry.engine.live import Live
from skerry.engine.manifest import Manifest, save
from skerry.engine.onlookers import Onlooker
from skerry.engine.review_table import ReviewState, ReviewTable
from skerry.errors import Conflict, SkerryError
from skerry.keeper import Keeper, Process
from skerry.review.ledger import Ledger
from skerry.types import ReviewEvent

log = logging.getLogger("skerry.engine")
MANIFEST = "manifest"


class Tracked:
    """`lock`: whoever writes to the ledger, moves its base or changes decisions holds it. `trouble`: why what came last
    is not in the ledger."""

    def __init__(self, live: Live, state: ReviewState, ledger: Ledger | None, ended: Callable[[Tracked], None]) -> None:
        """Without a ledger: it is there, and damaged."""
        self.live = live
        self.state = state
        self._ledger = ledger
        self.lock = asyncio.Lock()
        self.trouble: str | None = None
        self.actors = Actors()
        self.manifest: Manifest | None = None
        self.keeper: Keeper | None = None  # whose tracker and seq these are
        self.tracker = ""
        self.seq = 0
        self.following: asyncio.Task[None] | None = None
        self.followed: Keeper | None = None
        self.begun = asyncio.Event()  # what its new keeper had to be told, it was
        self.telling: asyncio.Task[None] | None = None
        self.due = False  # somebody is about to look
        self.tried_at = -math.inf
        self.alone = 0  # commits since a command, or a call of the files API, ended
        self.stale = False  # something ended since every file was last looked at
        self.unsaved = False
        self.saved_at = 0.0
        self._ended = ended
        self._onlookers: set[Onlooker] = set()

    @property
    def sandbox(self) -> str:
        return self.live.row.id

    @property
    def path(self) -> str:
        return self.state.path

    @property
    def sound(self) -> bool:
        return self._ledger is not None

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise Conflict(
                f"the ledger of {self.sandbox} is damaged",
                hint="its files are whole: `skerry cp` gets them out; the server's log says what is wrong",
            )
        return self._ledger

    @property
    def place(self) -> Path:
        """Where its ledger lies, and what belongs to it."""
        return self.ledger.place.parent

    def well(self) -> None:
        if self.trouble is not None:
            log.info("changes are kept again", extra={"sandbox": self.sandbox})
            self._be(None)

    def ill(self, why: str) -> None:
        if self.trouble != why:
            log.warning("changes not kept", extra={"sandbox": self.sandbox, "error": why})
            self._be(why)

    def _be(self, trouble: str | None) -> None:
        self.trouble = trouble
        self.tell(ReviewEvent(type="trouble", sandbox=self.sandbox, tip="", trouble=trouble))

    def keep(self, table: ReviewTable, **changes: Any) -> None:
        """Another state, on disk first."""
        state = replace(self.state, **changes)
        table.put(self.sandbox, state)
        self.state = state

    # -- who is at work -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def starting(self, process: str, command: str | Iterable[str]) -> Iterator[None]:
        """A command, from before it can write anything."""
        self.actors.begin(Actor(process, shown(command), self.live.tries.heard, started=False))
        try:
            yield
        except BaseException:
            self.actors.never(process)
            raise
        self.actors.started(process)

    def ended(self, process: Process) -> None:
        """From the event loop: what it changed is collected beside all else."""
        if self.actors.end(process.id, process):
            self._ended(self)

    def turn(self, name: str, kernel: str, command: str) -> None:
        """A kernel is about to run something."""
        self.actors.begin(Actor(name, shown(command), self.live.tries.heard, kernel=kernel))

    def turned(self, name: str, exit_code: int | None, duration_s: float) -> None:
        self.actors.turned(name, exit_code, duration_s)
        self._ended(self)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """A call of the files API."""
        self.actors.begin(Actor(name))
        try:
            yield
        finally:
            self.actors.end(name)
            self._ended(self)

    # -- what was seen ------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.place / MANIFEST

    def looked_at(self) -> float:
        """When the workspace was last looked at, as far as that is known."""
        try:
            return self._file.stat().st_mtime
        except OSError:
            return self.state.begun_at

    def looked(self, at: float) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._file, (at, at))

    def load(self) -> Manifest:
        """As it was saved, less what was committed since; blocking."""
        tip = self.ledger.tip
        try:
            manifest, commit = Manifest.decode(self._file.read_bytes())
            changed = self.ledger.deltas(commit, tip) if commit != tip else []
        except (OSError, ValueError, SkerryError) as error:  # then every file is read again
            log.warning("no manifest", extra={"sandbox": self.sandbox, "error": str(error)})
            manifest, changed = Manifest(), []
            for path, _, _ in self.ledger.files(tip):
                manifest.put(path, None)
        for delta in changed:
            manifest.put(delta.path, None)
            if delta.old_path is not None:
                manifest.put(delta.old_path, None)
        return manifest

    def save(self) -> None:
        """Blocking. A disk that is full is no reason to stop: the next one may be saved, or all is read again."""
        try:
            if self.manifest is not None:
                save(self._file, self.manifest.encode(self.ledger.tip))
        except (OSError, SkerryError) as error:
            log.warning("manifest not saved", extra={"sandbox": self.sandbox, "error": str(error)})

    # -- who watches --------------------------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        return bool(self._onlookers)

    def tell(self, event: ReviewEvent) -> None:
        for onlooker in self._onlookers:
            onlooker.tell(event)

    def watch(self) -> Onlooker:
        return Onlooker(self._onlookers)

    def over(self) -> None:
        """The sandbox is gone."""
        for onlooker in self._onlookers:
            onlooker.end()
