"""Answers that need a network request, cached for a day in the user's cache directory, so that commands do not wait for
them. Only hosts are stored, under a hash of the question, so that no password is written."""

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


def cached_answer(machine: Machine, question: str, look: Callable[[], list[str] | None]) -> list[str]:
    """Return the cached or new answer; an empty one, which is not cached, if `look` returns None."""
    base = machine.environ.get("XDG_CACHE_HOME") or str(machine.home / ".cache")
    path = Path(base) / "skerry" / "presets" / f"{hashlib.sha256(question.encode()).hexdigest()}.json"
    kept = _kept(machine, path)
    if kept is not None:
        return kept
    answer = look()
    if answer is None:
        return []
    with contextlib.suppress(OSError):  # ignore a home directory that is not writable
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
