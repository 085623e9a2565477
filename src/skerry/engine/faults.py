"""Fault points: the named steps of every operation that changes state.

With SKERRY_FAULT=<name> in its environment the server kills itself with SIGKILL right after that step; the tests do so
at every step to prove that a restart repairs the state. If the value is a path, the file holds the name; "<name> wait"
in it delays the step until the file changes, which blocks the step's thread."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

CREATE = ("create.record", "create.upper")
START = ("start.range", "start.container", "start.gateway", "start.keeper", "start.record")
CLAIM = ("claim.taken", "claim.bound", "claim.record")
STOP = ("stop.mark", "stop.keeper", "stop.container", "stop.range", "stop.sync", "stop.record")
PAUSE = ("pause.record", "pause.freeze")
RESUME = ("resume.thaw", "resume.record")
STARTUP = ("startup.command", "startup.ready")
DELETE = ("delete.mark", "delete.container", "delete.range", "delete.upper", "delete.network", "delete.record")
LIMITS = ("limits.shrink", "limits.record", "limits.grow")
LIFE = CREATE + START + CLAIM + STOP + DELETE + LIMITS
SLEEP = PAUSE + RESUME
SNAPSHOT = ("snapshot.frozen", "snapshot.captured", "snapshot.thawed", "snapshot.kept", "snapshot.record")
DELETE_SNAPSHOT = ("delete_snapshot.record", "delete_snapshot.layers")
PULL = ("pull.manifest", "pull.blob", "pull.tree", "pull.layer", "pull.image")
FORK = ("fork.captured", "fork.records", "fork.upper", "fork.started", "fork.running")
ROLLBACK = ("rollback.upper", "rollback.record", "rollback.old")
IMPORT = ("import.archive", "import.layer", "import.named")
BUILD = ("build.image",)
REVIEW = ("review.ledger", "review.base", "review.record")
KEPT_REVIEW = ("review.deleted", "review.restored")
COLLECT = ("collect.read", "collect.commit", "collect.done")
APPLY = ("apply.record", "apply.base", "apply.done")
REFRESH = ("refresh.files", "refresh.commit", "refresh.undecided", "refresh.base", "refresh.synced", "refresh.record")
CREATE_VOLUME = ("volume.data", "volume.record")
DELETE_VOLUME = ("delete_volume.record", "delete_volume.data")
VOLUME = CREATE_VOLUME + DELETE_VOLUME
EVENTS = ("events.committed",)
RECORD = ("record.written", "record.renamed", "record.synced")
STORED = SNAPSHOT + DELETE_SNAPSHOT + FORK + ROLLBACK + PULL + IMPORT + BUILD
POINTS = LIFE + SLEEP + STARTUP + STORED + REVIEW + KEPT_REVIEW + COLLECT + APPLY + REFRESH + VOLUME + EVENTS + RECORD


def fault_point(name: str) -> None:
    """Mark a step as done. An unknown name is a bug: every step has its place in the list."""
    if name not in POINTS:
        raise AssertionError(f"step {name!r} is not in the list of fault points")
    while (fault := _requested()) == f"{name} wait":
        time.sleep(0.01)
    if fault == name:
        os.kill(os.getpid(), signal.SIGKILL)


def _requested() -> str:
    fault = os.environ.get("SKERRY_FAULT", "")
    if fault.startswith("/"):
        with contextlib.suppress(OSError):
            return Path(fault).read_text()
    return fault
