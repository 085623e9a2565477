"""budget set, ls, rm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.errors import InvalidRequest, NotFound
from skerry.types import AMOUNT_NAMES, Budget, BudgetInfo, SandboxInfo, parse_label

_LABEL_HELP = 'Choose the budget of this label. Everything after the first "=" is its value.'


@click.group("budget")
def budget() -> None:
    """Manage the budgets of labels and owners. `create --budget` and `update --budget` set those of a sandbox."""


@budget.command("set")
@click.option("--label", metavar="KEY=VALUE", help=_LABEL_HELP)
@click.option("--owner", metavar="NAME", help="Choose this owner: the label of its sandboxes, or all of them.")
@click.option("--cpu", metavar="TIME", help="Limit the CPU time, like 1h.")
@click.option("--cost", type=float, metavar="N", help="Limit the cost, in the currency of the prices.")
@click.option("--network", metavar="SIZE", help="Limit the bytes sent and received, like 10G.")
@click.option("--wall", metavar="TIME", help="Limit the time in which sandboxes run, like 8h.")
@click.option("--on-exceeded", type=click.Choice(["pause", "stop"]), help="Choose the action at 100 %. Default: pause.")
@json_option
@pass_cli
def set_(cli: CliContext, /, label: str | None, owner: str | None, as_json: bool, **amounts: Any) -> None:
    """Set the budget of a label, or with --owner alone of an owner. Set it again to change it; the used amounts stay.

    A budget counts usage from the moment it was set. `budget rm` and `budget set` start again at zero."""
    if label is None and owner is None:
        raise InvalidRequest("--label or --owner: one of them is required", hint="like --label task=42")
    with cli.client() as client:
        made = client.budgets.set(Budget(**amounts), label=label, owner=owner)
    if as_json:
        output.json(made)
        return
    click.echo(made.id)
    if made.notice and not cli.quiet:
        output.info(f"warning: {made.notice}")


@budget.command()
@click.option("--sandbox", type=SandboxName(), metavar="SANDBOX", help="List only budgets of this sandbox.")
@json_option
@pass_cli
def ls(cli: CliContext, sandbox: str | None, as_json: bool) -> None:
    """List budgets of labels, owners and sandboxes with their used amounts."""
    with cli.client() as client:
        found = client.budgets.list(sandbox)
    if as_json:
        output.json(found)
        return
    rows = (
        (
            one.id,
            subject(one),
            AMOUNT_NAMES[amount],
            one.describe(amount),
            f"{percent} %",
            one.budget.on_exceeded or "-",
        )
        for one in found
        for amount, percent in one.percent.items()
    )
    output.table(("ID", "BUDGET OF", "AMOUNT", "USED", "SHARE", "AT 100 %"), rows)
    for notice in {one.notice for one in found if one.notice}:
        if not cli.quiet:
            output.info(f"warning: {notice}")


@budget.command()
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--label", metavar="KEY=VALUE", help=_LABEL_HELP)
@click.option("--owner", metavar="NAME", help="Choose this owner: the label of its sandboxes, or all of them.")
@pass_cli
def rm(cli: CliContext, ids: tuple[str, ...], label: str | None, owner: str | None) -> None:
    """Remove budgets with their used amounts, by ID or by label and owner."""
    if bool(ids) == (label is not None or owner is not None):
        raise InvalidRequest("name budgets by ID, or one by --label and --owner")
    with cli.client() as client:
        if not ids:
            ids = (_find(client.budgets.list(), label, owner),)
        for one in ids:
            client.budgets.remove(one)


def _rows(one: BudgetInfo) -> list[tuple[str, ...]]:
    end = one.budget.on_exceeded or "pause"
    return [
        (one.id, subject(one), AMOUNT_NAMES[amount], one.describe(amount), f"{percent} %", end)
        for amount, percent in one.percent.items()
    ]


def _find(found: Sequence[BudgetInfo], label: str | None, owner: str | None) -> str:
    if label is not None:
        parse_label(label)
    matching = [one.id for one in found if one.sandbox is None and one.label == label and owner in (None, one.owner)]
    if len(matching) > 1:
        raise InvalidRequest(f"{len(matching)} owners have a budget of this label", hint="add --owner, or name its ID")
    if not matching:
        raise NotFound("budget not found", hint="`skerry budget ls` lists them")
    return matching[0]


def subject(info: BudgetInfo) -> str:
    if info.sandbox is not None:
        return f"sandbox {info.sandbox}"
    return f"label {info.label}" if info.label is not None else f"owner {info.owner}"


def budget_pairs(found: Sequence[BudgetInfo]) -> list[tuple[str, str]]:
    """Return lines about the budgets that a sandbox's usage counts to."""
    return [
        ("budget", f"{AMOUNT_NAMES[amount]}: {one.describe(amount)} ({percent} %), {subject(one)}")
        for one in found
        for amount, percent in one.percent.items()
    ]


def budget_column(budgets: Sequence[BudgetInfo], info: SandboxInfo) -> str:
    """Return the amount that is used up most among the budgets of a sandbox."""
    labels = {f"{key}={value}" for key, value in info.labels.items()}
    shares = [
        (percent, amount)
        for one in budgets
        if one.sandbox == info.id
        or (one.sandbox is None and one.owner == info.owner and (one.label is None or one.label in labels))
        for amount, percent in one.percent.items()
    ]
    return "{1} {0} %".format(*max(shares)) if shares else "-"


def report_notices(cli: CliContext, info: SandboxInfo) -> None:
    """Warn about a budget for cost without prices."""
    if info.budget is not None and info.budget.cost is not None and not cli.quiet:
        with cli.client() as client:
            for notice in {one.notice for one in client.budgets.list(info.id) if one.notice}:
                output.info(f"warning: {notice}")
