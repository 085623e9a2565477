"""The options that say what may leave a sandbox, and the policy that they make together with the project's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from skerry.cli import talk
from skerry.cli.session import SandboxName, Session
from skerry.config import Settings
from skerry.errors import InvalidRequest
from skerry.types import Network

F = TypeVar("F", bound=Callable[..., Any])
MODES = ("none", "open", "learn", "ask")
PRESETS = ("pip", "npm", "apt", "git")
_LOOPBACK = re.compile(r"(?:\S+ )?(?:localhost|127\.[0-9.]+|\[?::1\]?)(?=[:/@]|$)", re.IGNORECASE)


class PresetName(click.ParamType[str]):
    """A preset; the shell completes those that there are."""

    name = "preset"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]


class Peer(click.ParamType[str]):
    """NAME=SANDBOX; the shell completes what stands after the equals sign."""

    name = "peer"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        name, equals, begun = incomplete.partition("=")
        found = SandboxName().shell_complete(ctx, param, begun) if equals else []
        return [click.shell_completion.CompletionItem(f"{name}={item.value}") for item in found]


preset_option = click.option(
    "--preset", "presets", multiple=True, type=PresetName(), metavar="NAME",
    help="What this machine's own pip, npm, apt or git is set up to reach.",
)  # fmt: skip
_OPTIONS = (
    click.option("--allow", multiple=True, metavar="RULE", help="What it may reach: host, *.host, host:port, CIDR."),
    click.option("--deny", multiple=True, metavar="RULE", help="What it may not reach, whatever else allows it."),
    preset_option,
    click.option(
        "--network", "mode", type=click.Choice(MODES),
        help="none: nothing, open: everything public, learn: that, and keep a record, ask: about what no rule names.",
    ),
    click.option(
        "--peer", "peers", multiple=True, type=Peer(), metavar="NAME=SANDBOX", help="Another sandbox, by a name inside."
    ),
    click.option("--inspect", multiple=True, metavar="HOST", help="Open its TLS, so that methods and paths are seen."),
)  # fmt: skip


def network_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def policy(given: dict[str, Any], settings: Settings) -> Network | None:
    """Flags beside the project's skerry.toml; None if neither says anything. Taken out of `given`."""
    flags = {name: tuple(given.pop(name)) for name in ("allow", "deny", "presets", "inspect")}
    tell_of_loopback(flags["allow"])
    peers, mode = _peers(given.pop("peers")), given.pop("mode")
    if mode == "none":
        if peers or flags["allow"] or flags["presets"] or flags["inspect"]:
            raise click.UsageError("--network none does not go with --allow, --preset, --peer or --inspect")
        return Network(deny=flags["deny"])
    wishes = {name: wished(settings, f"network.{name}") for name in ("allow", "deny", "presets")}
    if mode is None and not peers and not any(flags.values()) and all(wish is None for wish in wishes.values()):
        return None
    joined: dict[str, Any] = {name: _joined(wishes.get(name) or (), words) for name, words in flags.items()}
    if mode == "open":
        joined["allow"] = _joined(("*",), joined["allow"])
    on_unknown: Any = mode if mode in ("learn", "ask") else "deny"
    return Network(peers=peers, on_unknown=on_unknown, **joined)


def tell_of_loopback(rules: Iterable[str]) -> None:
    """Who allows localhost means this machine's; inside it is the sandbox's own, and no rule changes that."""
    session = click.get_current_context().find_object(Session)
    for rule in rules:
        if _LOOPBACK.match(rule) and not (session is not None and session.quiet):
            talk.say(
                f"hint: {rule}: inside, that is the sandbox itself. A service of this machine is reached by another"
                ' address of it, or by a name: "host.internal:5432@127.0.0.1", with that name in its /etc/hosts'
            )


def wished(settings: Settings, name: str) -> Any:
    """What the project or the environment says; what the operator says is left to the server, which knows better."""
    resolved = settings.resolved(name)
    return resolved.value if resolved.source in ("project's file", "environment") else None


def _joined(there: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*there, *more)))


def _peers(words: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, sandbox = word.partition("=")
        if not (name and equals and sandbox):
            raise InvalidRequest(f"--peer: {word!r} is not NAME=SANDBOX", hint="like --peer db=my-database")
        if name in found:
            raise InvalidRequest(f"--peer: {name!r} is given twice")
        found[name] = sandbox
    return found
