"""Options of a new sandbox, and the arguments that they form together with the project's settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from skerry.cli.context import ImageName
from skerry.cli.options.network import network_options, network_policy, project_setting
from skerry.cli.options.project import project_options
from skerry.cli.options.secrets import secret_options, secrets_from_options
from skerry.cli.project import Project
from skerry.config import Settings
from skerry.errors import InvalidRequest
from skerry.types import BUCKET_SCHEME, SIZES, Budget, Lifecycle, Limits, Options

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS = (
    click.option("--size", type=click.Choice(list(SIZES)), help="Use a predefined set of limits."),
    click.option("--cpus", type=float, metavar="N", help="Limit the CPUs, like 0.5 or 2."),
    click.option("--memory", metavar="SIZE", help="Limit the memory, like 512M or 2G."),
    click.option("--disk", metavar="SIZE", help="Limit the disk space, like 5G."),
    click.option("--pids", type=int, metavar="N", help="Limit the number of processes and threads."),
    click.option("--open-files", type=int, metavar="N", help="Limit the open files of each process."),
)
_LIFECYCLE = (
    click.option(
        "--idle-timeout", metavar="TIME", help="Apply --on-idle after this much idle time, like 15m, or never."
    ),
    click.option("--max-lifetime", metavar="TIME", help="End the sandbox after this time, like 24h, or never."),
    click.option(
        "--on-idle", type=click.Choice(["pause", "stop", "delete"]), help="Choose the action after the idle timeout."
    ),
    click.option(
        "--on-start", multiple=True, metavar="COMMAND", help="Start this shell line in the background at each start."
    ),
    click.option("--no-on-start", is_flag=True, help="Start no commands and wait for no condition."),
    click.option(
        "--ready",
        metavar="CONDITION",
        help="Wait at each start for this port, http://localhost:PORT/PATH, or a shell line that succeeds.",
    ),
    click.option("--ready-timeout", metavar="TIME", help="Wait at most this long for --ready. Default: 60s."),
)
budget_option = click.option(
    "--budget",
    metavar="AMOUNTS",
    help="Limit the usage, like cpu=1h,cost=5,network=1G,wall=8h,on_exceeded=stop. Default: pause at 100 %.",
)
_OPTIONS = (
    click.option(
        "--image",
        type=ImageName("image", "snapshot"),
        metavar="NAME",
        help="Start from this image or snapshot. Default: base.",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an environment variable. NAME alone copies your value.",
    ),
    click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Add a label to find the sandbox by."),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="NAME:PATH[:ro]",
        help="Mount a volume, or a directory that the operator lists as @NAME, at this path.",
    ),
    *_LIMITS,
    budget_option,
    click.option("--no-setup", is_flag=True, help="Skip the setup commands of the project's skerry.toml."),
    click.option(
        "--default-session", is_flag=True, help="Run commands in the session `default`, which keeps its directory."
    ),
    click.option("--runtime", metavar="NAME", help="Use this OCI runtime: crun or runc."),
    click.option("--no-sudo", is_flag=True, help="Disable sudo in the sandbox."),
    click.option(
        "--read-only-root",
        is_flag=True,
        help="Make all but /workspace, /tmp, the home directories and volumes read-only.",
    ),
    click.option(
        "--auto-snapshot", is_flag=True, help="Take a snapshot before each command, for `skerry rollback --steps`."
    ),
    click.option(
        "--reproducible",
        is_flag=True,
        help="Fix the host name, machine ID, locale, time zone, hash seed and dates, so that a run can be repeated.",
    ),
    click.option(
        "--clock", metavar="TIME", help="With --reproducible: stop the clock at this time, like 2026-01-01T00:00:00Z."
    ),
    click.option(
        "--waive-guarantee",
        multiple=True,
        metavar="GUARANTEE",
        help="Start without this guarantee if the host cannot give it.",
    ),
)


def sandbox_options(command: F) -> F:
    return _with(network_options(secret_options(project_options(command))), _OPTIONS)


def limit_options(command: F) -> F:
    return _with(command, _LIMITS)


def lifecycle_options(command: F) -> F:
    return _with(command, _LIFECYCLE)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def sandbox_arguments(given: dict[str, Any], project: Project) -> dict[str, Any]:
    """Remove the sandbox flags from `given` and return keyword arguments of `Sandbox(...)`.

    Flags override the environment, which overrides the project's skerry.toml. The server applies the operator's
    settings."""
    settings = project.settings
    network = network_policy(given, settings, project.directory)
    return {
        **({"network": network} if network is not None else {}),
        "secrets": secrets_from_options(given, settings),
        "image": given.pop("image") or project_setting(settings, "image") or "base",
        "env": {**(project_setting(settings, "env") or {}), **parse_pairs(given.pop("env"), "-e", inherit=True)},
        "labels": parse_pairs(given.pop("labels"), "--label"),
        "volumes": {**(project_setting(settings, "volumes") or {}), **parse_mounts(given.pop("volumes"))},
        "limits": limits_from_options(given, settings),
        "lifecycle": lifecycle_from_options(given, settings),
        "budget": budget_from_options(given),
        "options": Options(
            runtime=given.pop("runtime"),
            sudo=not given.pop("no_sudo"),
            read_only_root=given.pop("read_only_root"),
            auto_snapshot=given.pop("auto_snapshot"),
            default_session=given.pop("default_session"),
            reproducible=given.pop("reproducible"),
            clock=given.pop("clock"),
            waive_guarantees=tuple(given.pop("waive_guarantee")),
            git_name=project_setting(settings, "git.name"),
            git_email=project_setting(settings, "git.email"),
        ),
    }


def limits_from_options(given: dict[str, Any], settings: Settings | None = None) -> Limits:
    """Return the limits of the flags; limits without a flag come from the project's settings, if given."""
    size = given.pop("size")
    base = Limits.size(size) if size else None
    values: dict[str, Any] = {}
    for name in Limits.__struct_fields__:
        flag = given.pop(name, None)
        named = getattr(base, name) if base else None
        project = project_setting(settings, f"limits.{name}") if settings else None
        values[name] = next((value for value in (flag, named, project) if value is not None), None)
    return Limits(**values)


