"""create, ls, show, update, rename, rm, prune, stop, resume, pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from skerry.cli import output, terminal
from skerry.cli.commands.budgets import budget_column, budget_pairs, report_notices
from skerry.cli.commands.network import policy_pairs
from skerry.cli.commands.pull import copy_states, report_behind
from skerry.cli.commands.review import unapplied_summary
from skerry.cli.context import (
    CliContext,
    json_option,
    pass_cli,
    sandbox_argument,
    sandboxes_argument,
)
from skerry.cli.options.network import cassette_to_load
from skerry.cli.options.project import project_from_options
from skerry.cli.options.project_setup import with_setup
from skerry.cli.options.repository import add_remote, repo_from_options, repo_options, report_import
from skerry.cli.options.sandbox import (
    budget_from_options,
    budget_option,
    lifecycle_from_options,
    lifecycle_options,
    limit_options,
    limits_from_options,
    parse_pairs,
    sandbox_arguments,
    sandbox_options,
)
from skerry.client._sync.sandbox import Sandbox
from skerry.codecs.text import escape
from skerry.errors import NotFound, SkerryError, UnappliedChanges
from skerry.types import STATES, Lifecycle, Limits, SandboxInfo, Usage, readable_span


@click.command()
@click.option(
    "--name",
    metavar="NAME",
    help="Name the sandbox. At the end of its lifetime a named sandbox is stopped, not deleted.",
)
@repo_options
@click.option("--no-remote", is_flag=True, help="With --repo: do not add the git remote `skerry` to the repository.")
@sandbox_options
@lifecycle_options
@json_option
@pass_cli
def create(cli: CliContext, /, name: str | None, as_json: bool, **given: Any) -> None:
    """Create a sandbox and print its ID."""
    no_remote, project = given.pop("no_remote"), project_from_options(given)
    arguments = with_setup(cli, sandbox_arguments(given, project), project)
    cassette = cassette_to_load(given, arguments.get("network"))
    with repo_from_options(cli, given, project) as repo:
        sandbox = Sandbox.create(name=name, server=cli.client(), repo=repo, **arguments)
    if cassette is not None:
        try:
            sandbox.network.load_cassette(cassette)
        except SkerryError:
            sandbox.delete()
            raise
    report_import(cli, sandbox.imported)
    if not no_remote:
        add_remote(cli, sandbox.imported)
    report_notices(cli, sandbox.cached_info)
    if as_json:
        output.json(sandbox.info())
    else:
        click.echo(sandbox.id)


@click.command()
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="List only sandboxes with this label.")
@click.option("--state", type=click.Choice(STATES), help="List only sandboxes in this state.")
@click.option("-q", "--ids", is_flag=True, help="Print IDs only, one per line.")
@json_option
@pass_cli
def ls(cli: CliContext, labels: tuple[str, ...], state: Any, ids: bool, as_json: bool) -> None:
    """List sandboxes. In a repository, also name its copies that are behind it."""
    found = [
        s.cached_info for s in Sandbox.list(labels=parse_pairs(labels, "--label"), state=state, server=cli.client())
    ]
    if as_json:
        output.json(found)
    elif ids:
        for info in found:
            click.echo(escape(info.id))
    else:
        _print_table(cli, found)
        if found:
            report_behind(cli)


def _print_table(cli: CliContext, found: list[SandboxInfo]) -> None:
    """Print the sandboxes; with a column for budgets if there are any."""
    with cli.client() as client:
        budgets = client.budgets.list() if found else []
    head, rows = ("ID", "NAME", "STATE", "IMAGE", "AGE", "LABELS"), [_row(info) for info in found]
    if not budgets:
        output.table(head, rows)
        return
    shown = [(*row, budget_column(budgets, info)) for row, info in zip(rows, found, strict=True)]
    output.table((*head, "BUDGET"), shown)


def _row(info: SandboxInfo) -> tuple[str, ...]:
    state = f"{info.state}: {info.reason}" if info.state == "failed" and info.reason else info.state
    labels = ",".join(f"{key}={value}" for key, value in info.labels.items())
    return info.id, info.name or "-", state, info.image, output.format_age(time.time() - info.created_at), labels or "-"


@click.command()
@json_option
@sandbox_argument
@pass_cli
def show(cli: CliContext, sandbox: str, as_json: bool) -> None:
    """Show a sandbox: state, usage, limits, network policy, isolation and budgets."""
    handle = cli.sandbox(sandbox)
    info, used, budgets = handle.cached_info, handle.usage(), handle.client.budgets.list(handle.id)
    if as_json:
        output.json({**msgspec.to_builtins(info), "usage": used, "budgets": budgets})
    else:
        output.pairs([*_pairs_of(info), *_usage_pairs(used), *budget_pairs(budgets), *_copy_pairs(cli, info)])


def _usage_pairs(used: Usage) -> list[tuple[str, str]]:
    """Return the usage since the sandbox was created."""
    peak, cpu, wall, active = (
        output.format_size(used.memory_peak or 0),
        *map(readable_span, (used.cpu_s, used.wall_s, used.active_s)),
    )
    rows = [
        ("cpu used", f"{cpu} in {wall} of running, {active} active"),
        ("memory used", f"{output.format_byte_hours(used.memory_byte_s)}ours, peak {peak}"),
        ("disk used", f"{output.format_byte_hours(used.disk_byte_s)}ours, now {output.format_size(used.disk or 0)}"),
        ("traffic", f"{output.format_size(used.sent)} sent, {output.format_size(used.received)} received"),
    ]
    return [*rows, ("cost", f"{used.cost:.4f} {used.currency}")] if used.cost is not None else rows


def _copy_pairs(cli: CliContext, info: SandboxInfo) -> list[tuple[str, str]]:
    """Return how far the copy of this directory's repository is behind, if the sandbox has one."""
    return [
        (
            "repository",
            f"{status}; files were not compared, there are too many" if status.files is None else str(status),
        )
        for _, status in copy_states(cli, info.id)
    ]


