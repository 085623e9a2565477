"""A project's setup as a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skerry.client.building.steps import Copy, Local, Recipe, Run, Step, Where
from skerry.config import PROJECT_FILE


def setup_recipe(
    image: str, lines: Sequence[str], files: Sequence[str], directory: str, env: Mapping[str, str | None]
) -> Recipe:
    """Its files, then its lines, as the image's user and where commands run; the variables of its sandboxes count."""
    where = Where(PROJECT_FILE)
    steps: list[Step] = []
    if files:
        sources = tuple(Local(directory, path, contained=True) for path in files)
        title = f"setup_files {' '.join(files)}"
        steps.append(Copy(title=title, where=where, sources=sources, target="./", owner="", parents=True))
    steps += [Run(title=line, where=where, cmd=line) for line in lines]
    inputs = tuple(sorted((name, "unset" if value is None else f"={value}") for name, value in env.items()))
    return Recipe(image, tuple(steps), inputs=inputs)
