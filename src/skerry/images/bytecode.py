"""Python's compiled files of a tree, made to be checked by time stamp.

With SOURCE_DATE_EPOCH set, packages compile to files that carry a hash of their source, and every import then reads and
hashes that source. The tree's time stamps are as reproducible as its contents, so the quicker check will do.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_CHECKED_HASH = 0b11


def check_by_time(root: Path) -> None:
    """Call it when the sources have their final time stamps."""
    for folder, _, names in os.walk(root):
        if os.path.basename(folder) == "__pycache__":
            for name in names:
                if name.endswith(".pyc"):
                    _rewrite(Path(folder, name))


def _rewrite(compiled: Path) -> None:
    """Header: magic, flags, then either eight bytes of hash or four of time and four of size."""
    source = compiled.parent.parent / f"{compiled.name.partition('.')[0]}.py"
    with open(compiled, "r+b") as file:
        header = file.read(16)
        if len(header) < 16 or struct.unpack_from("<I", header, 4)[0] != _CHECKED_HASH or not source.is_file():
            return
        found = source.stat()
        file.seek(4)
        file.write(struct.pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF))
