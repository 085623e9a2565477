"""Images: where base file systems come from.

base      the image that everyone starts with: Debian or Ubuntu, whatever the host's own apt installs from
recipe    what it is made of, and how a record tells that it was made otherwise
sources   which archive that is, read from /etc/apt
pull      an image comes from a registry: its manifest, its layers (blobs), one rename
pack      an image goes out as an archive that other tools read
unpack    a layer's archive becomes a tree, whatever a stranger put into it

A name is loaded when it is first used: the child that unpacks shall not wait for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skerry.images.base import build_base
    from skerry.images.recipe import recipe_digest

__all__ = ["build_base", "recipe_digest"]


def __getattr__(name: str) -> Any:
    if name == "build_base":
        from skerry.images.base import build_base

        return build_base
    if name == "recipe_digest":
        from skerry.images.recipe import recipe_digest

        return recipe_digest
    raise AttributeError(name)
