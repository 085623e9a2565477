"""The programs that keep a context's memory: scripts that travel to a sandbox as text and need only its language there.

`python.py` and what it brings in when a run first needs it (`python_errors.py`, `python_rich.py`, …)
are not imported here: they run on Python 3.8 and newer, in a process of the sandbox's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from skerry.types import PICTURE_MOST, RESULTS_BYTES_MOST, RESULTS_MOST, TEXT_MOST


@dataclass(frozen=True)
class Kernel:
    """`argv` follows the language's own command; what it starts reads message K from descriptor 3 and executes the
    `script` in it."""

    name: str
    argv: tuple[str, ...]
    script: Callable[[], bytes]


# Moves the channel to 100, out of the code's way. The name `<skerry>` marks the frames that no traceback shows.
PYTHON_BOOT = (
    "import posix;posix.dup2(3,100,False);posix.close(3);f=open(100,'rb',closefd=False);n=int.from_bytes;"
    "b=f.read(n(f.read(5)[1:],'big'));exec(compile(b[11:11+n(b[7:11],'big')],'<skerry>','exec'),{'channel':f})"
)
PYTHON_PARTS = ("errors", "tasks", "rich", "figures", "charts", "magics")


def _source(name: str) -> str:
    return (resources.files(__name__) / name).read_text()


@cache
def _python() -> bytes:
    """The core, and the parts as texts that are compiled when they are needed."""
    parts = {part: _source(f"python_{part}.py") for part in PYTHON_PARTS}
    bounds = (TEXT_MOST, PICTURE_MOST, RESULTS_MOST, RESULTS_BYTES_MOST)
    return f"{_source('python.py')}\nstart(channel, {parts!r}, {bounds!r})\n".encode()


KERNELS = {"python": Kernel("python", ("-c", PYTHON_BOOT), _python)}
