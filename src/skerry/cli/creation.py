"""The options that describe a new sandbox, and the request that they make together with the project's settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from skerry.cli.policy import network_options, policy, wished
from skerry.cli.secrets import secret_options, secrets
from skerry.cli.session import ImageName
from skerry.config import Settings, load
from skerry.errors import InvalidRequest
from skerry.types import SIZES, Lifecycle, Limits, Options

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS = (
    click.option("--size", type=click.Choice(list(SIZES)), help="A named set of limits."),
    click.option("--cpus", type=float, metavar="N", help="CPUs, like 0.5 or 2."),
    click.option("--memory", metavar="SIZE", help="Memory, like 512M or 2G."),
    click.option("--disk", metavar="SIZE", help="Disk that it may fill."),
    click.option("--pids", type=int, metavar="N", help="Processes and threads."),
    click.option("--open-files", type=int, metavar="N", help="Open files of a process."),
)
_LIFECYCLE = (
    click.option("--idle", metavar="TIME", help="How long it may be idle, like 15m."),
    click.option("--life", metavar="TIME", help="How long it may run, like 24h."),
    click.option("--on-idle", type=click.Choice(["pause", "stop", "delete"]), help="What happens when it was idle."),
)
_OPTIONS = (
    click.option(
        "--image", type=ImageName("image", "snapshot"), metavar="NAME", help="The image; base if not said otherwise."
    ),
    click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable; NAME alone takes yours."),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label, to find it by."),
    *_LIMITS,
    click.option("--no-setup", is_flag=True, help="Without the setup commands of this directory's skerry.toml."),
    click.option("--runtime", metavar="NAME", help="Force crun or runc."),
    click.option("--no-sudo", is_flag=True, help="No sudo inside."),
    click.option(
        "--auto-snapshot", is_flag=True, help="A snapshot before each command, for `skerry rollback --steps`."
    ),
    click.option("--waive", multiple=True, metavar="GUARANTEE", help="Do without a guarantee that this host lacks."),
)


def creation_options(command: F) -> F:
    return _with(network_options(secret_options(command)), _OPTIONS)


def limit_options(command: F) -> F:
    return _with(command, _LIMITS)


def lifecycle_options(command: F) -> F:
    return _with(command, _LIFECYCLE)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def creation(given: dict[str, Any], *, project: Path | None = None) -> dict[str, Any]:
    """Keyword arguments of `Sandbox(...)`: flags over environment over the project's skerry.toml.

    Taken out of `given`; what the operator set is left to the server, which knows better."""
    settings = load(project=project or Path.cwd())
    network = policy(given, settings)
    return {
        **({"network": network} if network is not None else {}),
        "secrets": secrets(given, settings),
        "image": given.pop("image") or wished(settings, "image") or "base",
        "env": {**(wished(settings, "env") or {}), **pairs(given.pop("env"), "-e", inherit=True)},
        "labels": pairs(given.pop("labels"), "--label"),
        "limits": limits_of(given, settings),
        "lifecycle": lifecycle_of(given, settings),
        "options": Options(
            runtime=given.pop("runtime"),
            sudo=not given.pop("no_sudo"),
            auto_snapshot=given.pop("auto_snapshot"),
            waive=tuple(given.pop("waive")),
            git_name=wished(settings, "git.name"),
            git_email=wished(settings, "git.email"),
        ),
    }


def limits_of(given: dict[str, Any], settings: Settings | None = None) -> Limits:
    """As the flags say; what they don't say is the project's wish, if settings are given."""
    size = given.pop("size")
    base = Limits.size(size) if size else None
    values: dict[str, Any] = {}
    for name in Limits.__struct_fields__:
        flag = given.pop(name, None)
        named = getattr(base, name) if base else None
        project = wished(settings, f"limits.{name}") if settings else None
        values[name] = next((value for value in (flag, named, project) if value is not None), None)
    return Limits(**values)


def lifecycle_of(given: dict[str, Any], settings: Settings | None = None) -> Lifecycle:
    return Lifecycle(
        idle=given.pop("idle", None) or (wished(settings, "lifecycle.idle") if settings else None),
        life=given.pop("life", None) or (wished(settings, "lifecycle.life") if settings else None),
        on_idle=given.pop("on_idle", None),
    )


def pairs(words: tuple[str, ...], flag: str, *, inherit: bool = False) -> dict[str, str]:
    """NAME=VALUE words as a dictionary; with `inherit`, NAME alone takes the value from this environment."""
    import os

    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not (equals or inherit):
            raise InvalidRequest(f"{flag}: {word!r} is not NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise InvalidRequest(f"{flag}: {name} is not set here", hint=f"{flag} {name}=value sets it")
            value = os.environ[name]
        found[name] = value
    return found
