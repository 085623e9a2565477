"""Network options, and the policy that they form together with the project's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName
from skerry.client.handler_rules import parse_handlers
from skerry.client.host.cassette_file import read_cassette
from skerry.config import Settings
from skerry.errors import InvalidRequest
from skerry.types import Network

F = TypeVar("F", bound=Callable[..., Any])
MODES = ("none", "open", "learn", "ask")
PRESETS = ("pip", "npm", "apt", "git", "cargo", "go", "maven", "gem")
_LOOPBACK = re.compile(r"(?:\S+ )?(?:localhost|127\.[0-9.]+|\[?::1\]?)(?=[:/@]|$)", re.IGNORECASE)


class PresetName(click.ParamType[str]):
    """A preset; the shell completes the known ones."""

    name = "preset"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]


class Peer(click.ParamType[str]):
    """NAME=SANDBOX; the shell completes the sandbox."""

    name = "peer"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        name, equals, start = incomplete.partition("=")
        found = SandboxName().shell_complete(ctx, param, start) if equals else []
        return [click.shell_completion.CompletionItem(f"{name}={item.value}") for item in found]


preset_option = click.option(
    "--preset", "presets", multiple=True, type=PresetName(), metavar="NAME",
    help="Allow the hosts that a package manager uses on this machine: pip, npm, apt, git, cargo, go, maven or gem.",
)  # fmt: skip
handle_option = click.option(
    "--handle", "handlers", multiple=True, metavar="RULE",
    help='Change HTTP requests: "HOST set NAME: VALUE", "HOST remove NAME", "HOST response set NAME: VALUE", '
    '"HOST redirect OTHER" or "HOST answer [STATUS] FILE".',
)  # fmt: skip
_OPTIONS = (
    click.option(
        "--allow", multiple=True, metavar="RULE", help="Allow connections to a host, *.host, host:port or CIDR."
    ),
    click.option("--deny", multiple=True, metavar="RULE", help="Deny connections, even if another rule allows them."),
    preset_option,
    click.option(
        "--network", "mode", type=click.Choice(MODES),
        help="Set the default for hosts without a rule. none: deny all; open: allow all public hosts; "
        "learn: allow and record; ask: ask you.",
    ),
    click.option(
        "--peer", "peers", multiple=True, type=Peer(), metavar="NAME=SANDBOX",
        help="Make another sandbox reachable under this host name.",
    ),
    click.option(
        "--inspect", multiple=True, metavar="HOST",
        help="Decrypt TLS to this host so that rules see methods and paths.",
    ),
    handle_option,
    click.option(
        "--mirror", multiple=True, metavar="HOST",
        help="Write the HTTP exchanges with this host to the trace. Decrypts TLS to it.",
    ),
    click.option(
        "--record-network", is_flag=True,
        help="Record the HTTP exchanges, into the file of --cassette. Decrypts TLS to all hosts.",
    ),
    click.option(
        "--cassette", type=click.Path(), metavar="FILE",
        help="Serve the recorded exchanges of this file and close the network; with --record-network: write the file.",
    ),
)  # fmt: skip


def network_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def network_policy(given: dict[str, Any], settings: Settings, directory: Path | None = None) -> Network | None:
    """Remove the network flags, except the name of a cassette's file, from `given` and join them with the project's
    skerry.toml, in `directory`. Return None if neither sets a policy."""
    flags = {name: tuple(given.pop(name)) for name in ("allow", "deny", "presets", "inspect", "mirror")}
    handlers = parse_handlers(given.pop("handlers"), Path.cwd())
    warn_loopback(flags["allow"])
    peers, mode = _peers(given.pop("peers")), given.pop("mode")
    cassette: Any = "record" if given.pop("record_network") else "replay" if given["cassette"] else None
    if mode == "none":
        if peers or handlers or any(flags[name] for name in ("allow", "presets", "inspect", "mirror")):
            raise click.UsageError(
                "--network none cannot be combined with --allow, --preset, --peer, --inspect, --handle or --mirror"
            )
        return Network(deny=flags["deny"], cassette=cassette)
    project = {name: project_setting(settings, f"network.{name}") for name in ("allow", "deny", "presets", "mirror")}
    rules = project_setting(settings, "network.handlers")
    given_any = mode is not None or peers or handlers or any(flags.values()) or cassette is not None
    if not given_any and rules is None and all(value is None for value in project.values()):
        return None
    named = {handler.host for handler in handlers}
    theirs = parse_handlers(rules or (), directory or Path.cwd(), confined=True)
    handlers += tuple(handler for handler in theirs if handler.host not in named)
    joined: dict[str, Any] = {name: _joined(project.get(name) or (), words) for name, words in flags.items()}
    if mode == "open":
        joined["allow"] = _joined(("*",), joined["allow"])
    on_unknown: Any = mode if mode in ("learn", "ask") else "deny"
    return Network(peers=peers, on_unknown=on_unknown, cassette=cassette, handlers=handlers, **joined)


def cassette_of_run(given: dict[str, Any], network: Network | None) -> str | None:
    """Remove and return the file of the cassette, for a sandbox that is deleted afterwards."""
    cassette: str | None = given.pop("cassette")
    if cassette is None and network is not None and network.cassette == "record":
        raise click.UsageError("--record-network needs --cassette FILE: the sandbox is deleted afterwards")
    return cassette


def cassette_to_load(given: dict[str, Any], network: Network | None) -> bytes | None:
    """Remove the file of the cassette, for a sandbox that stays, and return its content."""
    cassette: str | None = given.pop("cassette")
    if cassette is None:
        return None
    if network is not None and network.cassette == "record":
        raise click.UsageError(
            "--cassette cannot be combined with --record-network here: `skerry network cassette` saves it"
        )
    return read_cassette(cassette)


def warn_loopback(rules: Iterable[str]) -> None:
    """Print a hint for a rule that allows localhost: in a sandbox, localhost is the sandbox, and no rule changes
    that."""
    cli = click.get_current_context().find_object(CliContext)
    for rule in rules:
        if _LOOPBACK.match(rule) and not (cli is not None and cli.quiet):
            output.info(
                f"hint: {rule}: in a sandbox, this is the sandbox itself. To reach a service of this machine, use"
                ' another address of it, or a name: "host.internal:5432@127.0.0.1", with that name in its /etc/hosts;'
                " max.network in the server's settings must name it too"
            )


def project_setting(settings: Settings, name: str) -> Any:
    """Return a setting of the project or the environment, else None: the server applies the operator's settings."""
    resolved = settings.resolved(name)
    return resolved.value if resolved.source in ("project's file", "environment") else None


def _joined(first: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *more)))


def _peers(words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, sandbox = word.partition("=")
        if not (name and equals and sandbox):
            raise InvalidRequest(f"--peer: {word!r} is not NAME=SANDBOX", hint="example: --peer db=my-database")
        if name in found:
            raise InvalidRequest(f"--peer: {name!r} is given twice")
        found[name] = sandbox
    return found
