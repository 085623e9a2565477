"""What is in files, read by the parts that are really there: a file of terabytes may be one great hole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from skerry.storage.tree import Entry, open_file

_CHUNK = 1 << 20


def same_content(one: Entry, other: Entry, check: Callable[[], None]) -> bool:
    """Of two regular files of one size."""
    first = open_file(one)
    try:
        second = open_file(other)
        try:
            return _same(first, second, one.stat.st_size, check)
        finally:
            os.close(second)
    finally:
        os.close(first)


def _same(first: int, second: int, size: int, check: Callable[[], None]) -> bool:
    at = 0
    while True:
        at = min(_next(first, at, size, os.SEEK_DATA), _next(second, at, size, os.SEEK_DATA))
        if at >= size:
            return True
        check()
        one, other = os.pread(first, _CHUNK, at), os.pread(second, _CHUNK, at)
        if one != other:
            return False
        if not one:
            return True
        at += len(one)


def data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: (offset, length), in order."""
    at = 0
    while (at := _next(fd, at, size, os.SEEK_DATA)) < size:
        end = min(_next(fd, at, size, os.SEEK_HOLE), size)
        yield at, end - at
        at = end


def _next(fd: int, at: int, size: int, what: int) -> int:
    try:
        return os.lseek(fd, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size
