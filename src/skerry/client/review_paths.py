"""Paths of a workspace, as they are asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from skerry.types import WORKSPACE


def relative(paths: str | Sequence[str]) -> tuple[str, ...]:
    """From the workspace on; those that begin with /workspace too."""
    listed = (paths,) if isinstance(paths, str) else tuple(paths)
    return tuple(
        path[len(WORKSPACE) + 1 :] or "." if f"{path}/".startswith(f"{WORKSPACE}/") else path for path in listed
    )
