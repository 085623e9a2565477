"""completion: the shell's own script, which asks us for names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class


def files_here(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell itself completes files."""
    return [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(skerry completion bash)"
    zsh:   eval "$(skerry completion zsh)"
    fish:  skerry completion fish | source
    """
    from skerry.cli.app import skerry

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(skerry, {}, "skerry", "_SKERRY_COMPLETE").source())
