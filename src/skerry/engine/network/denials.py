"""Denials in a command's result: the denied attempts and a hint how to permit them or, without denials, the failed
attempts."""

from __future__ import annotations

import json
from typing import TypeVar

from msgspec.structs import replace

from skerry.types import NetworkAttempt, RunResult

SHOWN = 3
R = TypeVar("R", bound=RunResult)


def add(result: R, in_vain: tuple[NetworkAttempt, ...]) -> R:
    denied = tuple(attempt for attempt in in_vain if attempt.decision == "denied")
    if denied:
        return replace(result, denied=denied, hint=result.hint or _hint(denied))
    if in_vain and result.exit_code != 0:
        return replace(result, hint=result.hint or "; ".join(dict.fromkeys(map(_unreached, in_vain[:SHOWN]))))
    return result


def _hint(denied: tuple[NetworkAttempt, ...]) -> str:
    """One line per host, the newest last. An attempt with a port says more than the name lookup before it."""
    by_host: dict[str, NetworkAttempt] = {}
    for attempt in denied:
        if attempt.host not in by_host or by_host[attempt.host].port is None:
            by_host[attempt.host] = attempt
    lines = [_line(attempt) for attempt in by_host.values()]
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "refused: " + "; ".join(lines[:SHOWN]) + more


def _where(attempt: NetworkAttempt) -> str:
    return attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"


def _unreached(attempt: NetworkAttempt) -> str:
    return f"{_where(attempt)} {(attempt.hint or '').removeprefix('it ')}"


def _line(attempt: NetworkAttempt) -> str:
    where = _where(attempt)
    return f"{where} ({attempt.why})" + (f"; {_cure(attempt.hint)}" if attempt.hint else "")


def _cure(hint: str) -> str:
    """Name the command-line flag and the Python argument."""
    if not hint.startswith("--allow "):
        return hint
    rule = hint.removeprefix("--allow ").strip("\"'")
    return f"allow it with network=Network(allow=[{json.dumps(rule)}]) or {hint}"
