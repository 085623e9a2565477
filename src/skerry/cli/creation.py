"""The options that describe a new sandbox, and the request that they make together with the project's settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from skerry.cli.policy import network_options, policy, wished
from skerry.cli.secrets import secret_options, secrets
from skerry.config import Settings, load
from skerry.errors import InvalidRequest
from skerry.types import SIZES, Lifecycle, Limits, Options

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--image", metavar="NAME", help="The image; base if not said otherwise."),
    click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable; NAME alone takes yours."),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label, to find it by."),
    click.option("--size", type=click.Choice(list(SIZES)), help="A named set of limits."),
    click.option("--cpus", type=float, metavar="N", help="CPUs, like 0.5 or 2."),
    click.option("--memory", metavar="SIZE", help="Memory, like 512M or 2G."),
    click.option("--disk", metavar="SIZE", help="Disk that it may fill."),
    click.option("--pids", type=int, metavar="N", help="Processes and threads."),
    click.option("--runtime", metavar="NAME", help="Force crun or runc."),
    click.option("--no-sudo", is_flag=True, help="No sudo inside."),
    click.option("--waive", multiple=True, metavar="GUARANTEE", help="Do without a guarantee that this host lacks."),
)


def creation_options(command: F) -> F:
    command = network_options(secret_options(command))
    for option in reversed(_OPTIONS):
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
        "limits": _limits(given, settings),
        "lifecycle": _lifecycle(given, settings),
        "options": Options(
            runtime=given.pop("runtime"),
            sudo=not given.pop("no_sudo"),
            waive=tuple(given.pop("waive")),
            git_name=wished(settings, "git.name"),
            git_email=wished(settings, "git.email"),
        ),
    }


def setup_lines() -> tuple[str, ...]:
    """The project's setup commands."""
    return tuple(load(project=Path.cwd())["setup"])


def _limits(given: dict[str, Any], settings: Settings) -> Limits:
    size = given.pop("size")
    base = Limits.size(size) if size else None
    values: dict[str, Any] = {}
    for name in Limits.__struct_fields__:
        flag = given.pop(name, None)
        named = getattr(base, name) if base else None
        values[name] = next((v for v in (flag, named, wished(settings, f"limits.{name}")) if v is not None), None)
    return Limits(**values)


def _lifecycle(given: dict[str, Any], settings: Settings) -> Lifecycle:
    return Lifecycle(
        idle=given.pop("idle", None) or wished(settings, "lifecycle.idle"),
        life=given.pop("life", None) or wished(settings, "lifecycle.life"),
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
