"""create, ls, show, update, rm, prune, stop, resume, pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from skerry.cli import talk
from skerry.cli.creation import (
    creation,
    creation_options,
    lifecycle_of,
    lifecycle_options,
    limit_options,
    limits_of,
    pairs,
)
from skerry.cli.network import policy_pairs
from skerry.cli.project import prepared
from skerry.cli.repositories import add_remote, repo_of, repo_options, tell_imported
from skerry.cli.review.commands import not_applied
from skerry.cli.session import (
    Session,
    json_option,
    pass_session,
    sandbox_argument,
    sandboxes_argument,
)
from skerry.client.harmless import harmless
from skerry.errors import NotFound, SkerryError
from skerry.types import STATES, Lifecycle, Limits, SandboxInfo

if TYPE_CHECKING:
    from skerry.client._sync.sandbox import Sandbox


@click.command()
@click.option("--name", metavar="NAME", help="A name of yours; a named sandbox is stopped, not deleted, at its end.")
@repo_options
@click.option("--no-remote", is_flag=True, help="With --repo: add no remote `skerry` to that repository.")
@creation_options
@lifecycle_options
@json_option
@pass_session
def create(session: Session, /, name: str | None, as_json: bool, **given: Any) -> None:
    """Make a sandbox. Its id is what is printed."""
    from skerry.client._sync.sandbox import Sandbox

    skip, no_remote = given.pop("no_setup"), given.pop("no_remote")
    wish = prepared(session, creation(given), skip=skip)
    with repo_of(session, given) as repo:
        sandbox = Sandbox.create(name=name, server=session.client(), repo=repo, **wish)
    tell_imported(session, sandbox.imported)
    if not no_remote:
        add_remote(session, sandbox.imported)
    if as_json:
        talk.give_json(sandbox.info())
    else:
        click.echo(sandbox.id)


@click.command()
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only those with this label.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("-q", "--ids", is_flag=True, help="Ids alone, one a line.")
@json_option
@pass_session
def ls(session: Session, labels: tuple[str, ...], state: Any, ids: bool, as_json: bool) -> None:
    """List sandboxes."""
    from skerry.client._sync.sandbox import Sandbox

    found = [s.known for s in Sandbox.list(labels=pairs(labels, "--label"), state=state, server=session.client())]
    if as_json:
        talk.give_json(found)
    elif ids:
        for info in found:
            click.echo(harmless(info.id))
    else:
        talk.give_table(("ID", "NAME", "STATE", "IMAGE", "AGE", "LABELS"), map(_row, found))


def _row(info: SandboxInfo) -> tuple[str, ...]:
    state = f"{info.state}: {info.reason}" if info.state == "failed" and info.reason else info.state
    labels = ",".join(f"{key}={value}" for key, value in info.labels.items())
    return info.id, info.name or "-", state, info.image, talk.ago(time.time() - info.created_at), labels or "-"


@click.command()
@json_option
@sandbox_argument
@pass_session
def show(session: Session, sandbox: str, as_json: bool) -> None:
    """Show a sandbox: its state, limits, policy, what isolates it."""
    info = session.sandbox(sandbox).known
    if as_json:
        talk.give_json(info)
    else:
        talk.give_pairs(_pairs_of(info))


def _pairs_of(info: SandboxInfo) -> list[tuple[str, str]]:
    limits = ", ".join(f"{name} {getattr(info.limits, name)}" for name in info.limits.__struct_fields__)
    lifecycle = (
        f"idle {info.lifecycle.idle}, life {info.lifecycle.life}, then {info.lifecycle.on_idle or 'the default'}"
    )
    rows = [("id", info.id), ("name", info.name or "-"), ("state", info.state), ("image", info.image),
            ("created", _moment(info.created_at)), ("limits", limits), ("lifecycle", lifecycle)]  # fmt: skip
    if info.reason:
        rows.insert(3, ("reason", info.reason))
    if info.ends_at:
        rows.append(("ends", _moment(info.ends_at)))
    rows += [("env", f"{name} (unset)" if value is None else f"{name}={value}") for name, value in info.env.items()]
    rows += [("label", f"{name}={value}") for name, value in info.labels.items()]
    rows += policy_pairs(info.network)
    rows += [("secret", f"{secret.name} to {', '.join(secret.hosts)}") for secret in info.secrets]
    if info.isolation:
        rows.append(("runtime", f"{info.isolation.runtime} {info.isolation.runtime_version}"))
        rows.append(("guarantees", ", ".join(info.isolation.guarantees)))
        rows.append(("waived", ", ".join(info.isolation.waived) or "nothing"))
    return rows


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


@click.command()
@limit_options
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable; NAME alone takes yours.")
@click.option("--unset", multiple=True, metavar="NAME", help="Takes a variable away, also the image's.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; others stay.")
@click.option("--unlabel", multiple=True, metavar="KEY", help="Takes a label away.")
@lifecycle_options
@click.option("--wake/--no-wake", default=None, help="Whether a call wakes it.")
@json_option
@sandbox_argument
@pass_session
def update(session: Session, /, sandbox: str, as_json: bool, **given: Any) -> None:
    """Change a sandbox's limits, variables, labels or lifecycle, while it runs, is paused or stopped.

    Limits below what it uses are refused, and then nothing is changed. Commands that run keep the variables and the
    number of open files that they began with."""
    found = session.sandbox(sandbox)
    changes = _changes(found.known, given)
    if not changes:
        raise click.UsageError("nothing to change was given")
    found.update(**changes)
    if as_json:
        talk.give_json(found.known)
    elif not session.quiet:
        talk.say(f"{sandbox}: changed")


def _changes(info: SandboxInfo, given: dict[str, Any]) -> dict[str, Any]:
    env: dict[str, str | None] = {**pairs(given["env"], "-e", inherit=True), **dict.fromkeys(given["unset"])}
    labels = {**info.labels, **pairs(given["labels"], "--label")}
    lifecycle = replace(lifecycle_of(given), wake=given["wake"])
    wishes = {
        "limits": (limits_of(given), Limits()),
        "env": (env, {}),
        "labels": ({key: value for key, value in labels.items() if key not in given["unlabel"]}, info.labels),
        "lifecycle": (lifecycle, Lifecycle()),
    }
    return {name: wish for name, (wish, nothing) in wishes.items() if wish != nothing}


@click.command()
@click.option("-f", "--force", is_flag=True, help="One that is not there is no error.")
@sandboxes_argument
@pass_session
def rm(session: Session, sandboxes: tuple[str, ...], force: bool) -> int:
    """Delete sandboxes, with all that is in them."""

    def act(sandbox: Sandbox) -> None:
        left = not_applied(sandbox)
        sandbox.delete()
        if left and not session.quiet:
            talk.say(f"{sandbox.name or sandbox.id}: {left} went with it")

    return _each(session, sandboxes, act, "deleted", missing_ok=force)


@click.command()
@sandboxes_argument
@pass_session
def stop(session: Session, sandboxes: tuple[str, ...]) -> int:
    """End the processes of sandboxes and keep their files."""
    return _each(session, sandboxes, lambda sandbox: sandbox.stop(), "stopped")


@click.command()
@sandboxes_argument
@pass_session
def resume(session: Session, sandboxes: tuple[str, ...]) -> int:
    """Wake sandboxes that are paused or stopped."""
    return _each(session, sandboxes, lambda sandbox: sandbox.resume(), "running")


@click.command()
@sandboxes_argument
@pass_session
def pause(session: Session, sandboxes: tuple[str, ...]) -> int:
    """Freeze the processes of sandboxes where they are."""
    return _each(session, sandboxes, lambda sandbox: sandbox.pause(), "paused")


def _each(
    session: Session,
    refs: tuple[str, ...],
    act: Callable[[Sandbox], None],
    done: str,
    *,
    missing_ok: bool = False,
) -> int:
    """Each in turn. One that fails does not keep the others; the worst exit code counts."""
    worst = 0
    for ref in refs:
        try:
            act(session.sandbox(ref))
        except SkerryError as error:
            if missing_ok and isinstance(error, NotFound):
                continue
            talk.say_error(error)
            worst = max(worst, talk.code_of_error(error))
        else:
            if not session.quiet:
                talk.say(f"{ref}: {done}")
    return worst


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that run.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
@pass_session
def prune(session: Session, everything: bool, yes: bool, as_json: bool) -> int:
    """Delete the sandboxes that are stopped or failed."""
    from skerry.client._sync.sandbox import Sandbox

    found = Sandbox.list(server=session.client())
    doomed = [sandbox for sandbox in found if everything or sandbox.state in ("stopped", "failed")]
    if doomed:
        for sandbox in doomed:
            talk.say(f"{sandbox.id}  {sandbox.name or '-'}  {sandbox.state}")
        if not talk.confirm(f"Delete {len(doomed)} with all that is in them?", yes=yes):
            return 1
    deleted = [sandbox.id for sandbox in doomed if _deleted(sandbox)]
    if as_json:
        talk.give_json({"deleted": deleted})
    elif not session.quiet:
        talk.say(f"{len(deleted)} deleted" if doomed else "nothing to delete")
    return 0 if len(deleted) == len(doomed) else talk.WE_FAILED


def _deleted(sandbox: Sandbox) -> bool:
    try:
        sandbox.delete()
    except NotFound:
        return True
    except SkerryError as error:
        talk.say_error(error)
        return False
    return True
