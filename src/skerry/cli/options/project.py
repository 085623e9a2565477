"""--trust, --no-project and --no-setup: how a call uses the project's skerry.toml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from skerry.cli.project import Project, find_project_file, is_trusted, require_trust, widened_settings
from skerry.config import load

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--trust", is_flag=True, help="Use the project's skerry.toml for this call without asking."),
    click.option("--no-project", is_flag=True, help="Ignore the project's skerry.toml."),
)


def project_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def project_from_options(given: dict[str, Any]) -> Project:
    """Remove the project flags from `given`. Return the settings of a skerry.toml that is trusted or widens nothing."""
    trusted, ignored = given.pop("trust"), given.pop("no_project")
    skip_setup = given.pop("no_setup", False)
    if trusted and ignored:
        raise click.UsageError("--trust cannot be combined with --no-project")
    file = None if ignored else find_project_file()
    if file is not None and not trusted:
        require_trust(file, widened_settings(file))
    directory = Path.cwd() if file is None else file.path.parent
    untrusted = file if file is not None and not trusted and not is_trusted(file) else None
    return Project(load(project=file), directory, skip_setup, untrusted, trusted)
