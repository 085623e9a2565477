"""agent: run a coding agent in a sandbox with a copy of your repository, and review its changes."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli import output
from skerry.cli.commands.agent_image import build_image, ensure_image, installed_version, newest_version, report
from skerry.cli.commands.agent_run import run_headless
from skerry.cli.commands.agent_sandbox import (
    AgentRequest,
    default_name,
    git_identity,
    limits_of,
    network_of,
    repository_top,
)
from skerry.cli.context import CliContext, json_option, pass_cli
from skerry.cli.options.network import network_options, network_policy
from skerry.cli.options.project import project_from_options, project_options
from skerry.cli.options.sandbox import limit_options, limits_from_options, parse_pairs
from skerry.cli.options.secrets import secret_options, secrets_from_options
from skerry.client._sync.client import Client
from skerry.client.agents.credentials import find_value, variables_of
from skerry.client.agents.kits import BUILT_IN, VERSION, Kit, describe, load_directory, load_kit
from skerry.codecs.text import escape

START = "start"


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
    skerry agent claude-code -p 'fix the tests'    run one prompt; afterwards, review the changes
    skerry agent ls                                list the agents

    `skerry agent NAME` is short for `skerry agent start NAME`.
    """


kit_option = click.option(
    "--kit", "kit_directory", metavar="DIR", help="Use the Docker sandbox kit (version 3) in this directory."
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


@agent.command(START, context_settings={"ignore_unknown_options": False})
@kit_option
@kit_arg_option
@click.option("-m", "--model", metavar="MODEL", help="Use this model: the kit's argument `model`.")
@click.option("-p", "--prompt", required=True, metavar="PROMPT", help="Run this prompt, and print the answer.")
@repo_option
@click.option("--no-repo", is_flag=True, help="Start without a repository.")
@name_option
@click.option("--new", "fresh", is_flag=True, help="Start a new conversation in the sandbox.")
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
    prompt: str,
    fresh: bool,
    **given: Any,
) -> int:
    """Start AGENT on a copy of your repository, in a sandbox that stays. The next call continues the conversation.

    The first use installs the agent into an image. The agent's key is read from its variable on this machine and never
    enters the sandbox. After your later edits, the copy is refreshed first. At the end, the changes are listed.

    ARGUMENTS are those of the agent's own program.
    """
    with cli.client() as client:
        request = _request(cli, client, name_of_agent, given)
        report(cli, request.kit)
        return run_headless(cli, client, request, prompt, words, fresh=fresh)


def _request(cli: CliContext, client: Client, name: str | None, given: dict[str, Any]) -> AgentRequest:
    top = None if given.pop("no_repo") else repository_top(given["repo"])
    kit = _kit(client, name, given)
    project = project_from_options(given)
    arguments = {
        "network": network_of(kit, network_policy(given, project.settings)),
        "limits": limits_of(kit, limits_from_options(given, project.settings)),
        "secrets": secrets_from_options(given, project.settings),
        "env": parse_pairs(given["env"], "-e", inherit=True),
        "options": git_identity(top),
    }
    named = given["name"] or default_name(client, kit, top)
    return AgentRequest(kit, top, named, arguments, given["with_config"])


def _kit(client: Client, name: str | None, given: dict[str, Any]) -> Kit:
    """Return the kit of the options. The version is the last installed one, unless another is given."""
    args = parse_pairs(given["kit_args"], "--kit-arg")
    if given.get("model"):
        args["model"] = given["model"]
    if given["kit_directory"]:
        if name is not None:
            raise click.UsageError("give AGENT or --kit, not both; arguments of the agent come after --")
        return load_directory(given["kit_directory"], args)
    if name is None:
        raise click.UsageError("Missing argument 'AGENT'.")
    kit = load_kit(name, args)
    installed = installed_version(client, name) if VERSION not in args else None
    return load_kit(name, {**args, VERSION: installed}) if installed is not None else kit


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
