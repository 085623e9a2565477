"""A command's result with what it was refused, and a hint that says what would allow it; or, where nothing was refused,
what could not be reached."""

from __future__ import annotations

import json
from typing import TypeVar

from msgspec.structs import replace

from skerry.types import Attempt, RunResult

SHOWN = 3
R = TypeVar("R", bound=RunResult)


def add(result: R, in_vain: tuple[Attempt, ...]) -> R:
    denied = tuple(attempt for attempt in in_vain if attempt.decision == "denied")
    if denied:
        return replace(result, denied=denied, hint=result.hint or _hint(denied))
    if in_vain and result.exit_code != 0:
        return replace(result, hint=result.hint or "; ".join(dict.fromkeys(map(_unreached, in_vain[:SHOWN]))))
    return result


def _hint(denied: tuple[Attempt, ...]) -> str:
    """Of each host one, and the newest last; what has a port says more than the look-up before it."""
    told: dict[str, Attempt] = {}
    for attempt in denied:
        if attempt.host not in told or told[attempt.host].port is None:
            told[attempt.host] = attempt
    lines = [_line(attempt) for attempt in told.values()]
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "refused: " + "; ".join(lines[:SHOWN]) + more


def _where(attempt: Attempt) -> str:
    return attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"


def _unreached(attempt: Attempt) -> str:
    return f"{_where(attempt)} {(attempt.hint or '').removeprefix('it ')}"


def _line(attempt: Attempt) -> str:
    where = _where(attempt)
    return f"{where} ({attempt.why})" + (f"; {_cure(attempt.hint)}" if attempt.hint else "")


def _cure(hint: str) -> str:
    """The flag of the command line, for those who write Python too."""
    if not hint.startswith("--allow "):
        return hint
    rule = hint.removeprefix("--allow ").strip("\"'")
    return f"allow it with network=Network(allow=[{json.dumps(rule)}]) or {hint}"
