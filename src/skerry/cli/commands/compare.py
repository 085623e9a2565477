"""compare: show the changes of several sandboxes side by side."""

from __future__ import annotations

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.codecs.text import escape
from skerry.types import Attempted, Comparison, Result, decode_path

MAX_WIDTH = 60


@click.command()
@click.option(
    "--check", metavar="COMMAND", help="Run this shell command in a fork of each sandbox and show the result."
)
@click.option("--timeout", metavar="TIME", default="5m", show_default=True, help="End the check after this time.")
@json_option
@click.argument("sandboxes", nargs=-1, required=True, type=SandboxName(), metavar="SANDBOX...")
@pass_cli
def compare(cli: CliContext, sandboxes: tuple[str, ...], check: str | None, timeout: str, as_json: bool) -> None:
    """Compare the changes of several sandboxes side by side, usually forks that tried the same task.

    To combine them: `skerry review A`, `skerry review B`, then `skerry apply A` and `skerry apply B`, which merges the
    two."""
    first, *others = (cli.sandbox(one) for one in sandboxes)
    found = first.review.compare(*others, check=check, timeout=output.parse_seconds(timeout, "--timeout"))
    if as_json:
        data = output.plain(found)
        for row, attempt in zip(data["attempts"], found.attempts, strict=True):
            row["check"] = output.result_data(attempt.check) if attempt.check is not None else None
        output.json(data)
        return
    show(found)


def show(found: Comparison) -> None:
    """Print the attempts, and the files that each of them changed."""
    names = [one.name or one.sandbox for one in found.attempts]
    checked = any(one.check is not None for one in found.attempts)
    head = ["ATTEMPT", "FILES", "LINES", "COMMANDS", "TIME", "CPU", "MEMORY", *(["CHECK"] if checked else [])]
    rows = [[name, *_row(one, checked)] for name, one in zip(names, found.attempts, strict=True)]
    output.table(head, rows)
    if found.paths:
        click.echo()
        output.table(["PATH", *names], [_path_row(path, found) for path in found.paths])


def _row(one: Attempted, checked: bool) -> list[str]:
    memory = "-" if one.memory_peak is None else f"{one.memory_peak / (1 << 20):.0f} MB"
    cpu = "-" if one.cpu_s is None else f"{one.cpu_s:.1f} s"
    lines = f"+{one.added} -{one.removed}"
    row = [str(len(one.files)), lines, str(one.commands), f"{one.duration_s:.1f} s", cpu, memory]
    return [*row, _ended(one.check)] if checked else row


def _ended(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.ok:
        return "ok"
    if result.timed_out:
        return "timed out"
    last = escape((result.stdout.strip() or result.stderr.strip()).rpartition("\n")[2])[:MAX_WIDTH]
    return f"exit {result.exit_code}" + (f": {last}" if last else "")


def _path_row(path: str, found: Comparison) -> list[str]:
    """Return the changed lines of each attempt in a file."""
    cells = []
    for one in found.attempts:
        file = next((file for file in one.files if decode_path(file.path, file.raw_path) == path), None)
        cells.append("" if file is None else _cell(file.added, file.removed))
    return [path, *cells]


def _cell(added: int | None, removed: int | None) -> str:
    return "changed" if added is None else f"+{added} -{removed or 0}"
