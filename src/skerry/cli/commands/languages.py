"""languages: list the languages for running code, and those of a sandbox."""

from __future__ import annotations

import click

from skerry.cli import output
from skerry.cli.context import CliContext, SandboxName, json_option, pass_cli
from skerry.types import LanguageInfo


@click.command()
@json_option
@click.argument("sandbox", type=SandboxName(), required=False)
@pass_cli
def languages(cli: CliContext, sandbox: str | None, as_json: bool) -> None:
    """List the languages for running code; with SANDBOX, list the installed versions.

    \b
    skerry run -l python --code 'print(6*7)'     run in a new sandbox
    skerry run -l python@3.12 script.py          run in an image that has this version
    """
    if sandbox is None:
        with cli.client() as client:
            found = client.languages()
    else:
        found = cli.sandbox(sandbox).code.languages()
    if as_json:
        output.json(found)
    elif sandbox is None:
        output.table(("LANGUAGE", "ALSO", "CONTEXTS", "VERSIONS", "RUN BY"), map(_row, found))
    else:
        output.table(("LANGUAGE", "VERSION", "CONTEXTS", "RUN BY, OR HOW TO INSTALL"), map(_row_inside, found))


def _row(language: LanguageInfo) -> tuple[str, ...]:
    contexts = "yes" if language.contexts else "-"
    return language.name, _words(language.aliases), contexts, _words(language.versions), language.how


def _row_inside(language: LanguageInfo) -> tuple[str, ...]:
    contexts = "yes" if language.contexts else "-"
    return language.name, language.version or "-", contexts, language.missing or language.how


def _words(words: tuple[str, ...] | dict[str, str]) -> str:
    return " ".join(words) or "-"
