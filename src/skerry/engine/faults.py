"""Every step of a sandbox's life by name. Each is a fault point: with SKERRY_FAULT=<name> in its environment the
server kills itself with SIGKILL right after that step, which is how the tests prove that a restart repairs. A path in
place of the name: what that file says by then."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

CREATE = ("create.row", "create.unit")
START = ("start.range", "start.wall", "start.door", "start.keeper", "start.row")
CLAIM = ("claim.taken", "claim.bound", "claim.row")
STOP = ("stop.mark", "stop.keeper", "stop.wall", "stop.range", "stop.sync", "stop.row")
PAUSE = ("pause.row", "pause.freeze")
RESUME = ("resume.thaw", "resume.row")
DELETE = ("delete.mark", "delete.wall", "delete.range", "delete.unit", "delete.network", "delete.row")
LIMITS = ("limits.shrink", "limits.row", "limits.grow")
LIFE = CREATE + START + CLAIM + STOP + DELETE + LIMITS
SLEEP = PAUSE + RESUME
SNAPSHOT = ("snapshot.frozen", "snapshot.captured", "snapshot.thawed", "snapshot.kept", "snapshot.row")
UNSNAPSHOT = ("unsnapshot.row", "unsnapshot.layers")
PULL = ("pull.manifest", "pull.blob", "pull.tree", "pull.layer", "pull.image")
FORK = ("fork.captured", "fork.rows", "fork.unit", "fork.started", "fork.running")
ROLLBACK = ("rollback.unit", "rollback.row", "rollback.old")
IMPORT = ("import.archive", "import.layer", "import.named")
BUILD = ("build.image",)
REVIEW = ("review.ledger", "review.base", "review.row")
COLLECT = ("collect.read", "collect.commit", "collect.done")
APPLY = ("applied.row", "applied.base", "applied.done")
POINTS = LIFE + SLEEP + SNAPSHOT + UNSNAPSHOT + FORK + ROLLBACK + PULL + IMPORT + BUILD + REVIEW + COLLECT + APPLY


def passed(name: str) -> None:
    """A step is done. Unknown names are a bug, so that no step goes without its place in the list."""
    if name not in POINTS:
        raise AssertionError(f"step {name!r} is not in the list of fault points")
    fault = os.environ.get("SKERRY_FAULT", "")
    if fault.startswith("/"):
        with contextlib.suppress(OSError):
            fault = Path(fault).read_text()
    if fault == name:
        os.kill(os.getpid(), signal.SIGKILL)