def _pairs_of(info: SandboxInfo) -> list[tuple[str, str]]:
    ends = info.lifecycle
    lifecycle = f"idle {ends.idle_timeout}, max {ends.max_lifetime}, on idle {ends.on_idle or 'default'}"
    rows = [("id", info.id), ("name", info.name or "-"), ("state", info.state), ("image", info.image),
            ("created", _moment(info.created_at)), *_limit_pairs(info), ("lifecycle", lifecycle)]  # fmt: skip
    if info.reason:
        rows.insert(3, ("reason", info.reason))
    rows += [("on start", command) for command in ends.on_start or ()]
    if ends.ready is not None:
        rows.append(("ready", str(ends.ready)))
    if info.ends_at:
        rows.append(("ends", _moment(info.ends_at)))
    rows += [("env", f"{name} (unset)" if value is None else f"{name}={value}") for name, value in info.env.items()]
    rows += [("label", f"{name}={value}") for name, value in info.labels.items()]
    rows += [("volume", f"{volume} at {path}") for path, volume in info.volumes.items()]
    rows += policy_pairs(info.network)
    rows += [("secret", f"{secret.name} to {', '.join(secret.hosts)}") for secret in info.secrets]
    if info.isolation:
        rows.append(("runtime", f"{info.isolation.runtime} {info.isolation.runtime_version}"))
        rows.append(("guarantees", ", ".join(info.isolation.guarantees)))
        rows.append(("waived", ", ".join(info.isolation.waived) or "none"))
    return rows


def _limit_pairs(info: SandboxInfo) -> list[tuple[str, str]]:
    """Return the limits in force, which differ from the requested ones where this host gives less."""
    limits, isolation = info.limits, info.isolation
    waived = isolation.waived if isolation else ()
    most = isolation.details.get("open_files") if isolation else None
    files = str(limits.open_files)
    if isinstance(most, int) and limits.open_files is not None and most < limits.open_files:
        files = f"{most} (the maximum of this host; {limits.open_files} requested)"
    return [
        ("cpus", "-" if limits.cpus is None else f"{limits.cpus:g}"),
        ("memory", str(limits.memory) + (" (without a limit for swap)" if "no_swap" in waived else "")),
        ("disk", str(limits.disk) + (" (not enforced)" if "disk_limit" in waived else "")),
        ("processes", f"{limits.pids} (with threads)"),
        ("open files", f"{files} per process"),
    ]


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


