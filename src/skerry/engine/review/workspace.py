"""A workspace under review: its ledger, its manifest, its writers and subscribers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from skerry.engine.review.commands import CommandLog
from skerry.engine.review.manifest import Manifest, save
from skerry.engine.review.subscribers import ReviewSubscriber
from skerry.engine.review.tables import ReviewRecord, ReviewTable
from skerry.engine.review.writers import Writer, Writers, shown
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import Conflict, NotFound, SkerryError
from skerry.keeper import Keeper, Process
from skerry.review.ledger.ledger import Ledger
from skerry.types import ReportedCall, ReviewEvent

log = logging.getLogger("skerry.engine")
MANIFEST = "manifest"
MAX_RUNNING_CALLS = 256  # tool calls of one process


class Collector(Protocol):
    """Collects changes (`review.service`)."""

    def command_ended(self, workspace: ReviewedWorkspace) -> None:
        """From the event loop: a command of it, or a call of the files API, has ended."""


class ReviewedWorkspace:
    """`lock`: held while the ledger is written, its base moves, or decisions change. `trouble`: why the latest changes
    are not in the ledger."""

    def __init__(self, sandbox: Sandbox, state: ReviewRecord, ledger: Ledger | None, collector: Collector) -> None:
        """`ledger` None: it exists and is damaged."""
        self.sandbox = sandbox
        self.state = state
        self._ledger = ledger
        self.lock = asyncio.Lock()
        self.trouble: str | None = None
        self.writers = Writers()
        self.manifest: Manifest | None = None
        self.keeper: Keeper | None = None  # the keeper that `tracker` and `seq` belong to
        self.tracker = ""
        self.seq = 0
        self.follow_task: asyncio.Task[None] | None = None
        self.followed_keeper: Keeper | None = None
        self.begun = asyncio.Event()  # set when a new keeper has received the rejections
        self.publish_task: asyncio.Task[None] | None = None
        self.collect_pending = False  # a collection is about to start
        self.tried_at = -math.inf
        self.background_commits = 0  # commits since a command, or a call of the files API, ended
        self.needs_full_scan = False  # a writer ended since the last full scan
        self.unsaved = False
        self.kept_after_deletion = True
        self.saved_at = 0.0
        self._collector = collector
        self._subscribers: set[ReviewSubscriber] = set()

    @property
    def sandbox_id(self) -> str:
        return self.sandbox.record.id

    @property
    def path(self) -> str:
        return self.state.path

    @property
    def has_ledger(self) -> bool:
        return self._ledger is not None

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise Conflict(
                f"the ledger of {self.sandbox_id} is damaged",
                hint="its files are intact: copy them with `skerry cp`; the server's log has the cause",
            )
        return self._ledger

    @property
    def place(self) -> Path:
        """Return the directory of the ledger and manifest."""
        return self.ledger.path.parent

    @property
    def commands(self) -> CommandLog:
        return CommandLog(self.place)

    def clear_trouble(self) -> None:
        if self.trouble is not None:
            log.info("changes are recorded again", extra={"sandbox": self.sandbox_id})
            self._set_trouble(None)

    def report_trouble(self, why: str) -> None:
        if self.trouble != why:
            log.warning("failed to record changes", extra={"sandbox": self.sandbox_id, "error": why})
            self._set_trouble(why)

    def _set_trouble(self, trouble: str | None) -> None:
        self.trouble = trouble
        self.publish(ReviewEvent(type="trouble", sandbox=self.sandbox_id, tip="", trouble=trouble))

    def keep(self, table: ReviewTable, **changes: Any) -> None:
        """Another state, on disk first."""
        state = replace(self.state, **changes)
        table.put(self.sandbox_id, state)
        self.state = state

    # -- writers ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def starting(self, process: str, command: str | Iterable[str]) -> Iterator[None]:
        """A command, from before it can write anything."""
        self.writers.begin(Writer(process, shown(command), self.sandbox.attempts.heard, started=False))
        try:
            yield
        except BaseException:
            self.writers.forget(process)
            raise
        self.writers.started(process)

    def ended(self, process: Process) -> None:
        """From the event loop: collect its changes in the background."""
        if self.writers.end(process.id, process):
            self._collector.command_ended(self)

    def turn(self, name: str, kernel: str, command: str) -> None:
        """A kernel is about to run something."""
        self.writers.begin(Writer(name, shown(command), self.sandbox.attempts.heard, kernel=kernel))

    def turned(self, name: str, exit_code: int | None, duration_s: float) -> None:
        self.writers.end_run(name, exit_code, duration_s)
        self._collector.command_ended(self)

    def report(self, process: str, calls: Iterable[ReportedCall]) -> bool:
        """Note tool calls that an agent reports. Return True if one of them ended."""
        agent = self.writers.get(process)
        if agent is None or agent.command is None or agent.ended:
            raise NotFound(f"process {process} is not running, or not recorded by the review")
        ended = False
        for call in calls:
            name = f"{process}/{call.id}"
            paths = tuple(filter(None, (self._relative(path) for path in call.paths)))
            if (known := self.writers.get(name)) is not None and not known.ended:
                self.writers.renamed(name, shown(call.name), paths)  # an agent may know more than at the start
            elif known is None and len(self.writers.tool_calls(process)) < MAX_RUNNING_CALLS:
                self.writers.begin(
                    Writer(
                        name, shown(call.name) or "(a tool call)", self.sandbox.attempts.heard, kernel=process,
                        within=agent.command, paths=paths,
                    )
                )  # fmt: skip
            if call.state != "started" and (known is None or not known.ended):
                self.writers.end_run(name, 1 if call.state == "failed" else None, None)
                ended = True
        return ended

    def _relative(self, path: str) -> str | None:
        """Return a path of the workspace relative to it; None for others. No file is looked at."""
        whole = posixpath.normpath(posixpath.join(self.path, path))
        return whole[len(self.path) + 1 :] if whole.startswith(f"{self.path}/") else None

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """A call of the files API."""
        self.writers.begin(Writer(name))
        try:
            yield
        finally:
            self.writers.end(name)
            self._collector.command_ended(self)

    # -- the manifest -------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.place / MANIFEST

    def looked_at(self) -> float:
        """Return when changes were last collected, as far as that is known."""
        try:
            return self._file.stat().st_mtime
        except OSError:
            return self.state.begun_at

    def looked(self, at: float) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._file, (at, at))

    def load(self) -> Manifest:
        """Load the saved manifest, without files that were committed since. Blocking."""
        tip = self.ledger.tip
        try:
            manifest, commit = Manifest.decode(self._file.read_bytes())
            changed = self.ledger.deltas(commit, tip) if commit != tip else []
        except (OSError, ValueError, SkerryError) as error:  # then every file is read again
            log.warning("failed to load the manifest", extra={"sandbox": self.sandbox_id, "error": str(error)})
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
            log.warning("failed to save the manifest", extra={"sandbox": self.sandbox_id, "error": str(error)})

    # -- subscribers --------------------------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        return bool(self._subscribers)

    def publish(self, event: ReviewEvent) -> None:
        for subscriber in self._subscribers:
            subscriber.publish(event)

    def watch(self) -> ReviewSubscriber:
        return ReviewSubscriber(self._subscribers)

    def close(self) -> None:
        """End all subscriptions: the sandbox is deleted."""
        for subscriber in self._subscribers:
            subscriber.end()
