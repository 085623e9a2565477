"""languages: those that code can be run in, and which of them a sandbox has."""

from __future__ import annotations

import click

from skerry.cli import talk
from skerry.cli.session import SandboxName, Session, json_option, pass_session
from skerry.types import LanguageInfo


@click.command()
@json_option
@click.argument("sandbox", type=SandboxName(), required=False)
@pass_session
def languages(session: Session, sandbox: str | None, as_json: bool) -> None:
    """List the languages that code can be run in; with SANDBOX, the versions that are there.

    \b
    skerry run -l python --code 'print(6*7)'     in a sandbox of its own
    skerry run -l python@3.12 script.py          in one of the image that has this version
    """
    if sandbox is None:
        with session.client() as client:
            found = client.languages()
    else:
        found = session.sandbox(sandbox).code.languages()
    if as_json:
        talk.give_json(found)
    elif sandbox is None:
        talk.give_table(("LANGUAGE", "ALSO", "CONTEXTS", "VERSIONS", "RUN BY"), map(_row, found))
    else:
        talk.give_table(("LANGUAGE", "VERSION", "CONTEXTS", "RUN BY, OR WHAT BRINGS IT"), map(_row_inside, found))


def _row(language: LanguageInfo) -> tuple[str, ...]:
    contexts = "yes" if language.contexts else "-"
    return language.name, _words(language.aliases), contexts, _words(language.versions), language.how


def _row_inside(language: LanguageInfo) -> tuple[str, ...]:
    contexts = "yes" if language.contexts else "-"
    return language.name, language.version or "-", contexts, language.missing or language.how


def _words(words: tuple[str, ...] | dict[str, str]) -> str:
    return " ".join(words) or "-"