@click.command()
@limit_options
@click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable. NAME alone copies your value.",
)
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a variable, also one of the image.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Add a label and keep the others.")
@click.option("--unlabel", multiple=True, metavar="KEY", help="Remove a label.")
@lifecycle_options
@budget_option
@click.option(
    "--auto-resume/--no-auto-resume", default=None, help="Resume the sandbox automatically on access, or not."
)
@json_option
@sandbox_argument
@pass_cli
def update(cli: CliContext, /, sandbox: str, as_json: bool, **given: Any) -> None:
    """Change a sandbox's limits, variables, labels, lifecycle or budget in any state.

    A limit below the current usage is an error, and nothing is changed. Running commands keep the variables and the
    open-files limit that they started with. --budget replaces the budget and keeps the used amounts; `--budget none`
    removes it."""
    found = cli.sandbox(sandbox)
    changes = _changes(found.cached_info, given)
    if not changes:
        raise click.UsageError("no changes given")
    found.update(**changes)
    if as_json:
        output.json(found.cached_info)
    elif not cli.quiet:
        output.info(f"{sandbox}: changed")


@click.command()
@json_option
@sandbox_argument
@click.argument("name")
@pass_cli
def rename(cli: CliContext, sandbox: str, name: str, as_json: bool) -> None:
    """Rename SANDBOX, or name an unnamed one, which is then not deleted automatically. Inside, the host name changes
    too."""
    found = cli.sandbox(sandbox)
    found.rename(name)
    if as_json:
        output.json(found.cached_info)
    elif not cli.quiet:
        output.info(f"{sandbox}: renamed to {name}")


def _changes(info: SandboxInfo, given: dict[str, Any]) -> dict[str, Any]:
    env: dict[str, str | None] = {**parse_pairs(given["env"], "-e", inherit=True), **dict.fromkeys(given["unset"])}
    labels = {**info.labels, **parse_pairs(given["labels"], "--label")}
    lifecycle = replace(lifecycle_from_options(given), auto_resume=given["auto_resume"])
    requested = {
        "limits": (limits_from_options(given), Limits()),
        "env": (env, {}),
        "labels": ({key: value for key, value in labels.items() if key not in given["unlabel"]}, info.labels),
        "lifecycle": (lifecycle, Lifecycle()),
        "budget": (budget_from_options(given), None),
    }
    return {name: value for name, (value, unset) in requested.items() if value != unset}


@click.command()
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Also delete sandboxes with accepted changes that were not applied, and ignore those that do not exist.",
)
@click.option("--purge", is_flag=True, help="Delete the review and the trace too. Default: keep both for a while.")
@sandboxes_argument
@pass_cli
def rm(cli: CliContext, sandboxes: tuple[str, ...], force: bool, purge: bool) -> int:
    """Delete sandboxes and their files.

    A sandbox with accepted changes that were not applied is deleted after confirmation, or with --force. `skerry review
    --deleted` lists deleted sandboxes with changes, `skerry undelete` restores one."""

    def act(sandbox: Sandbox) -> None:
        _delete_with_notice(cli, sandbox, force=force, purge=purge)

    return _each(cli, sandboxes, act, "deleted", missing_ok=force)


def _delete_with_notice(cli: CliContext, sandbox: Sandbox, *, force: bool, purge: bool = False) -> None:
    """Delete a sandbox, and name its changes that were not applied."""
    name, left = sandbox.name or sandbox.id, unapplied_summary(sandbox)
    delete_sandbox(sandbox, force=force, purge=purge)
    if left and not cli.quiet:
        kept = "" if purge else f"; `skerry undelete {name}` restores them"
        output.info(f"{name}: dropped {left}{kept}")


def delete_sandbox(sandbox: Sandbox, *, force: bool, purge: bool = False) -> None:
    """Delete a sandbox. At a terminal, ask before accepted changes that were not applied are dropped; elsewhere that
    needs `force`."""
    try:
        sandbox.delete(force=force, purge=purge)
    except UnappliedChanges as error:
        if not terminal.is_interactive() or not click.confirm(f"{error.message}. Delete the sandbox anyway?", err=True):
            raise
        sandbox.delete(force=True, purge=purge)


