"""config show: every setting, its value, and where that came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from skerry.cli import talk
from skerry.cli.session import json_option
from skerry.config import TABLE, Settings, load


@click.group("config")
def config() -> None:
    """The settings."""


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Show every setting: built-in < operator's file < project's skerry.toml < environment."""
    settings = load(project=Path.cwd())
    rows = [_row(settings, setting.name) for setting in TABLE]
    if as_json:
        talk.give_json({row["name"]: {"value": row["value"], "source": row["source"]} for row in rows})
        return
    talk.give_table(("SETTING", "VALUE", "FROM"), ((r["name"], _text(r["value"]), r["source"]) for r in rows))


def _row(settings: Settings, name: str) -> dict[str, Any]:
    resolved = settings.resolved(name)
    value = "(set)" if name == "token" and resolved.value else msgspec.to_builtins(resolved.value)
    source = f"{resolved.source} ({resolved.where})" if resolved.where else resolved.source
    return {"name": name, "value": value, "source": source}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "-"
    return (",".join(value) or "-") if isinstance(value, (tuple, list)) else str(value)
