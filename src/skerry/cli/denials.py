"""What was refused to a command, told once for each host: what, why, and what would allow it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from posixpath import basename

from skerry.types import Attempt

MOST = 8
_PROGRAMS = {"pip": "pip", "pip3": "pip", "npm": "npm", "npx": "npm", "apt": "apt", "apt-get": "apt"}


def hints(denied: Iterable[Attempt], sandbox: str | None = None) -> list[str]:
    """Lines for people. `sandbox`: one that stays, whose policy can be changed; None: the next run needs a flag."""
    told: dict[tuple[str, str | None], Attempt] = {}
    for attempt in denied:
        known = told.get((attempt.host, attempt.hint))
        if known is None or known.port is None:  # one with a port says more than the look-up of its name
            told[attempt.host, attempt.hint] = attempt
    lines = [_line(attempt, sandbox) for attempt in told.values()]
    rest = len(lines) - MOST
    if rest > 0:
        where = f"skerry network log {sandbox} --denied" if sandbox else "--json has them all"
        return [*lines[:MOST], f"{rest} more were refused: {where}"]
    return lines


def _line(attempt: Attempt, sandbox: str | None) -> str:
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    if ":" in attempt.host and attempt.port is not None:
        where = f"[{attempt.host}]:{attempt.port}"
    cure = remedy(attempt, sandbox)
    if cure and attempt.port is None and attempt.hint == f"--allow {attempt.host}":  # the look-up of a name tells none
        cure += f" (for ports 80 and 443; for another like {attempt.host}:22)"
    return f"{where} was refused: {attempt.why}" + (f"; {cure}" if cure else "")


def preset_hint(command: Sequence[str], denied: Iterable[Attempt], sandbox: str | None = None) -> str | None:
    """For programs that one host is not enough for: the preset that has them all."""
    if not any(attempt.rule is None and (attempt.hint or "").startswith("--allow ") for attempt in denied):
        return None
    for word in re.split(r"[\s;&|()'\"]+", " ".join(command)):
        if preset := _PROGRAMS.get(basename(word)):
            how = f"a sandbox made with --preset {preset}" if sandbox else f"with --preset {preset} it"
            return f"{how} reaches all that this machine's own {preset} is set up to reach"
    return None


def remedy(attempt: Attempt, sandbox: str | None) -> str | None:
    """The hint as something to type: a flag of the next run, or a command on the sandbox that is there."""
    hint = attempt.hint
    if hint is not None and sandbox is not None and hint == f"deny wins: take {attempt.rule} out of deny":
        words = shlex.join([sandbox, attempt.rule or ""])
        return f"deny wins: `skerry network allow {words}` takes that rule out of deny, and allows it"
    if hint is None or sandbox is None or not hint.startswith("--allow "):
        return hint
    rule = hint.removeprefix("--allow ").strip('"')
    return f"skerry network allow {shlex.quote(sandbox)} {rule if shlex.quote(rule) == rule else shlex.quote(rule)}"
