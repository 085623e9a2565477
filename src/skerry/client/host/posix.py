"""The part of POSIX that safe access to directories of this host needs. Windows has none of it: the SDK can be imported
and used there for remote servers, and a call that would need it raises HostUnsupported."""

from __future__ import annotations

import ctypes
import os
from functools import cache, reduce
from operator import or_
from typing import Final

from skerry.errors import HostUnsupported

_INVALID: Final = 1 << 62  # os.open raises OverflowError


def open_flags(*names: str) -> int:
    """Return flags for `os.open`. If this system lacks one of them, no open succeeds with the result: without
    O_NOFOLLOW a file would be opened, but possibly another one."""
    known = [getattr(os, name, None) for name in names]
    return reduce(or_, (flag if flag is not None else _INVALID for flag in known))


DIRECTORY: Final = open_flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
FILE: Final = open_flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")
NEW_FILE: Final = open_flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC")
# A FIFO must not block. Windows has neither FIFOs nor inheritance of descriptors.
NAMED_FILE: Final = os.O_RDONLY | reduce(
    or_, (getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))
)


def require_posix(what: str) -> None:
    """Raise HostUnsupported on a system without descriptors of directories."""
    if not hasattr(os, "O_DIRECTORY"):
        raise HostUnsupported(
            f"{what} is not supported on this system",
            hint="on Windows, use Skerry in WSL; commands, code and single files work without it",
        )


def open_root(path: str | os.PathLike[str], what: str) -> int:
    """Open a directory of this host, by its path; all further steps start from the descriptor."""
    require_posix(what)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@cache
def c_library() -> ctypes.CDLL:
    """Return the C library, which Windows cannot load in this way."""
    return ctypes.CDLL(None, use_errno=True)


def effective_uid() -> int:
    """Return the effective user ID; -1 on a system without user IDs."""
    return os.geteuid() if hasattr(os, "geteuid") else -1
