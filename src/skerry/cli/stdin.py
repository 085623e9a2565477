"""What is given to us on stdin."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator


def given_stdin() -> Iterator[bytes] | None:
    """Our stdin, if it is not a person's terminal and not closed."""
    try:
        if os.isatty(0):
            return None
        os.fstat(0)
    except OSError:
        return None
    return pieces_of(0)


def pieces_of(descriptor: int) -> Iterator[bytes]:
    # No Python file object: one whose buffer a thread still holds when the interpreter leaves aborts the process.
    while True:
        select.select([descriptor], [], [])
        piece = os.read(descriptor, 64 << 10)
        if not piece:
            return
        yield piece
