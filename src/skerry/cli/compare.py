"""`skerry compare`: several attempts at one task, side by side."""

from __future__ import annotations

import click

from skerry.cli import talk
from skerry.cli.session import SandboxName, Session, json_option, pass_session
from skerry.client.harmless import harmless
from skerry.types import Attempted, Comparison, Result, real_path

WIDEST = 60


@click.command()
@click.option("--check", metavar="COMMAND", help="Run this shell line in a fork of each, and show how it ends.")
@click.option("--timeout", metavar="TIME", default="5m", show_default=True, help="How long that may take.")
@json_option
@click.argument("sandboxes", nargs=-1, required=True, type=SandboxName(), metavar="SANDBOX...")
@pass_session
def compare(session: Session, sandboxes: tuple[str, ...], check: str | None, timeout: str, as_json: bool) -> None:
    """Show several sandboxes' changes side by side: forks of one, as a rule, that tried the same.

    Take what you like of each: `skerry review A`, `skerry review B`, then `skerry apply A` and `skerry apply B`, which
    merges the two."""
    first, *others = (session.sandbox(one) for one in sandboxes)
    found = first.review.compare(*others, check=check, timeout=talk.seconds(timeout, "--timeout"))
    if as_json:
        data = talk.plain(found)
        for row, attempt in zip(data["attempts"], found.attempts, strict=True):
            row["check"] = talk.result_as_data(attempt.check) if attempt.check is not None else None
        talk.give_json(data)
        return
    _show(found)


def _show(found: Comparison) -> None:
    names = [one.name or one.sandbox for one in found.attempts]
    checked = any(one.check is not None for one in found.attempts)
    head = ["ATTEMPT", "FILES", "LINES", "COMMANDS", "TIME", "CPU", "MEMORY", *(["CHECK"] if checked else [])]
    rows = [[name, *_row(one, checked)] for name, one in zip(names, found.attempts, strict=True)]
    talk.give_table(head, rows)
    if found.paths:
        click.echo()
        talk.give_table(["PATH", *names], [_path_row(path, found) for path in found.paths])


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
    last = harmless((result.stdout.strip() or result.stderr.strip()).rpartition("\n")[2])[:WIDEST]
    return f"exit {result.exit_code}" + (f": {last}" if last else "")


def _path_row(path: str, found: Comparison) -> list[str]:
    """Each attempt's lines in that file."""
    cells = []
    for one in found.attempts:
        file = next((file for file in one.files if real_path(file.path, file.raw_path) == path), None)
        cells.append("" if file is None else _cell(file.added, file.removed))
    return [path, *cells]


def _cell(added: int | None, removed: int | None) -> str:
    return "changed" if added is None else f"+{added} -{removed or 0}"
