"""What a commit of the ledger says about the command that made it: facts to a message, and back.

The command is the guest's own text. It stands indented, so that no line of it is one of ours, and what a terminal
would obey is shown escaped; ours are the lines of the last paragraph alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from skerry.types.review import LedgerEntry

Kind = Literal["base", "command", "background", "api", "rollback", "applied", "unapplied"]
COMMAND_MOST: Final = 16 << 10  # characters
_LISTED_MOST: Final = 1000
_SUBJECT: Final = 72
_INDENT: Final = "    "
_LINE: Final = re.compile(r"([A-Z][A-Za-z-]{1,30}): (.*)")
_PLAIN: Final = re.compile(r"[!#-~][ -~]{0,250}")
_SUBJECTS: Final = {
    "base": "What was imported", "command": "A command", "background": "Written in the background",
    "api": "Written by the files API", "rollback": "Rolled back", "applied": "Applied", "unapplied": "Taken back",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Facts:
    """As in LedgerEntry. `at`: when it was written, in seconds since 1970. `note`: for who reads it with git."""

    kind: Kind
    at: float
    command: str = ""
    processes: tuple[str, ...] = ()
    exit_code: int | None = None
    duration_s: float | None = None
    running: bool = False
    hosts: tuple[str, ...] = ()
    left_out: int = 0
    note: str = ""


def message(facts: Facts) -> bytes:
    command = facts.command[:COMMAND_MOST]
    shown = _harmless(command)
    subject = " ".join(shown.split())
    lines = [subject[: _SUBJECT - 1] + "…" if len(subject) > _SUBJECT else subject or _SUBJECTS[facts.kind], ""]
    if command.strip():
        lines += [_INDENT + line for line in shown.split("\n")] + [""]
    lines += [f"{name}: {_quoted(value)}" for name, value in _told(facts, shown != command or not command.strip())]
    return "\n".join(lines).encode() + b"\n"


def entry(commit: str, text: str) -> LedgerEntry:
    """What a message says. Of one that is not ours, as little as can be said: `background`."""
    told: dict[str, list[str]] = {}
    body, _, last = text.rstrip("\n").rpartition("\n\n")
    for line in last.split("\n"):
        match = _LINE.fullmatch(line)
        if match is not None:
            told.setdefault(match[1], []).append(_unquoted(match[2]))
    kind = _first(told, "Kind")
    return LedgerEntry(
        commit=commit,
        at=_number(_first(told, "At")) or 0.0,
        kind=kind if kind in get_args(Kind) else "background",  # type: ignore[arg-type]
        command=_first(told, "Command") if "Command" in told else _command(body),
        processes=tuple(told.get("Process", ())),
        exit_code=None if (code := _number(_first(told, "Exit-Code"))) is None else int(code),
        duration_s=_number(_first(told, "Duration")),
        running="Running" in told,
        hosts=tuple(told.get("Host", ())),
        left_out=int(_number(_first(told, "Left-Out")) or 0),
    )


def _told(facts: Facts, command: bool) -> Iterable[tuple[str, str]]:
    yield "Kind", facts.kind
    yield "At", f"{facts.at:.3f}"
    if command and facts.command:
        yield "Command", facts.command[:COMMAND_MOST]
    for process in facts.processes[:_LISTED_MOST]:
        yield "Process", process
    if facts.exit_code is not None:
        yield "Exit-Code", str(facts.exit_code)
    if facts.duration_s is not None:
        yield "Duration", f"{facts.duration_s:.3f}"
    if facts.running:
        yield "Running", "yes"
    for host in facts.hosts[:_LISTED_MOST]:
        yield "Host", host
    if facts.left_out:
        yield "Left-Out", str(facts.left_out)
    if facts.note:
        yield "Note", facts.note


def _command(body: str) -> str:
    _, _, indented = body.partition("\n\n")
    return "\n".join(line.removeprefix(_INDENT) for line in indented.split("\n")) if indented else ""


def _harmless(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) and not value.endswith(" ") else json.dumps(value)


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        text = json.loads(value)
    except ValueError:
        return value
    return text if isinstance(text, str) else value


def _first(told: dict[str, list[str]], name: str) -> str:
    return told[name][0] if name in told else ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None
