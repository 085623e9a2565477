"""trust: allow the skerry.toml of this project to ask for more than the defaults."""

from __future__ import annotations

import click

from skerry.cli import output
from skerry.cli.context import CliContext, pass_cli
from skerry.cli.project import find_project_file, image_row, is_trusted, revoke, shown, widened_settings
from skerry.cli.project import trust as remember
from skerry.codecs.text import escape
from skerry.config import PROJECT_FILE
from skerry.errors import NotFound


@click.command()
@click.option("--revoke", "revoked", is_flag=True, help="Forget all trusted contents of this project's skerry.toml.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_cli
def trust(cli: CliContext, revoked: bool, yes: bool) -> int:
    """Show how this project's skerry.toml widens the network, secrets or limits, and trust it until it changes.

    The file is found in this directory or above it, up to the top of the repository. Trust is remembered for this
    content at this path. The exit code is 1 if you decline.
    """
    file = find_project_file()
    if file is None:
        raise NotFound(f"no {PROJECT_FILE} in this directory or above it")
    where = str(file.path)
    if revoked:
        text = f"{where}: no longer trusted" if revoke(file.path) else f"{where}: was not trusted"
    elif not (rows := widened_settings(file) or image_row(file)):
        text = f"{where}: widens nothing, so that no trust is needed"
    elif is_trusted(file):
        text = f"{where}: is trusted already"
    else:
        for line in shown(file, rows):
            output.info(line)
        if not output.confirm("Trust this file until it changes?", yes=yes):
            return 1
        remember(file)
        text = f"{where}: trusted until it changes"
    if not cli.quiet:
        output.info(escape(text))
    return 0
