"""The standard input of a run: the part of the Python kernel that is compiled when a run is first given something."""

from __future__ import annotations

import os
import sys


def give(data: bytes) -> None:
    """As descriptor 0: the code's children read it too."""
    fd = file_of(data)
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)


def file_of(data: bytes) -> int:
    """Open at its beginning, and nowhere to be found."""
    try:
        fd = os.memfd_create("stdin")
    except (AttributeError, OSError):
        import tempfile

        fd, path = tempfile.mkstemp()
        os.unlink(path)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
