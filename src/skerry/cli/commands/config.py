"""config show: every setting with its value and source."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from skerry.cli import output
from skerry.cli.context import json_option
from skerry.cli.project import find_project_file, is_trusted, widened_settings
from skerry.config import TABLE, Settings, load


@click.group("config")
def config() -> None:
    """Show the settings."""


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Show every setting and its source: built-in < operator's file < project's skerry.toml < environment."""
    file = find_project_file()
    settings = load(project=file)
    widened = {} if file is None or is_trusted(file) else dict(widened_settings(file))
    untrusted = {"secrets" if name.startswith("secrets.") else name for name in widened}
    rows = [_row(settings, setting.name, setting.name in untrusted) for setting in TABLE]
    if as_json:
        output.json({row["name"]: {"value": row["value"], "source": row["source"]} for row in rows})
        return
    output.table(("SETTING", "VALUE", "FROM"), ((r["name"], _text(r["value"]), r["source"]) for r in rows))


def _row(settings: Settings, name: str, untrusted: bool) -> dict[str, Any]:
    resolved = settings.resolved(name)
    value = "(set)" if name == "token" and resolved.value else msgspec.to_builtins(resolved.value)
    source = f"{resolved.source} ({resolved.where})" if resolved.where else resolved.source
    if untrusted and resolved.source == "project's file":
        source += "; not trusted: see `skerry trust`"
    return {"name": name, "value": value, "source": source}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "-"
    return (",".join(value) or "-") if isinstance(value, (tuple, list)) else str(value)
