"""usage: the resources that sandboxes have used, and their cost."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.types import USAGE_GROUPS, UsageReport, UsageRow, UsageTotals, readable_span

_FIGURES = UsageTotals.__struct_fields__


def _complete_group(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [group for group in (*USAGE_GROUPS, "label:") if group.startswith(incomplete)]


@click.command()
@click.option(
    "--by", default="sandbox", show_default=True, metavar="GROUP", shell_complete=_complete_group,
    help="Group by sandbox, label:KEY, actor, image, owner or day.",
)  # fmt: skip
@click.option("--since", metavar="WHEN", help="Count from this day on: a time span like 7d, or a day like 2026-11-30.")
@click.option("--until", metavar="WHEN", help="Count up to this day.")
@click.option("--sandbox", type=SandboxName(), metavar="SANDBOX", help="Count only this sandbox.")
@click.option("--label", metavar="KEY=VALUE", help="Count only sandboxes with this label.")
@click.option("--owner", metavar="OWNER", help="Count only sandboxes of this owner.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with exact figures.")
@json_option
@pass_cli
def usage(cli: CliContext, /, by: str, as_csv: bool, as_json: bool, **which: Any) -> None:
    """Show the resources that sandboxes have used, also deleted ones, and their cost.

    MEMORY and DISK are bytes times hours: 2G h is 2 GB for an hour. SENT and RECEIVED count bytes to and from other
    hosts. WALL is the time in which sandboxes ran, ACTIVE the part of it in which commands ran. Days are in UTC.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv cannot be combined with --json")
    with cli.client() as client:
        report = client.usage(by, **which)
    if as_json:
        output.json(report)
    elif as_csv:
        _write_csv(report)
    else:
        _show(report)


def _show(report: UsageReport) -> None:
    cost = [f"COST {report.currency}"] if report.currency is not None else []
    head = [report.by.upper() if not report.by.startswith("label:") else report.by[6:], "SANDBOXES", "CPU", "MEMORY",
            "PEAK", "DISK", "SENT", "RECEIVED", "WALL", "ACTIVE", *cost]  # fmt: skip
    total = UsageRow(key="total", usage=report.total, sandboxes=report.sandboxes, cost=report.cost)
    output.table(head, [_row(row) for row in (*report.rows, total)])
    if report.more:
        output.info(f"{report.more:,} more rows are part of the total; --since and --label select fewer")


def _row(row: UsageRow) -> tuple[str, ...]:
    used = row.usage
    return (
        row.name or (row.key if row.key is not None else "-"), str(row.sandboxes), readable_span(used.cpu_s),
        output.format_byte_hours(used.memory_byte_s), output.format_size(used.memory_peak),
        output.format_byte_hours(used.disk_byte_s), output.format_size(used.sent), output.format_size(used.received),
        readable_span(used.wall_s), readable_span(used.active_s),
        *([f"{row.cost:.4f}"] if row.cost is not None else []),
    )  # fmt: skip


def _write_csv(report: UsageReport) -> None:
    """A spreadsheet must not take a label for a formula, so such texts get a leading apostrophe."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["key", "name", "sandboxes", *_FIGURES, "cost", "currency"])
    for row in report.rows:
        figures = [getattr(row.usage, name) for name in _FIGURES]
        table.writerow([_cell(row.key), _cell(row.name), row.sandboxes, *figures, row.cost, report.currency])


def _cell(text: str | None) -> str:
    return f"'{text}" if text and text[0] in "=+-@\t\r" else text or ""
