"""The reference pages name every command, option and public name."""

from __future__ import annotations

import re
from pathlib import Path

import click

import skerry
from skerry.cli.app import skerry as group

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"


def walk(command: click.Command, *above: str) -> list[tuple[tuple[str, ...], click.Command]]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [(above, command), *(found for name, child in below for found in walk(child, *above, name))]


def test_cli_page_names_every_command_and_option() -> None:
    page = (REFERENCE / "cli.md").read_text()
    missing = []
    for path, command in walk(group):
        if not isinstance(command, click.Group) and not re.search(rf"\b{path[-1]}\b", page):
            missing.append(" ".join(path))
        missing += [
            f"{' '.join(path)} {option}"
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in (*parameter.opts, *parameter.secondary_opts)
            if f"{option}" not in page
        ]
    assert missing == []


def test_sdk_page_names_every_public_name() -> None:
    page = (REFERENCE / "sdk.md").read_text()
    assert [name for name in skerry.__all__ if not name.startswith("__") and name not in page] == []


def test_sdk_page_names_every_method() -> None:
    page = (REFERENCE / "sdk.md").read_text()
    sandbox = skerry.Sandbox()
    for thing in (
        skerry.Sandbox,
        skerry.Process,
        type(sandbox.files),
        type(sandbox.processes),
        type(sandbox.sessions),
        type(sandbox.git),
        type(sandbox.network),
        skerry.Session,
    ):
        assert [name for name in vars(thing) if not name.startswith("_") and name not in page] == []
