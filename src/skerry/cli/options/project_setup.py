"""The image of a project: built from its Dockerfile, and with its setup. Both are cached until they change."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from skerry.cli.build_progress import BuildProgress
from skerry.cli.context import CliContext
from skerry.cli.project import Project, require_trust_for_snapshot
from skerry.client._sync.build import Builder, Image
from skerry.client._sync.sandbox import Sandbox
from skerry.client.build.options import BuildOptions
from skerry.client.build.steps import Recipe, setup_recipe
from skerry.config import PROJECT_FILE
from skerry.errors import InvalidRequest
from skerry.types import Network, parse_span

_NOTICE = f"running the setup of this project ({PROJECT_FILE}); the result is cached, --no-setup skips it"


def with_setup(cli: CliContext, arguments: dict[str, Any], project: Project) -> dict[str, Any]:
    """Return the arguments of `Sandbox(...)` with the image that the project's Dockerfile describes, and in which its
    setup has run."""
    image = arguments["image"]
    chosen = project.settings.resolved("image")
    of_project = chosen.source == "project's file" and chosen.value == image
    if of_project and not image.startswith("./"):
        _check_snapshots(cli, project, (image,))
    if image.startswith("./"):
        recipe = _dockerfile(project, image).recipe
        if of_project:
            _check_snapshots(cli, project, recipe.bases, dockerfile=True)
        arguments = {**arguments, "image": _build(cli, arguments, project, recipe, f"building {image[2:]}")}
    if not project.setup:
        return arguments
    files, directory = project.settings["setup_files"], str(project.directory)
    recipe = setup_recipe(arguments["image"], project.setup, files, directory, arguments["env"])
    return {**arguments, "image": _build(cli, arguments, project, recipe, _NOTICE)}


def _check_snapshots(cli: CliContext, project: Project, names: Iterable[str], *, dockerfile: bool = False) -> None:
    with cli.client() as client:
        require_trust_for_snapshot(client, project, names, dockerfile=dockerfile)


def _dockerfile(project: Project, image: str) -> Image:
    """Read the project's Dockerfile. A project is written by others: it must not read files of this host outside of its
    directory."""
    directory = os.path.realpath(project.directory)
    path = os.path.realpath(os.path.join(directory, image))
    if os.path.commonpath((directory, path)) != directory:
        raise InvalidRequest(f"image: {image[:200]!r} is outside of the project", hint="name a Dockerfile below it")
    return Image.dockerfile(path)


def _build(cli: CliContext, arguments: dict[str, Any], project: Project, recipe: Recipe, notice: str) -> str:
    settings = project.settings
    progress = BuildProgress(notice)
    setup = notice is _NOTICE
    most_age = parse_span(settings["setup_max_age"], "setup_max_age") if setup else None
    options = BuildOptions(
        network=_without_cassette(arguments.get("network")), secrets=arguments["secrets"], limits=arguments["limits"],
        env=arguments["env"],
        options=replace(arguments["options"], auto_snapshot=False), timeout=None, pull=not setup,
        on_unknown=arguments.get("on_unknown"), most_age=most_age,
        on_step=None if cli.quiet else progress.step, on_output=None if cli.quiet else progress.output,
    )  # fmt: skip
    with cli.client() as client, progress:
        return Builder(client, Sandbox, options).build(recipe).id


def _without_cassette(network: Network | None) -> Network | None:
    """Return the network of the setup, which is cached: it is not part of a recorded run."""
    return network if network is None or network.cassette is None else replace(network, cassette=None)
