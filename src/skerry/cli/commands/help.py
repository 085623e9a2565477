"""help: the help of a command, by its name."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, as `skerry COMMAND --help` does, or the list of commands."""
    at = ctx.find_root()
    for word in words:
        group = at.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{at.command_path!r} has no commands of its own", at)
        name, command, _ = group.resolve_command(at, [word])
        if command is not None:
            at = click.Context(command, info_name=name, parent=at)
    click.echo(at.get_help())
