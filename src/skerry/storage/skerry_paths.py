"""Paths in a sandbox's tree that the sandbox did not make: the keeper's files and mount points."""

from __future__ import annotations

from typing import Final

SKERRY_PATHS: Final = (b"var/lib/skerry", b"run/skerry")
COVERED: Final = (b"proc/", b"sys/", b"dev/")  # content below these is never visible in a sandbox

# Directories that a sandbox needs and an image may lack; if empty, the sandbox did not make them either.
MOUNT_POINTS: Final = frozenset((b"proc", b"sys", b"dev", b"run", b"var", b"var/lib"))


def is_skerry_path(path: bytes) -> bool:
    """Return whether a path, relative to the root, is left out of changes and exports."""
    return path in SKERRY_PATHS or path.startswith(COVERED)
