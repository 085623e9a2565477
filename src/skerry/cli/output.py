"""Output of the CLI: data on stdout, messages and hints on stderr, and the exit codes.

Text from a sandbox is escaped before it reaches a terminal.
"""

from __future__ import annotations

import atexit
import base64
import codecs
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from json import dumps
from posixpath import basename
from typing import Any

import click
import msgspec

from skerry.codecs.text import escape, escape_char
from skerry.errors import (
    AuditUnavailable,
    HostUnsupported,
    QuotaExceeded,
    RegistryError,
    SandboxUnavailable,
    ServerUnreachable,
    SkerryError,
)
from skerry.types import NetworkAttempt, ProcessInfo, Result, parse_span

EXIT_INVALID = 2
EXIT_TIMEOUT = 124
EXIT_FAILED = 125
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
_FAILURES = (SandboxUnavailable, ServerUnreachable, HostUnsupported, AuditUnavailable)

# -- messages and exit codes ------------------------------------------------------------------------------------------


def info(text: str) -> None:
    """Print a message to stderr."""
    click.echo(escape(text, lines=True), err=True)


_json_errors = False


def use_json_errors() -> None:
    """Print errors as JSON from now on, for --json."""
    global _json_errors
    _json_errors = True


def error(failure: SkerryError, *, before: str = "") -> None:
    """Print an error and its hint to stderr: as text, after the text `before`, or with --json as one JSON object in the
    form of the HTTP API."""
    if _json_errors:
        body = {"code": failure.code, "message": failure.message, "hint": failure.hint, "details": failure.details}
        click.echo(dumps({"error": plain(body)}, ensure_ascii=True), err=True)
        return
    info(f"{before}error: {failure.message}")
    if failure.hint:
        info(f"hint: {failure.hint}")


def error_exit_code(failure: SkerryError) -> int:
    """Return 125 if the sandbox, the server, a registry or the host failed or is full, 2 if the request was invalid."""
    if isinstance(failure, QuotaExceeded):
        failed = "limit" not in failure.details  # of a request above a maximum, the details name the limit
    elif isinstance(failure, RegistryError):
        failed = failure.details.get("reason") != "refused"
    else:
        failed = isinstance(failure, _FAILURES) or type(failure) is SkerryError
    return EXIT_FAILED if failed else EXIT_INVALID


def result_exit_code(result: Result) -> int:
    if result.timed_out:
        return EXIT_TIMEOUT
    if result.signal:
        return 128 + getattr(signal, f"SIG{result.signal}", 0)
    return result.exit_code if result.exit_code is not None else EXIT_FAILED


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on the terminal. Without a terminal, only --yes confirms."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} stdin is not a terminal: confirm with --yes.")
    return click.confirm(question, err=True)


# -- data -------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Convert a value to JSON's types, with its defaults: unset fields are null, not missing."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def result_data(result: Result) -> dict[str, Any]:
    """Return a result for JSON: its output as text and, if it is not valid UTF-8, also as base64."""
    data: dict[str, Any] = plain(result)
    for name in ("stdout", "stderr"):
        data.pop(f"{name}_bytes")
        raw: bytes = getattr(result, f"{name}_bytes")
        data[name] = raw.decode("utf-8", "replace")
        data[f"{name}_base64"] = None if data[name].encode() == raw else base64.b64encode(raw).decode()
    return {"ok": result.ok, **data}


def json(value: Any) -> None:
    """Print a value as ASCII JSON, so that a name from a sandbox cannot send escape codes to the terminal."""
    click.echo(dumps(plain(value), indent=2, ensure_ascii=True))


def json_line(value: Any) -> None:
    """Print a value as JSON on one line, for endless streams."""
    line(dumps(plain(value), ensure_ascii=True))


def line(text: str) -> None:
    """Print a line of data at once, unbuffered. A closed pipe ends the program."""
    write_raw("stdout", f"{escape(text)}\n".encode())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns that are readable without colour. The last column is not padded."""
    cells = [list(head), *([escape(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        click.echo("  ".join([*padded, row[-1]]).rstrip())


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    known = [(name, escape(value)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def parse_seconds(text: str | None, flag: str) -> float | None:
    return parse_span(text, flag) if text else None


def process_status(process: ProcessInfo) -> str:
    """Return the status of a process, with the end of a process that did not complete."""
    if process.status in ("failed", "killed"):
        return f"{process.status} ({process_end(process)})"
    return process.status


def process_end(process: ProcessInfo) -> str:
    """Describe the end of a process."""
    if process.timed_out:
        return "time-out"
    return f"signal {process.signal}" if process.signal else f"exit {process.exit_code}"


def format_size(number: int) -> str:
    """Format a number of bytes in two or three digits."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{name}" if number < 10 * unit else f"{number // unit}{name}"
    return str(number)


def format_byte_hours(byte_s: float) -> str:
    """Format bytes times seconds as bytes times hours: "2.5G h" is 2.5 GB for an hour."""
    size = format_size(int(byte_s / 3600))
    return f"{size}B h" if size.isdecimal() else f"{size} h"


def format_age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


# -- output of programs in a sandbox ----------------------------------------------------------------------------------

