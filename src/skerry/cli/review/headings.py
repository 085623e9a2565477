"""Files, commands and decisions in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from skerry.cli import talk
from skerry.cli.review import patch
from skerry.cli.review.rows import cut, wrap
from skerry.cli.review.style import Ground, Row, Span, plain
from skerry.cli.review.visible import name_shown, width_of
from skerry.types import FileChange, Hunk, LedgerEntry

MOST_COMMAND = 2000
_KINDS = {
    "background": "written while no command ran",
    "api": "written by the files API",
    "rollback": "rolled back",
    "base": "what was imported",
    "applied": "applied by you",
    "unapplied": "taken back by you",
}
_MODES = {"100644": "a file", "100755": "an executable", "120000": "a link", "160000": "another repository"}
_STATES: dict[str, Ground] = {"open": "bold", "accepted": "good", "rejected": "bad", "applied": "dim"}


class Counted(Protocol):
    """A file's change, of the review or of a patch."""

    @property
    def path(self) -> str: ...
    @property
    def added(self) -> int | None: ...
    @property
    def removed(self) -> int | None: ...


def path_of(file: FileChange | Hunk) -> str:
    """Made fit to be shown, all of it: names from inside hold line ends, escape codes, spaces at their ends."""
    return name_shown(file.raw_path if file.raw_path is not None else file.path)


def place_of(hunk: Hunk) -> str:
    """Path and the first changed line, as compilers have it."""
    if hunk.kind != "text":
        return path_of(hunk)
    lines = [line for part in patch.of_hunk(hunk) for line in part.lines]
    before = next((at for at, line in enumerate(lines) if line.kind != "context"), 0)
    return f"{path_of(hunk)}:{hunk.new_start + before}"


def exact_path(file: FileChange | Hunk) -> str:
    """As a patch has it: bytes that are no UTF-8 as surrogates."""
    return file.path if file.raw_path is None else file.raw_path.decode("utf-8", "surrogateescape")


def counts(added: int | None, removed: int | None) -> list[Span]:
    if added is None and removed is None:
        return [plain("binary", "dim")]
    return [plain(f"+{added or 0}", "good"), plain(" "), plain(f"−{removed or 0}", "bad")]


def command_of(entry: LedgerEntry) -> str:
    """What made it, on one line."""
    if entry.kind != "command":
        return _KINDS.get(entry.kind, entry.kind)
    lines = entry.command[:MOST_COMMAND].split("\n")
    more = f" …{len(lines) - 1} more lines" if len(lines) > 1 else ""
    return f"$ {name_shown(lines[0])}{more}"


def ending_of(entry: LedgerEntry) -> list[str]:
    """How it ended and how long it took."""
    if entry.kind != "command":
        return []
    found = ["while it ran"] if entry.running else []
    if entry.exit_code is not None and not entry.running:
        found.append(f"exit {entry.exit_code}")
    if entry.duration_s is not None:
        found.append(_lasted(entry.duration_s))
    return found


def _lasted(seconds: float) -> str:
    if seconds < 0.1:
        return f"{max(1, round(seconds * 1000))} ms"
    return f"{seconds:.1f} s" if seconds < 100 else talk.ago(seconds)


def command_row(entry: LedgerEntry, cols: int, files: Sequence[Counted] = ()) -> Row:
    """`$ sed -i …  exit 0 · 0.2 s · app.py +1 −1`: the command gives way, what came of it does not."""
    facts: list[Span] = [plain(" · ".join(ending_of(entry)), "dim")] if ending_of(entry) else []
    if len(files) == 1:
        facts += [plain(" · " if facts else ""), plain(name_shown(files[0].path)), plain(" ")]
        facts += counts(files[0].added, files[0].removed)
    elif entry.files:
        words = f"{entry.files} files" if entry.files != 1 else "1 file"
        facts += [plain(" · " if facts else ""), plain(f"{words} "), *counts(entry.added, entry.removed)]
    taken = sum(width_of(span.text) for span in facts) + 2
    command = cut((plain(command_of(entry), "command"),), max(24, cols - taken))
    return cut((*command, plain("  "), *facts), cols) if facts else command


def command_rows(entry: LedgerEntry, cols: int, most: int = 3) -> list[Row]:
    """The same on several rows where one is not enough."""
    row = command_row(entry, cols)
    if row[0].text == command_of(entry):
        return [row]
    rows = list(wrap((plain(command_of(entry), "command"),), max(10, cols)))
    if len(rows) > most:
        rows = [*rows[: most - 1], cut((*rows[most - 1], plain("…", "command"), plain(" ")), cols)]
    return [*rows, (plain(" · ".join(ending_of(entry)), "dim"),)]


def hosts_rows(entries: Iterable[LedgerEntry], cols: int) -> list[Row]:
    hosts = sorted({host for entry in entries for host in entry.hosts})
    return [cut((plain(f"contacted: {', '.join(map(name_shown, hosts))}", "dim"),), cols)] if hosts else []


def state_row(hunk: Hunk, cols: int) -> Row:
    words = [plain(hunk.state, _STATES[hunk.state])]
    if hunk.edited is not None:
        words.append(plain(", as edited by you", "good"))
    if hunk.reason:
        words.append(plain(f": {name_shown(hunk.reason)}"))
    return cut(tuple(words), cols)


def file_facts(file: FileChange) -> list[str]:
    """What a change does to a file as a whole, in words."""
    path = path_of(file)
    facts: list[str] = []
    if file.kind == "renamed" and file.old_path is not None:
        old = name_shown(file.raw_old_path if file.raw_old_path is not None else file.old_path)
        facts.append(f"renamed from {old} to {path}")
    elif file.kind == "added":
        facts.append(f"new: {_MODES.get(file.new_mode or '', file.new_mode or 'a file')}")
    elif file.kind == "deleted":
        facts.append(f"deleted: {_MODES.get(file.old_mode or '', file.old_mode or 'a file')}")
    if file.old_mode and file.new_mode and file.old_mode != file.new_mode:
        facts.append(f"from {_MODES.get(file.old_mode, file.old_mode)} to {_MODES.get(file.new_mode, file.new_mode)}")
    if file.binary or file.large:
        facts.append(
            f"{'large' if file.large else 'binary'}: {_size(file.old_size)} before, {_size(file.new_size)} now"
        )
    if file.sha256:
        facts.append(f"sha256 {name_shown(file.sha256)}")
    return facts


def _size(size: int | None) -> str:
    return "nothing" if size is None else f"{talk.size(size)}B" if size >= 1024 else f"{size} bytes"
