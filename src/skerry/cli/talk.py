"""What is said to people, on stderr, and what is given as data, on stdout."""

from __future__ import annotations

import atexit
import base64
import json
import os
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from skerry.cli.tame import Tame
from skerry.client.harmless import harmless
from skerry.errors import HostUnsupported, QuotaExceeded, SandboxUnavailable, ServerUnreachable, SkerryError
from skerry.types import ProcessInfo, Result, parse_span

CALLER_ERRED = 2
TIMED_OUT = 124
WE_FAILED = 125
INTERRUPTED = 130
PIPE_CLOSED = 141
_tame: dict[int, Tame | None] = {}
_OURS = (SandboxUnavailable, ServerUnreachable, HostUnsupported, QuotaExceeded)


def say(text: str) -> None:
    click.echo(harmless(text, lines=True), err=True)


def say_error(error: SkerryError) -> None:
    say(f"error: {error.message}")
    if error.hint:
        say(f"hint: {error.hint}")


def code_of_error(error: SkerryError) -> int:
    """Whose failure it was: 125 ours, 2 the caller's."""
    return WE_FAILED if isinstance(error, _OURS) or type(error) is SkerryError else CALLER_ERRED


def code_of_result(result: Result) -> int:
    if result.timed_out:
        return TIMED_OUT
    if result.signal:
        return 128 + getattr(signal, f"SIG{result.signal}", 0)
    return result.exit_code if result.exit_code is not None else WE_FAILED


def result_as_data(result: Result) -> dict[str, Any]:
    """For JSON: text, and, where it is no text, its bytes too."""
    data: dict[str, Any] = plain(result)
    for name in ("stdout", "stderr"):
        data.pop(f"{name}_bytes")
        raw: bytes = getattr(result, f"{name}_bytes")
        data[name] = raw.decode("utf-8", "replace")
        data[f"{name}_base64"] = None if data[name].encode() == raw else base64.b64encode(raw).decode()
    return {"ok": result.ok, **data}


def seconds(text: str | None, flag: str) -> float | None:
    return parse_span(text, flag) if text else None


def show(stream: str, data: bytes) -> None:
    """A program's output: untouched to a file or a pipe, harmless to a terminal."""
    descriptor = 1 if stream == "stdout" else 2
    if descriptor not in _tame:
        _tame[descriptor] = _tamer(descriptor) if os.isatty(descriptor) else None
    tame = _tame[descriptor]
    pass_on(stream, data if tame is None else tame.take(data))


def _tamer(descriptor: int) -> Tame:
    tame = Tame()
    atexit.register(lambda: pass_on("stdout" if descriptor == 1 else "stderr", tame.end()))
    return tame


def pass_on(stream: str, data: bytes) -> None:
    """Bytes as they are, at once."""
    descriptor = 1 if stream == "stdout" else 2
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [descriptor], [])
        except BrokenPipeError:
            sys.exit(PIPE_CLOSED)


def plain(value: Any) -> Any:
    """A value as JSON's own types, with its defaults: what is not set is null, not missing."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def give_json(value: Any) -> None:
    """As data, in ASCII: a name inside can't speak to the terminal through it."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=True))


def give_line(value: Any) -> None:
    """The same on one line, for what has no end."""
    give_text(json.dumps(plain(value), ensure_ascii=True))


def give_text(line: str) -> None:
    """A line of data, at once; whoever read it may have left."""
    pass_on("stdout", f"{harmless(line)}\n".encode())


def give_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns for people, readable without colour. The last one is not padded."""
    table = [list(head), *([harmless(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def give_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    known = [(name, harmless(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on the terminal. Where nobody can be asked, only --yes is a yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: say --yes.")
    return click.confirm(question, err=True)


def ending(process: ProcessInfo) -> str:
    """How a process ended."""
    if process.timed_out:
        return "time-out"
    return f"signal {process.signal}" if process.signal else f"exit {process.exit_code}"


def size(number: int) -> str:
    """Bytes for people, in two or three digits."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{name}" if number < 10 * unit else f"{number // unit}{name}"
    return str(number)


def ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"
