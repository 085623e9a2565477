"""One-line descriptions of files, commands and decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from skerry.cli import output
from skerry.cli.review import patch
from skerry.cli.review.escape import escape_name, width_of
from skerry.cli.review.rows import truncate, wrap
from skerry.cli.review.style import Ground, Row, Span, styled
from skerry.types import FileChange, Hunk, LedgerEntry

MAX_COMMAND = 2000
_KINDS = {
    "background": "written while no command ran",
    "api": "written by the files API",
    "rollback": "rolled back",
    "base": "initial import",
    "pulled": "pulled from your repository",
    "applied": "applied by you",
    "unapplied": "undone by you",
}
_MODES = {"100644": "a file", "100755": "an executable", "120000": "a link", "160000": "another repository"}
_STATES: dict[str, Ground] = {"open": "bold", "accepted": "good", "rejected": "bad", "applied": "dim"}


class FileCounts(Protocol):
    """A changed file of a review or of a patch."""

    @property
    def path(self) -> str: ...
    @property
    def added(self) -> int | None: ...
    @property
    def removed(self) -> int | None: ...


def path_of(file: FileChange | Hunk) -> str:
    """Return the escaped path: names in a sandbox can contain line ends, escape codes, and spaces at the ends."""
    return escape_name(file.raw_path if file.raw_path is not None else file.path)


def location_of(hunk: Hunk) -> str:
    """Return the path and the first changed line, as compilers print them."""
    if hunk.kind != "text":
        return path_of(hunk)
    lines = [line for part in patch.hunk_parts(hunk) for line in part.lines]
    before = next((at for at, line in enumerate(lines) if line.kind != "context"), 0)
    return f"{path_of(hunk)}:{hunk.new_start + before}"


def exact_path(file: FileChange | Hunk) -> str:
    """Return the path as in a patch: bytes that are not UTF-8 as surrogates."""
    return file.path if file.raw_path is None else file.raw_path.decode("utf-8", "surrogateescape")


def counts(added: int | None, removed: int | None) -> list[Span]:
    if added is None and removed is None:
        return [styled("binary", "dim")]
    return [styled(f"+{added or 0}", "good"), styled(" "), styled(f"−{removed or 0}", "bad")]


def command_line(command: str) -> str:
    """Return a command on one line."""
    lines = command[:MAX_COMMAND].split("\n")
    more = f" …{len(lines) - 1} more lines" if len(lines) > 1 else ""
    return f"$ {escape_name(lines[0])}{more}"


def command_of(entry: LedgerEntry) -> str:
    """Return the command of an entry on one line, or its kind."""
    if entry.kind != "command":
        return _KINDS.get(entry.kind, entry.kind)
    line = command_line(entry.command)
    return line if entry.within is None else f"tool call: {line[2:]}"


def ending_of(entry: LedgerEntry) -> list[str]:
    """Return the exit code and the duration of a command."""
    if entry.kind != "command":
        return []
    found = ["still running"] if entry.running else []
    if not entry.running and entry.signal is not None:
        found.append(f"signal {escape_name(entry.signal)}")
    elif entry.within is not None and has_failed(entry):
        found.append("failed")
    elif not entry.running and entry.exit_code is not None:
        found.append(f"exit {entry.exit_code}")
    if entry.duration_s is not None:
        found.append(_duration(entry.duration_s))
    return found


def has_failed(entry: LedgerEntry) -> bool:
    return not entry.running and (entry.exit_code not in (0, None) or entry.signal is not None)


def _duration(seconds: float) -> str:
    if seconds < 0.1:
        return f"{max(1, round(seconds * 1000))} ms"
    return f"{seconds:.1f} s" if seconds < 100 else output.format_age(seconds)


def command_row(entry: LedgerEntry, cols: int, files: Sequence[FileCounts] = ()) -> Row:
    """Render `$ sed -i …  exit 0 · 0.2 s · app.py +1 −1`. If it is too long, the command is shortened, not the rest."""
    ending = " · ".join(ending_of(entry))
    facts: list[Span] = [styled(ending, "bad" if has_failed(entry) else "dim")] if ending else []
    if len(files) == 1:
        facts += [styled(" · " if facts else ""), styled(escape_name(files[0].path)), styled(" ")]
        facts += counts(files[0].added, files[0].removed)
    elif entry.files:
        words = f"{entry.files} files" if entry.files != 1 else "1 file"
        facts += [styled(" · " if facts else ""), styled(f"{words} "), *counts(entry.added, entry.removed)]
    if entry.also:
        facts.append(styled(f" · while {len(entry.also)} other ran", "dim"))
    taken = sum(width_of(span.text) for span in facts) + 2
    command = truncate((styled(command_of(entry), "command"),), max(24, cols - taken))
    return truncate((*command, styled("  "), *facts), cols) if facts else command


def command_rows(entry: LedgerEntry, cols: int, most: int = 3) -> list[Row]:
    """Render a command on several rows if one row is not enough."""
    row = command_row(entry, cols)
    if row[0].text == command_of(entry):
        return [row]
    rows = list(wrap((styled(command_of(entry), "command"),), max(10, cols)))
    if len(rows) > most:
        rows = [*rows[: most - 1], truncate((*rows[most - 1], styled("…", "command"), styled(" ")), cols)]
    return [*rows, (styled(" · ".join(ending_of(entry)), "dim"),)]


def hosts_rows(entries: Iterable[LedgerEntry], cols: int) -> list[Row]:
    hosts = sorted({host for entry in entries for host in entry.hosts})
    return [truncate((styled(f"contacted: {', '.join(map(escape_name, hosts))}", "dim"),), cols)] if hosts else []


def state_row(hunk: Hunk, cols: int) -> Row:
    words = [styled(hunk.state, _STATES[hunk.state])]
    if hunk.edited is not None:
        words.append(styled(", edited by you", "good"))
    if hunk.reason:
        words.append(styled(f": {escape_name(hunk.reason)}"))
    return truncate(tuple(words), cols)


def file_facts(file: FileChange) -> list[str]:
    """Describe the effect of a change on the file as a whole."""
    path = path_of(file)
    facts: list[str] = []
    if file.kind == "renamed" and file.old_path is not None:
        old = escape_name(file.raw_old_path if file.raw_old_path is not None else file.old_path)
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
        facts.append(f"sha256 {escape_name(file.sha256)}")
    return facts


def _size(size: int | None) -> str:
    return "nothing" if size is None else f"{output.format_size(size)}B" if size >= 1024 else f"{size} bytes"
