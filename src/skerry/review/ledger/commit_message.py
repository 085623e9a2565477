"""Messages of ledger commits: information about the command that made a commit, encoded and decoded.

The command is untrusted text. It is indented, so that no line of it looks like a trailer, and control characters are
escaped. Only the lines of the last paragraph are trailers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from skerry.types.review import LedgerEntry

Kind = Literal["base", "command", "background", "api", "rollback", "pulled", "moved", "applied", "unapplied"]
MAX_COMMAND: Final = 16 << 10  # characters
_MAX_LISTED: Final = 1000
_MAX_SUBJECT: Final = 72
_INDENT: Final = "    "
_LINE: Final = re.compile(r"([A-Z][A-Za-z-]{1,30}): (.*)")
_PLAIN: Final = re.compile(r"[!#-~][ -~]{0,250}")
_SUBJECTS: Final = {
    "base": "Imported workspace", "command": "Command", "background": "Written in the background",
    "api": "Written by the files API", "rollback": "Rolled back", "pulled": "Pulled from the user's repository",
    "moved": "Moved the base", "applied": "Applied", "unapplied": "Undone",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CommitInfo:
    """As in LedgerEntry. `at`: time of the commit in seconds since 1970. `note`: for readers of the git log."""

    kind: Kind
    at: float
    command: str = ""
    processes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    exit_code: int | None = None
    duration_s: float | None = None
    running: bool = False
    hosts: tuple[str, ...] = ()
    left_out: int = 0
    note: str = ""


def message(info: CommitInfo) -> bytes:
    command = info.command[:MAX_COMMAND]
    shown = _escaped(command)
    subject = " ".join(shown.split())
    lines = [subject[: _MAX_SUBJECT - 1] + "…" if len(subject) > _MAX_SUBJECT else subject or _SUBJECTS[info.kind], ""]
    if command.strip():
        lines += [_INDENT + line for line in shown.split("\n")] + [""]
    lines += [f"{name}: {_quoted(value)}" for name, value in _trailers(info, shown != command or not command.strip())]
    return "\n".join(lines).encode() + b"\n"


def entry(commit: str, text: str) -> LedgerEntry:
    """Parse a message. A message that Skerry did not write becomes a `background` entry."""
    trailers: dict[str, list[str]] = {}
    body, _, last = text.rstrip("\n").rpartition("\n\n")
    for line in last.split("\n"):
        match = _LINE.fullmatch(line)
        if match is not None:
            trailers.setdefault(match[1], []).append(_unquoted(match[2]))
    kind = _first(trailers, "Kind")
    return LedgerEntry(
        commit=commit,
        at=_number(_first(trailers, "At")) or 0.0,
        kind=kind if kind in get_args(Kind) else "background",  # type: ignore[arg-type]
        command=_first(trailers, "Command") if "Command" in trailers else _command(body),
        processes=tuple(trailers.get("Process", ())),
        runs=tuple(trailers.get("Run", trailers.get("Process", ()))),
        exit_code=None if (code := _number(_first(trailers, "Exit-Code"))) is None else int(code),
        duration_s=_number(_first(trailers, "Duration")),
        running="Running" in trailers,
        hosts=tuple(trailers.get("Host", ())),
        left_out=int(_number(_first(trailers, "Left-Out")) or 0),
    )


def _trailers(info: CommitInfo, command: bool) -> Iterable[tuple[str, str]]:
    yield "Kind", info.kind
    yield "At", f"{info.at:.3f}"
    if command and info.command:
        yield "Command", info.command[:MAX_COMMAND]
    for process in info.processes[:_MAX_LISTED]:
        yield "Process", process
    for run in info.runs[:_MAX_LISTED] if info.runs != info.processes else ():
        yield "Run", run
    if info.exit_code is not None:
        yield "Exit-Code", str(info.exit_code)
    if info.duration_s is not None:
        yield "Duration", f"{info.duration_s:.3f}"
    if info.running:
        yield "Running", "yes"
    for host in info.hosts[:_MAX_LISTED]:
        yield "Host", host
    if info.left_out:
        yield "Left-Out", str(info.left_out)
    if info.note:
        yield "Note", info.note


def _command(body: str) -> str:
    _, _, indented = body.partition("\n\n")
    return "\n".join(line.removeprefix(_INDENT) for line in indented.split("\n")) if indented else ""


def _escaped(text: str) -> str:
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


def _first(trailers: dict[str, list[str]], name: str) -> str:
    return trailers[name][0] if name in trailers else ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None
