"""The Nodes of this machine: its own, and the one that the base image brings."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

OLDEST, STRIPPING = (20,), (22, 13)


@cache
def nodes() -> dict[tuple[int, ...], str]:
    """By version; those that a kernel can be on."""
    found = [shutil.which("node"), *map(str, Path("/var/lib/skerry/layers").glob("*/tree/usr/local/bin/node"))]
    versions = {}
    for path in filter(None, found):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        version = tuple(int(part) for part in said.strip().lstrip("v").split(".") if part.isdigit())
        if version >= OLDEST:
            versions[version] = path
    return versions


def node(least: tuple[int, ...] = OLDEST) -> str:
    """The newest."""
    fit = [version for version in nodes() if version >= least]
    if not fit:
        pytest.skip(f"needs Node {'.'.join(map(str, least))} on the host, or the base image in /var/lib/skerry")
    return nodes()[max(fit)]
