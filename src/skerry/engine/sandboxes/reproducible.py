"""Fixed values for repeatable runs (`Options(reproducible=True)`): machine id, locale, time zone, hash seed and dates,
and on request the clock. The host name is fixed too (`SandboxRecord.hostname`)."""

from __future__ import annotations

import contextlib
from typing import Final

from skerry.engine.sandboxes import fixed_clock
from skerry.errors import FileError
from skerry.keeper import Keeper
from skerry.types import Options, parse_clock

MACHINE_ID: Final = "5ce44e5a9d0b4d6f8f1c2a7b3e60d914"
EPOCH: Final = 1767225600  # 2026-01-01T00:00:00Z
_CLOCK: Final = "/var/lib/skerry/clock.so"  # not in /run/skerry, from which nothing can be executed
_CONSTANTS: Final = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
_DATES: Final = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")  # a commit's hash covers both
VARIABLES: Final = frozenset((*_CONSTANTS, *_DATES, "SOURCE_DATE_EPOCH", "LD_PRELOAD"))


def environment(options: Options) -> dict[str, str]:
    """Return the variables of a reproducible sandbox. A caller's own have precedence."""
    if not options.reproducible:
        return {}
    moment = EPOCH if options.clock is None else parse_clock(options.clock)
    variables = {**_CONSTANTS, "SOURCE_DATE_EPOCH": str(moment), **dict.fromkeys(_DATES, f"{moment} +0000")}
    return variables if options.clock is None else {**variables, "LD_PRELOAD": _CLOCK}


async def write(keeper: Keeper, options: Options) -> None:
    """Write the machine id, and the library that stops the clock."""
    if options.clock is not None:
        library = fixed_clock.library(parse_clock(options.clock))
        await keeper.files.write(_CLOCK, library, mode=0o644, user="0", parents=True)
    if options.reproducible:
        with contextlib.suppress(FileError):  # an image without /etc
            await keeper.files.write("/etc/machine-id", f"{MACHINE_ID}\n".encode(), mode=0o444, user="0")
