"""--repo: the repository of a new sandbox."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skerry.cli import output
from skerry.cli.commands.files import report_skipped
from skerry.cli.context import CliContext
from skerry.cli.options.network import project_setting
from skerry.cli.project import Project
from skerry.client.host.progress import ProgressBar
from skerry.client.repository import remote
from skerry.client.repository.locate import find_repository
from skerry.client.repository.source import Repo
from skerry.errors import SkerryError

if TYPE_CHECKING:
    from skerry.client.repository.source import ImportResult
F = TypeVar("F", bound=Callable[..., Any])


include_home_option = click.option(
    "--include-home", is_flag=True, help="Copy a --repo that contains your home directory, with its keys and logins."
)


def repo_options(command: F) -> F:
    for option in (
        click.option("--include-ignored", is_flag=True, help="With --repo: also copy the files that git ignores."),
        include_home_option,
        click.option(
            "--repo", metavar="DIR|URL", help="Copy this repository to /workspace, including uncommitted work."
        ),
    ):
        command = option(command)
    return command


@contextmanager
def repo_from_options(
    cli: CliContext, given: dict[str, Any], project: Project, *, bar: bool = True
) -> Iterator[Repo | None]:
    """Return the repository of the options, with a progress bar during the copy."""
    source, ignored, home = given["repo"], given["include_ignored"], given["include_home"]
    if source is None:
        if ignored or home:
            raise click.UsageError(f"--include-{'ignored' if ignored else 'home'} needs --repo")
        yield None
        return
    exclude = project_setting(project.settings, "review.exclude") or ()
    repo = Repo(source, ignored=ignored, exclude=exclude, include_home=home)
    if not bar or cli.quiet or not sys.stderr.isatty():
        yield repo
        return
    with ProgressBar("copying", sys.stderr, transient=True) as shown:
        yield replace(repo, progress=shown.update)


def report_import(cli: CliContext, imported: ImportResult | None) -> None:
    if imported is None or imported.moved is None:
        return
    report_skipped(imported.moved)
    if cli.quiet:
        return
    if imported.part is not None:
        output.info(f"{imported.part} is part of the repository {imported.top}: copying the whole repository")
    count = imported.repositories - 1
    within = f", with {count} nested {'repository' if count == 1 else 'repositories'}" if count > 0 else ""
    files = "1 file" if imported.moved.files == 1 else f"{imported.moved.files:,} files"
    output.info(f"copied {imported.top} to /workspace: {files}{within}")


def add_remote(cli: CliContext, imported: ImportResult | None) -> None:
    """Add the git remote `skerry`, which fetches the sandboxes' history. A failure is only reported."""
    if imported is None or imported.top is None:
        return
    try:
        place = find_repository(imported.top)
        added = place.git_dir is not None and remote.add(place.git(), cli.server or remote.LOCAL)
    except SkerryError as error:
        output.info(f"failed to add the git remote skerry: {error.message}")
        return
    if added and not cli.quiet:
        output.info("added the git remote skerry: `git fetch skerry` fetches the history of sandboxes")
