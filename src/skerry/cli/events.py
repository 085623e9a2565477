"""events: what happened to sandboxes and their processes."""

from __future__ import annotations

import time
from typing import Any

import click

from skerry.cli import talk
from skerry.cli.session import SandboxName, Session, pass_session
from skerry.types import Event


@click.command(short_help="What happened, and what happens now.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it happens; without --since from now on.")
@click.option("--since", type=click.IntRange(0), metavar="SEQ", help="Only what came after this event.")
@click.option("--sandbox", type=SandboxName(), metavar="SANDBOX", help="Only of this one.")
@click.option("--type", "kind", metavar="TYPE", help="Only of this type: process.ended, or process for all of theirs.")
@click.option("--json", "as_json", is_flag=True, help="Give JSON, an object a line.")
@pass_session
def events(session: Session, /, follow: bool, kind: str | None, as_json: bool, **which: Any) -> None:
    """List what happened to your sandboxes and their processes, oldest first."""
    with session.client() as client:
        for event in client.events(follow=follow, type=kind, **which):
            if as_json:
                talk.give_line(event)
            elif event.type == "lost":
                talk.say("some events are gone: there were too many since then")
            else:
                talk.give_text(_shown(event))


def _shown(event: Event) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(event.at))
    words = [str(event.seq).rjust(6), moment, event.type.ljust(16), event.name or event.sandbox or "-"]
    return "  ".join([*words, *_details(event)])


def _details(event: Event) -> list[str]:
    if event.process is None:
        return [event.reason] if event.reason else []
    return [event.process.id, *([talk.ending(event.process)] if event.process.state == "exited" else [])]
