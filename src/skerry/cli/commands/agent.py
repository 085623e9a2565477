"""agent: run a coding agent in a sandbox with a copy of your repository, and review its changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from skerry.cli import output, terminal
from skerry.cli.commands.agent_acp import run_acp
from skerry.cli.commands.agent_attempts import MAX_ATTEMPTS, run_attempts
from skerry.cli.commands.agent_image import build_image, ensure_image, installed_version, newest_version, report
from skerry.cli.commands.agent_run import run_headless
from skerry.cli.commands.agent_sandbox import (
    LABEL,
    AgentRequest,
    LaterOptions,
    default_name,
    git_identity,
    limits_of,
    network_of,
    repository_top,
    resume_sign_in,
)
from skerry.cli.commands.agent_terminal import attach_terminal, find_attachable, run_in_terminal
from skerry.cli.commands.shell.commands import no_escape_option
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.cli.options.network import network_options, network_policy
from skerry.cli.options.project import project_from_options, project_options
from skerry.cli.options.repository import include_home_option
from skerry.cli.options.sandbox import limit_options, limits_from_options, parse_pairs
from skerry.cli.options.secrets import secret_options, secrets_from_options
from skerry.client._sync.client import Client
from skerry.client._sync.sandbox import Sandbox
from skerry.client.agents.credentials import find_value, variables_of
from skerry.client.agents.kits import BUILT_IN, VERSION, Kit, describe, load_directory, load_image, load_kit
from skerry.codecs.text import escape
from skerry.errors import NotFound
from skerry.types import Limits

START = "start"
# Options that are used when the sandbox is created.
ONLY_NEW = frozenset(
    ("model", "kit_args", "with_config", "include_home", "mode", "peers", "inspect", "record_network", "cassette")
)


class AgentGroup(click.Group):
    """`skerry agent NAME` is short for `skerry agent start NAME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [START, *args]
        return super().parse_args(ctx, args)


@click.group(cls=AgentGroup)
def agent() -> None:
    """Run a coding agent in a sandbox with a copy of your repository.

    \b
    skerry agent claude-code                       open the agent in this terminal; afterwards, review its changes
    skerry agent claude-code -p 'fix the tests'    run one prompt
    skerry agent ls                                list the agents

    `skerry agent NAME` is short for `skerry agent start NAME`.
    """


kit_option = click.option(
    "--kit", "kit_place", metavar="DIR|IMAGE", help="Use the Docker sandbox kit (version 3) in this directory or image."
)
kit_arg_option = click.option(
    "--kit-arg", "kit_args", multiple=True, metavar="NAME=VALUE", help="Set an argument of the agent's kit."
)
repo_option = click.option(
    "--repo", default=".", show_default=True, metavar="DIR", help="Copy this repository to /workspace."
)
name_option = click.option(
    "--name", metavar="NAME", help="Use the sandbox of this name. Default: one for the agent and the repository."
)
review_option = click.option(
    "--review/--no-review", default=None, help="Open the review at the end. Default: after the agent's terminal."
)


@agent.command(START, context_settings={"ignore_unknown_options": False})
@kit_option
@kit_arg_option
@click.option("-m", "--model", metavar="MODEL", help="Use this model: the kit's argument `model`.")
@click.option(
    "-p", "--prompt", metavar="PROMPT", help="Run this prompt, and print the answer. Default: open the agent here."
)
@click.option("--acp", is_flag=True, help="Speak the Agent Client Protocol on stdin and stdout, for an editor.")
@click.option(
    "--attempts", type=click.IntRange(2, MAX_ATTEMPTS), metavar="N",
    help="Run the prompt in N forks of the sandbox at once, and compare them.",
)  # fmt: skip
@click.option("--check", metavar="COMMAND", help="With --attempts: run this shell command on each of the results.")
@repo_option
@include_home_option
@click.option("--no-repo", is_flag=True, help="Start without a repository.")
@name_option
@click.option("--new", "fresh", is_flag=True, help="Start a new conversation in the sandbox.")
@review_option
@no_escape_option
@click.option(
    "--sign-in", is_flag=True,
    help="Sign in to the agent's service inside; the tokens stay outside, in your store. Then, no key is needed.",
)  # fmt: skip
@click.option("--with-config", is_flag=True, help="Copy your instructions and skills of the agent, but no login.")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set an environment variable.")
@limit_options
@network_options
@secret_options
@project_options
@click.argument("name_of_agent", metavar="[AGENT]", required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@pass_cli
def start(
    cli: CliContext,
    /,
    name_of_agent: str | None,
    words: tuple[str, ...],
    prompt: str | None,
    acp: bool,
    attempts: int | None,
    check: str | None,
    fresh: bool,
    review: bool | None,
    no_escape: bool,
    sign_in: bool,
    **given: Any,
) -> int:
    """Start AGENT on a copy of your repository, in a sandbox that stays. The next call continues the conversation.

    Without -p, the agent opens in this terminal. `~.` right after Enter detaches, `skerry agent attach` returns. At the
    end, the changes are listed and the review opens.

    The first use installs the agent into an image. The agent's key is read from its variable on this machine and never
    enters the sandbox. After your later edits, the copy is refreshed first.

    ARGUMENTS are those of the agent's own program.
    """
    if (attempts is not None and (prompt is None or given["no_repo"])) or (check is not None and attempts is None):
        raise click.UsageError("--attempts needs -p and a repository; --check needs --attempts")
    if acp and (prompt is not None or fresh or review is not None):
        raise click.UsageError("--acp cannot be combined with -p, --new or --review: the editor has the conversation")
    if prompt is None and not acp:
        terminal.require_terminal("skerry agent AGENT -p PROMPT")
    with cli.client() as client:
        request = replace(
            _request(client, name_of_agent, given), sign_in=sign_in, note=_note(later=prompt is None and not acp)
        )
        report(cli, request.kit)
        if acp:
            return run_acp(cli, client, request, words, given["repo"])
        if prompt is None:
            return run_in_terminal(cli, client, request, words, fresh=fresh, review=review, escape=not no_escape)
        if attempts is not None:
            return run_attempts(cli, client, request, prompt, words, count=attempts, check=check, fresh=fresh)
        return run_headless(cli, client, request, prompt, words, fresh=fresh, review=review)


def _note(*, later: bool) -> Callable[[str], None]:
    """Return what shows a message of the sign-in. `later`: at the end, when the agent does not use the terminal."""
    if not later:
        return output.info
    held: list[str] = []

    def show() -> None:
        for text in dict.fromkeys(held):
            output.info(text)

    click.get_current_context().call_on_close(show)
    return held.append


@agent.command()
@repo_option
@click.option("--no-repo", is_flag=True, help="Look for an agent without a repository.")
@name_option
@review_option
@no_escape_option
@click.argument("name_of_agent", metavar="[AGENT]", required=False)
@pass_cli
def attach(
    cli: CliContext,
    /,
    name_of_agent: str | None,
    repo: str,
    no_repo: bool,
    name: str | None,
    review: bool | None,
    no_escape: bool,
) -> int:
    """Return to the agent that runs in a terminal: the one of this repository, of AGENT, or in the sandbox --name."""
    terminal.require_terminal("skerry ps, skerry logs")
    with cli.client() as client:
        top = None if no_repo or name is not None else repository_top(repo)
        sandbox, process = find_attachable(client, top, name_of_agent, name)
        kit = _kit_of(sandbox)
        if kit is not None:
            resume_sign_in(sandbox, AgentRequest(kit, top, sandbox.name or "", {}, note=_note(later=True)))
        return attach_terminal(cli, sandbox, process, review=review, escape=not no_escape)


def _kit_of(sandbox: Sandbox) -> Kit | None:
    """Return the built-in kit of a sandbox. Others are not known here."""
    label = sandbox.labels.get(LABEL)
    return load_kit(label) if label in BUILT_IN else None


def _request(client: Client, name: str | None, given: dict[str, Any]) -> AgentRequest:
    changes = _later_options(given)
    top = None if given.pop("no_repo") else repository_top(given["repo"])
    kit = _kit(client, name, given)
    project = project_from_options(given)
    arguments = {
        "network": network_of(kit, network_policy(given, project.settings, project.directory)),
        "limits": limits_of(kit, limits_from_options(given, project.settings)),
        "secrets": secrets_from_options(given, project.settings),
        "env": parse_pairs(given["env"], "-e", inherit=True),
        "options": git_identity(top),
    }
    named = given["name"] or default_name(client, kit, top)
    return AgentRequest(kit, top, named, arguments, given["with_config"], changes, given["include_home"])


def _later_options(given: dict[str, Any]) -> LaterOptions:
    """Return the options that change an existing sandbox, and the flags that it ignores."""
    ctx = click.get_current_context()
    typed = {p.name for p in ctx.command.params if ctx.get_parameter_source(str(p.name)) is ParameterSource.COMMANDLINE}
    limits = limits_from_options(dict(given))
    flags = (p.opts[-1] for p in ctx.command.params if p.name in typed & ONLY_NEW)
    return LaterOptions(
        limits=limits if limits != Limits() else None, env=parse_pairs(given["env"], "-e", inherit=True),
        allow=given["allow"], deny=given["deny"], presets=given["presets"], ignored=tuple(flags),
    )  # fmt: skip


def _kit(client: Client, name: str | None, given: dict[str, Any]) -> Kit:
    """Return the kit of the options. The version is the last installed one, unless another is given."""
    args = parse_pairs(given["kit_args"], "--kit-arg")
    if given.get("model"):
        args["model"] = given["model"]
    if given["kit_place"]:
        if name is not None:
            raise click.UsageError("give AGENT or --kit, not both; arguments of the agent come after --")
        return _other_kit(client, given["kit_place"], args)
    if name is None:
        raise click.UsageError("Missing argument 'AGENT'.")
    kit = load_kit(name, args)
    installed = installed_version(client, name) if VERSION not in args else None
    return load_kit(name, {**args, VERSION: installed}) if installed is not None else kit


def _other_kit(client: Client, place: str, args: dict[str, str]) -> Kit:
    """Return the kit in a directory, or the one of an image, which is pulled if it is not here."""
    if os.path.isdir(place) or place.startswith((".", "/")):
        return load_directory(place, args)
    try:
        image = client.images.get(place)
    except NotFound:
        image = client.images.pull(place)
    return load_image(image, args)


@agent.command()
@json_option
@pass_cli
def ls(cli: CliContext, as_json: bool) -> None:
    """List the agents, their installed versions, and whether a key is set here."""
    with cli.client() as client:
        rows = [(kit, installed_version(client, kit.name)) for kit in map(load_kit, BUILT_IN)]
    if as_json:
        output.json([{**describe(kit), "installed": installed, "key": _has_key(kit)} for kit, installed in rows])
        return
    output.table(
        ("AGENT", "INSTALLED", "KEY", "DESCRIPTION"),
        [(kit.name, installed or "-", _has_key(kit) or "-", kit.descriptor.description) for kit, installed in rows],
    )


def _has_key(kit: Kit) -> str | None:
    """Return the variable of this machine that has the agent's key."""
    names = (name for one in kit.credentials for name in variables_of(kit, one) if find_value(one.service, (name,)))
    return next(names, None)


@agent.command()
@kit_option
@kit_arg_option
@json_option
@click.argument("name", metavar="[AGENT]", required=False)
@pass_cli
def show(cli: CliContext, /, name: str | None, as_json: bool, **given: Any) -> None:
    """Show AGENT: its version, its hosts, and the variables of its keys."""
    with cli.client() as client:
        kit = _kit(client, name, given)
    found = describe(kit)
    if as_json:
        output.json(found)
        return
    network = kit.network.runtime
    rows = [("agent", f"{found['title']}: {found['description']}"), ("image", kit.image)]
    rows += [("argument", f"{key}={value}") for key, value in kit.args.items()]
    rows += [("allow", ", ".join(network.allow)), ("deny", ", ".join(network.deny) or "-")]
    for one in found["credentials"]:
        needed = "required" if one["required"] else "optional"
        rows.append(("key", f"{one['variable']} to {', '.join(one['hosts'])} ({needed})"))
    rows += [("sign-in", f"{one['service']}, at {one['endpoint']}, for {', '.join(one['hosts'])}")
             for one in found["sign_in"]]  # fmt: skip
    rows.append(("sessions", _sessions(found)))
    rows += [("skipped", one) for one in kit.skipped]
    output.pairs(rows)


def _sessions(found: dict[str, Any]) -> str:
    known = {"headless": "prompt", "resumes": "continue", "acp": "acp"}
    return ", ".join([*(word for key, word in known.items() if found[key])])


@agent.command()
@click.option("--version", metavar="VERSION", help="Install this version. Default: the newest one.")
@click.argument("name", metavar="AGENT")
@pass_cli
def update(cli: CliContext, name: str, version: str | None) -> None:
    """Install the newest version of AGENT. Existing sandboxes keep theirs."""
    with cli.client() as client:
        kit = load_kit(name)
        kit = load_kit(name, {VERSION: version or newest_version(client, kit)})
        before = installed_version(client, name)
        image = build_image(cli, client, kit) if before != kit.version else ensure_image(cli, client, kit)
    click.echo(escape(image.ref))