def lifecycle_from_options(given: dict[str, Any], settings: Settings | None = None) -> Lifecycle:
    return Lifecycle(
        idle_timeout=given.pop("idle_timeout", None)
        or (project_setting(settings, "lifecycle.idle_timeout") if settings else None),
        max_lifetime=given.pop("max_lifetime", None)
        or (project_setting(settings, "lifecycle.max_lifetime") if settings else None),
        on_idle=given.pop("on_idle", None),
        **_start_from_options(given, settings),
    )


def _start_from_options(given: dict[str, Any], settings: Settings | None) -> dict[str, Any]:
    """Return the `on_start` commands and the condition of the flags, or else of the project."""
    values: dict[str, Any] = {name: given.pop(name, None) for name in ("on_start", "ready", "ready_timeout")}
    if given.pop("no_on_start", False):
        if any(values.values()):
            raise click.UsageError("--no-on-start cannot be combined with --on-start, --ready or --ready-timeout")
        return {"on_start": (), "ready": ""}
    for name, value in values.items():
        if not value:
            values[name] = (project_setting(settings, name) or None) if settings else None
    return values


def budget_from_options(given: dict[str, Any]) -> Budget | None:
    text = given.pop("budget", None)
    return Budget.parse(text) if text is not None else None


def parse_mounts(words: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME:PATH[:ro] words into volumes by path. The URL of a bucket contains a colon too."""
    found: dict[str, str] = {}
    for word in words:
        read_only = ":ro" * word.endswith(":ro")
        scheme = BUCKET_SCHEME if word.startswith(BUCKET_SCHEME) else ""
        name, colon, path = word.removeprefix(scheme).removesuffix(":ro").partition(":")
        name = scheme + name
        if not (name and colon and path):
            raise InvalidRequest(f"--volume: {word!r} is not NAME:PATH", hint="like data:/data or data:/data:ro")
        if path in found:
            raise InvalidRequest(f"--volume: two volumes on {path}")
        found[path] = name + read_only
    return found


def parse_pairs(words: tuple[str, ...], flag: str, *, inherit: bool = False) -> dict[str, str]:
    """Parse NAME=VALUE words; with `inherit`, NAME alone takes the value of this environment."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not (equals or inherit):
            raise InvalidRequest(f"{flag}: {word!r} is not NAME=VALUE")
        if not equals:
            if name not in os.environ:
                raise InvalidRequest(f"{flag}: the variable {name} is not set", hint=f"{flag} {name}=value sets it")
            value = os.environ[name]
        found[name] = value
    return found
