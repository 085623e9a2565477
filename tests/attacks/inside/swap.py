"""Exchange the names of pairs of files without end, so that two looks see two files."""

from __future__ import annotations

import ctypes
import sys

EXCHANGE = 2
HERE = -100
libc = ctypes.CDLL(None, use_errno=True)
names = [name.encode() for name in sys.argv[1:]]
pairs = list(zip(names[::2], names[1::2], strict=True))
print("begun", flush=True)  # noqa: T201
while True:
    for one, other in pairs:
        libc.renameat2(HERE, one, HERE, other, EXCHANGE)
