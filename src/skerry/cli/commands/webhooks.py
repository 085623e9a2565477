"""webhook ls, test, dead, retry."""

from __future__ import annotations

import sys
import time

import click

from skerry.cli import output
from skerry.cli.context import CliContext, WebhookName, json_lines_option, json_option, pass_cli
from skerry.types import WebhookDelivery, WebhookInfo


@click.group("webhook")
def webhook() -> None:
    """List and test the webhooks of the server's settings, and retry deliveries that failed for good."""


@webhook.command()
@json_option
@pass_cli
def ls(cli: CliContext, as_json: bool) -> None:
    """List webhooks and the state of their queues."""
    with cli.client() as client:
        found = client.webhooks.list()
    if as_json:
        output.json(found)
        return
    rows = ((one.name, one.url, ",".join(one.events), str(one.waiting), str(one.dead), _problem(one)) for one in found)
    output.table(("NAME", "URL", "EVENTS", "WAITING", "DEAD", "LAST ERROR"), rows)


def _problem(one: WebhookInfo) -> str:
    return f"{one.last_error}; nothing is sent until `retry`" if one.gone else one.last_error or "-"


@webhook.command()
@click.argument("name", type=WebhookName())
@json_option
@pass_cli
def test(cli: CliContext, name: str, as_json: bool) -> None:
    """Send a test event to a webhook. The exit code is 1 if the receiver does not accept it."""
    with cli.client() as client:
        result = client.webhooks.test(name)
    if as_json:
        output.json(result)
    elif result.ok:
        output.line(f"ok: the receiver answered {result.status}")
    else:
        output.info(f"error: {result.error}")
    if not result.ok:
        sys.exit(1)


@webhook.command()
@click.argument("name", required=False, type=WebhookName())
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="List at most N.")
@json_lines_option
@pass_cli
def dead(cli: CliContext, name: str | None, limit: int, as_json: bool) -> None:
    """List deliveries that failed for good, newest first."""
    with cli.client() as client:
        found = client.webhooks.dead(name, limit=limit)
    if as_json:
        for one in found:
            output.json_line(one)
        return
    rows = ((one.id, one.webhook, one.type, _age(one), str(one.attempts), one.error or "-") for one in found)
    output.table(("ID", "WEBHOOK", "TYPE", "AGE", "ATTEMPTS", "ERROR"), rows)


def _age(one: WebhookDelivery) -> str:
    return output.format_age(time.time() - one.created_at)


@webhook.command()
@click.argument("name", type=WebhookName())
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_option
@pass_cli
def retry(cli: CliContext, name: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Send dead deliveries of a webhook again: those with these IDs, or all."""
    with cli.client() as client:
        retried = client.webhooks.retry(name, *ids)
    if as_json:
        output.json({"retried": retried})
    else:
        output.line(f"retrying {retried:,}")
