"""What is in a sandbox's tree and not of its making: the keeper's own files, and places that the wall mounts on."""

from __future__ import annotations

from typing import Final

OURS: Final = (b"var/lib/skerry", b"run/skerry")
COVERED: Final = (b"proc/", b"sys/", b"dev/")  # below these, nothing in the tree is ever seen inside

# Directories that an image may lack and a sandbox can't: with nothing in them they are not of its making either.
SCAFFOLD: Final = frozenset((b"proc", b"sys", b"dev", b"run", b"var", b"var/lib"))


def is_ours(path: bytes) -> bool:
    """Whether a path, relative to the root, is left out of what is told or given away."""
    return path in OURS or path.startswith(COVERED)
