"""Images: the root file systems of sandboxes.

base      Skerry's own images: Debian or Ubuntu, from the archive that the host's apt uses, and layers on top
registry  pull an image from a registry: its manifest, its layers (blobs), one rename
archive   export an image as an archive that other tools read, and import one; unpack the layers of strangers safely

A name is loaded on first use, so that the unpacking child process does not load the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skerry.images.base.build import build_image, current
    from skerry.images.base.recipe import RECIPES, recipe_digest

__all__ = ["RECIPES", "build_image", "current", "recipe_digest"]


def __getattr__(name: str) -> Any:
    if name in ("build_image", "current"):
        from skerry.images.base import build

        return getattr(build, name)
    if name in ("RECIPES", "recipe_digest"):
        from skerry.images.base import recipe

        return getattr(recipe, name)
    raise AttributeError(name)
