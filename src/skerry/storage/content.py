"""Whether two files hold the same, read by the parts that are really there."""

from __future__ import annotations

import os
from collections.abc import Callable

from skerry.storage.holes import next_data
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
        at = min(next_data(first, at, size), next_data(second, at, size))
        if at >= size:
            return True
        check()
        one, other = os.pread(first, _CHUNK, at), os.pread(second, _CHUNK, at)
        if one != other:
            return False
        if not one:
            return True
        at += len(one)