_PASS = re.compile(r"\x1b\[(?:[0-9;:]{0,48}m|[0-2]?K)")
_CUT = re.compile(r"\x1b(?:\[[0-9;:]{0,48})?\Z")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TerminalFilter:
    """Escapes control sequences in the output of a program before the output reaches the user's terminal. Pure.

    Unfiltered output could set titles, read and write the clipboard, or send queries that the terminal answers as if
    the user had typed. Colours and clearing to the end of a line pass; all other control characters become visible. A
    sequence or a character may be split between two pieces.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        text = self._held + self._decoder.decode(data)
        cut = _CUT.search(text)
        self._held = cut[0] if cut else ""
        return self._escaped(text[: len(text) - len(self._held)])

    def flush(self) -> bytes:
        """Return the held-back rest and reset the terminal's colours."""
        rest = self._escaped(self._held + self._decoder.decode(b"", final=True))
        self._held = ""
        return rest + (b"\x1b[0m" if self._coloured else b"")

    def _escaped(self, text: str) -> bytes:
        parts, at = [], 0
        for match in _PASS.finditer(text):
            parts += [_escape_controls(text[at : match.start()]), match[0]]
            at = match.end()
        self._coloured |= at > 0
        return "".join([*parts, _escape_controls(text[at:])]).encode()


def _escape_controls(text: str) -> str:
    return _CONTROL.sub(lambda match: escape_char(match[0]), text)


_filters: dict[int, TerminalFilter | None] = {}


def write(stream: str, data: bytes) -> None:
    """Write a program's output: unchanged to a file or a pipe, filtered to a terminal."""
    descriptor = 1 if stream == "stdout" else 2
    if descriptor not in _filters:
        _filters[descriptor] = _open_filter(descriptor) if os.isatty(descriptor) else None
    known = _filters[descriptor]
    write_raw(stream, data if known is None else known.feed(data))


def _open_filter(descriptor: int) -> TerminalFilter:
    made = TerminalFilter()
    atexit.register(lambda: write_raw("stdout" if descriptor == 1 else "stderr", made.flush()))
    return made


def write_raw(stream: str, data: bytes) -> None:
    """Write bytes unchanged and unbuffered."""
    descriptor = 1 if stream == "stdout" else 2
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another program made our stdout non-blocking
            select.select([], [descriptor], [])
        except BrokenPipeError:
            sys.exit(EXIT_PIPE_CLOSED)


# -- hints for denied connections -------------------------------------------------------------------------------------

MAX_DENIALS = 8
_PROGRAMS = {
    "pip": "pip", "pip3": "pip", "npm": "npm", "npx": "npm", "apt": "apt", "apt-get": "apt", "cargo": "cargo",
    "go": "go", "mvn": "maven", "gem": "gem", "bundle": "gem",
}  # fmt: skip


def denial_hints(denied: Iterable[NetworkAttempt], sandbox: str | None = None) -> list[str]:
    """Return one line per denied host: the reason, and the command or flag that allows it.

    `sandbox` is an existing sandbox, with a policy that can be changed; None means that the next run needs a flag."""
    known: dict[tuple[str, str | None], NetworkAttempt] = {}
    for attempt in denied:
        other = known.get((attempt.host, attempt.hint))
        if other is None or other.port is None:  # an attempt with a port has more information than a name lookup
            known[attempt.host, attempt.hint] = attempt
    lines = [_denial_line(attempt, sandbox) for attempt in known.values()]
    rest = len(lines) - MAX_DENIALS
    if rest > 0:
        where = f"skerry network log {sandbox} --denied" if sandbox else "--json lists them all"
        return [*lines[:MAX_DENIALS], f"{rest} more hosts were denied: {where}"]
    return lines


def _denial_line(attempt: NetworkAttempt, sandbox: str | None) -> str:
    where = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
    if ":" in attempt.host and attempt.port is not None:
        where = f"[{attempt.host}]:{attempt.port}"
    fix = denial_fix(attempt, sandbox)
    if fix and attempt.port is None and attempt.hint == f"--allow {attempt.host}":  # a name lookup has no port
        fix += f" (for ports 80 and 443; for another port, like {attempt.host}:22)"
    return f"{where} was denied: {attempt.why}" + (f"; {fix}" if fix else "")


def preset_hint(command: Sequence[str], denied: Iterable[NetworkAttempt], sandbox: str | None = None) -> str | None:
    """Suggest a preset for a program that needs several hosts."""
    if not any(attempt.rule is None and (attempt.hint or "").startswith("--allow ") for attempt in denied):
        return None
    for word in re.split(r"[\s;&|()'\"]+", " ".join(command)):
        if preset := _PROGRAMS.get(basename(word)):
            subject = f"a sandbox created with --preset {preset}" if sandbox else f"--preset {preset}"
            return f"{subject} allows all hosts that {preset} on this machine is configured to use"
    return None


def denial_fix(attempt: NetworkAttempt, sandbox: str | None) -> str | None:
    """Return the hint as text to type: a flag for the next run, or a command for an existing sandbox."""
    hint = attempt.hint
    if hint is not None and sandbox is not None and hint == f"deny wins: take {attempt.rule} out of deny":
        words = shlex.join([sandbox, attempt.rule or ""])
        return f"deny wins: `skerry network allow {words}` removes the deny rule and allows it"
    if hint is None or sandbox is None or not hint.startswith("--allow "):
        return hint
    rule = hint.removeprefix("--allow ").strip('"')
    return f"skerry network allow {shlex.quote(sandbox)} {rule if shlex.quote(rule) == rule else shlex.quote(rule)}"
