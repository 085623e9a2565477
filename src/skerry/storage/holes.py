"""Where a file has data: a file of terabytes may be one great hole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def pieces(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of each piece of data, in order."""
    at = 0
    while (at := next_data(fd, at, size)) < size:
        end = min(_seek(fd, at, size, os.SEEK_HOLE), size)
        yield at, end - at
        at = end


def next_data(fd: int, at: int, size: int) -> int:
    """The first place with data from `at` on; `size` if there is none."""
    return _seek(fd, at, size, os.SEEK_DATA)


def _seek(fd: int, at: int, size: int, what: int) -> int:
    try:
        return os.lseek(fd, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size
