"""replay: run the steps of a trace again in a new sandbox and compare."""

from __future__ import annotations

import sys
from typing import Any

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.client.replay.normalise import ALL_RULES
from skerry.client.replay.report import lines_of
from skerry.errors import InvalidRequest
from skerry.types.replays import ReplayReport
from skerry.types.traces import TraceStep


class ReplaySource(SandboxName):
    """A sandbox, a snapshot, or the path of an exported trace."""

    name = "source"


@click.command("replay")
@click.option("--until", type=click.IntRange(1), metavar="N", help="Stop after step N of the trace.")
@click.option("--keep", is_flag=True, help="Keep the sandbox of the replay and print its ID.")
@click.option("--network", is_flag=True, help="Allow the hosts of the recorded policy. Default: the network is closed.")
@click.option(
    "--step-timeout", metavar="TIME", help="End a step after this time, like 30s. Default: 10 times its time."
)
@click.option("--rules", is_flag=True, help="List the rules of the normalisation and exit.")
@json_option
@click.argument("source", required=False, type=ReplaySource(), metavar="SANDBOX|SNAPSHOT|FILE")
@pass_cli
def replay(
    cli: CliContext,
    source: str | None,
    until: int | None,
    keep: bool,
    network: bool,
    step_timeout: str | None,
    rules: bool,
    as_json: bool,
) -> None:
    """Run a trace again in a new sandbox from the same start, and compare each step: same, same after normalising, or
    different. Exit with 1 if a step is different.

    The trace is that of a sandbox, also of a deleted one by its ID; the steps after a snapshot; or a file of
    `skerry trace export`: a path with a slash, or that ends with .trace."""
    if rules:
        _show_rules(as_json)
        return
    if source is None:
        raise InvalidRequest("SANDBOX|SNAPSHOT|FILE: missing", hint="`skerry replay dev`, `skerry replay dev.trace`")
    options: dict[str, Any] = {"path": source} if is_path(source) else {"sandbox": source}
    with cli.client() as client:
        report = client.replay(
            **options, until=until, keep=keep, network=network,
            step_timeout=output.parse_seconds(step_timeout, "--step-timeout"),
            on_step=None if cli.quiet or as_json else _show_step,
        )  # fmt: skip
    if as_json:
        output.json(report)
    else:
        _show(report)
    if not report.ok:
        sys.exit(1)


def is_path(source: str) -> bool:
    """Return whether a source is a path, which has a slash or ends with .trace."""
    return "/" in source or source.endswith(".trace")


def _show_rules(as_json: bool) -> None:
    if as_json:
        output.json(ALL_RULES)
    else:
        output.table(("RULE", "CHECK", "VALUES"), ((rule.name, rule.check, rule.description) for rule in ALL_RULES))


def _show_step(step: TraceStep) -> None:
    output.info(f"step {step.n}: {step.kind} {step.text}".rstrip())


def _show(report: ReplayReport) -> None:
    for note in report.notes:
        output.info(f"note: {note}")
    for line in lines_of(report):
        output.line(line)
    if report.kept:
        output.line(f"sandbox {report.sandbox}")
