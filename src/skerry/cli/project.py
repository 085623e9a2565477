"""A project's setup: run once, kept, and started from until it changes or is too old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skerry.cli.session import Session
from skerry.cli.steps import ShownSteps
from skerry.config import PROJECT_FILE, Settings, load
from skerry.types import parse_span

_NOTICE = f"setup of this project ({PROJECT_FILE}); it is kept for the next sandbox, and --no-setup leaves it out"


def prepared(session: Session, wish: dict[str, Any], *, skip: bool, project: Path | None = None) -> dict[str, Any]:
    """The arguments of `Sandbox(...)`, with the image in which the project's setup has been run."""
    where = project or Path.cwd()
    settings = load(project=where)
    if skip or not settings["setup"]:
        return wish
    return {**wish, "image": _prepare(session, wish, settings, where)}


def _prepare(session: Session, wish: dict[str, Any], settings: Settings, where: Path) -> str:
    from skerry.client._sync.building import Builder
    from skerry.client._sync.sandbox import Sandbox
    from skerry.client.building.options import BuildOptions
    from skerry.client.building.setup import setup_recipe

    recipe = setup_recipe(wish["image"], settings["setup"], settings["setup_files"], str(where), wish["env"])
    shown = ShownSteps(_NOTICE)
    options = BuildOptions(
        network=wish.get("network"), secrets=wish["secrets"], limits=wish["limits"], env=wish["env"],
        options=replace(wish["options"], auto_snapshot=False), timeout=None, pull=False,
        on_unknown=wish.get("on_unknown"), most_age=parse_span(settings["setup_expires"], "setup_expires"),
        on_step=None if session.quiet else shown.step, on_output=None if session.quiet else shown.output,
    )  # fmt: skip
    with session.client() as client, shown:
        return Builder(client, Sandbox, options).build(recipe).id
