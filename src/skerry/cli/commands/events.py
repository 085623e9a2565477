"""events: list events of sandboxes and processes."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_lines_option, pass_cli
from skerry.types import Event


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow new events. Without --since, start now.")
@click.option("--since", type=click.IntRange(0), metavar="SEQ", help="List only events after this number.")
@click.option("--sandbox", type=SandboxName(), metavar="SANDBOX", help="List only events of this sandbox.")
@click.option(
    "--type", "kind", metavar="TYPE", help="List only this type, like process.ended, or process for all process events."
)
@json_lines_option
@pass_cli
def events(cli: CliContext, /, follow: bool, kind: str | None, as_json: bool, **which: Any) -> None:
    """List events of your sandboxes and their processes, oldest first."""
    with cli.client() as client:
        for event in client.events(follow=follow, type=kind, **which):
            if as_json:
                output.json_line(event)
            elif event.type == "lost":
                output.info("some events are no longer stored: too many happened since then")
            else:
                output.line(_event_line(event))


def _event_line(event: Event) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.at))
    words = [str(event.seq).rjust(6), moment, event.type.ljust(16), event.name or event.sandbox or "-"]
    return "  ".join([*words, *_details(event)])


def _details(event: Event) -> list[str]:
    if event.process is None:
        return [event.reason] if event.reason else []
    return [event.process.id, *([output.process_end(event.process)] if event.process.state == "exited" else [])]
