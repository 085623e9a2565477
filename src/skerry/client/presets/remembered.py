"""Answers that take a request to the network, kept for a day in the user's cache: a command should not wait for them
each time. Only hosts are kept, under a hash of what was asked, so that no password is written down."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skerry.client.presets.machine import Machine

_FOR: Final = 24 * 3600.0


def remembered(machine: Machine, question: str, look: Callable[[], list[str] | None]) -> list[str]:
    """The answer; an empty one, which is not kept, if there is none (None) now."""
    base = machine.environ.get("XDG_CACHE_HOME") or str(machine.home / ".cache")
    path = Path(base) / "skerry" / "presets" / f"{hashlib.sha256(question.encode()).hexdigest()}.json"
    kept = _kept(machine, path)
    if kept is not None:
        return kept
    answer = look()
    if answer is None:
        return []
    with contextlib.suppress(OSError):  # a home that can't be written to is no reason to fail
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump({"at": time.time(), "answer": answer}, file)
        os.replace(name, path)
    return answer


def _kept(machine: Machine, path: Path) -> list[str] | None:
    try:
        kept = json.loads(machine.read(path) or "")
        fresh = 0 <= time.time() - float(kept["at"]) < _FOR
        return [str(one) for one in kept["answer"]] if fresh else None
    except (ValueError, LookupError, TypeError):
        return None