@click.command()
@sandboxes_argument
@pass_cli
def stop(cli: CliContext, sandboxes: tuple[str, ...]) -> int:
    """Stop sandboxes: end their processes and keep their files."""
    return _each(cli, sandboxes, lambda sandbox: sandbox.stop(), "stopped")


@click.command()
@sandboxes_argument
@pass_cli
def resume(cli: CliContext, sandboxes: tuple[str, ...]) -> int:
    """Resume paused or stopped sandboxes."""
    return _each(cli, sandboxes, lambda sandbox: sandbox.resume(), "running")


@click.command()
@sandboxes_argument
@pass_cli
def pause(cli: CliContext, sandboxes: tuple[str, ...]) -> int:
    """Pause sandboxes: freeze their processes."""
    return _each(cli, sandboxes, lambda sandbox: sandbox.pause(), "paused")


def _each(
    cli: CliContext,
    refs: tuple[str, ...],
    act: Callable[[Sandbox], None],
    done: str,
    *,
    missing_ok: bool = False,
) -> int:
    """Act on each sandbox in turn. After a failure, continue with the others; return the worst exit code."""
    worst = 0
    for ref in refs:
        try:
            act(cli.sandbox(ref))
        except SkerryError as error:
            if missing_ok and isinstance(error, NotFound):
                continue
            output.error(error)
            worst = max(worst, output.error_exit_code(error))
        else:
            if not cli.quiet:
                output.info(f"{ref}: {done}")
    return worst


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also delete running and paused sandboxes.")
@click.option("--named", is_flag=True, help="Also delete named sandboxes.")
@click.option("--force", is_flag=True, help="Also delete sandboxes with accepted changes that were not applied.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@pass_cli
def prune(cli: CliContext, /, everything: bool, named: bool, force: bool, yes: bool, as_json: bool) -> int:
    """Delete stopped and failed sandboxes without a name.

    `skerry review --deleted` lists deleted sandboxes with changes, `skerry undelete` restores one."""
    ended = [s for s in Sandbox.list(server=cli.client()) if everything or s.state in ("stopped", "failed")]
    selected = [sandbox for sandbox in ended if named or sandbox.name is None]
    if len(ended) > len(selected) and not cli.quiet:
        output.info(f"{len(ended) - len(selected)} named sandboxes are kept; --named selects them too")
    if selected:
        for sandbox in selected:
            output.info(f"{sandbox.id}  {sandbox.name or '-'}  {sandbox.state}")
        if not output.confirm(f"Delete {len(selected)} sandboxes with all their files?", yes=yes):
            return 1
    deleted = [sandbox.id for sandbox in selected if _deleted(cli, sandbox, force=force)]
    if as_json:
        output.json({"deleted": deleted})
    elif not cli.quiet:
        output.info(f"{len(deleted)} deleted" if selected else "nothing to delete")
    return 0 if len(deleted) == len(selected) else output.EXIT_FAILED


def _deleted(cli: CliContext, sandbox: Sandbox, *, force: bool) -> bool:
    try:
        _delete_with_notice(cli, sandbox, force=force)
    except NotFound:
        return True
    except SkerryError as error:
        output.error(error)
        return False
    return True


@click.command()
@click.option("--name", metavar="NAME", help="Name the sandbox differently. Default: its former name.")
@json_option
@click.argument("deleted", metavar="SANDBOX")
@pass_cli
def undelete(cli: CliContext, deleted: str, name: str | None, as_json: bool) -> None:
    """Restore the review and the workspace of a deleted SANDBOX, given by its ID or former name.

    A new sandbox gets the former image, limits, variables and network policy, the files of the workspace as the review
    recorded them, and all decisions: `skerry review` and `skerry apply` continue. Other files, ignored files, large
    files, the repository's .git, processes and secrets do not come back. `skerry review --deleted` lists deleted
    sandboxes."""
    sandbox = Sandbox.undelete(deleted, name=name, server=cli.client())
    if as_json:
        output.json(sandbox.cached_info)
        return
    click.echo(sandbox.id)
    if not cli.quiet:
        info, left = sandbox.cached_info, unapplied_summary(sandbox)
        output.info(f"restored: the files of the workspace and the review{f' with {left}' if left else ''}")
        output.info(f"hint: skerry review {info.name or info.id}")
