"""completion: the shell script that asks this program for names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from skerry.cli.app import skerry


def files_here(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete file names."""
    return [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(skerry completion bash)"
    zsh:   eval "$(skerry completion zsh)"
    fish:  skerry completion fish | source
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"completion is not supported for {shell}")
    click.echo(kind(skerry, {}, "skerry", "_SKERRY_COMPLETE").source())
