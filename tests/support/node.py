"""The Nodes of this host: the installed one, and the one in the base image."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from skerry.config import load
from skerry.errors import NotFound
from skerry.storage import ImageStore, LayerStore

OLDEST, STRIPPING = (20,), (22, 13)


@cache
def nodes() -> dict[tuple[int, ...], str]:
    """By version; those that a kernel can be on."""
    found = [shutil.which("node"), *(str(path) for path in _of_base() if path.exists())]
    versions = {}
    for path in filter(None, found):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        version = tuple(int(part) for part in said.strip().lstrip("v").split(".") if part.isdigit())
        if version >= OLDEST:
            versions[version] = path
    return versions


def _of_base() -> list[Path]:
    """Only from local builds: other layers may hold files that users inside wrote."""
    state = load().state_dir
    layers = LayerStore(state / "layers")
    try:
        return [
            layers.path(digest) / "usr/local/bin/node"
            for digest in ImageStore(state / "images", layers).get("base").layers
        ]
    except (NotFound, OSError):
        return []


def node(least: tuple[int, ...] = OLDEST) -> str:
    """The newest."""
    fit = [version for version in nodes() if version >= least]
    if not fit:
        pytest.skip(f"needs Node {'.'.join(map(str, least))} on the host, or the base image")
    return nodes()[max(fit)]
