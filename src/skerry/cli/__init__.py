"""The command line: each command parses, makes one call of the SDK, and renders. One file a noun.

stdout is data, stderr is talk. Exit codes: those of the command that ran inside (a signal: 128 + its number; a
time-out: 124); 2 when what was asked for can't be, 125 when a sandbox, server or host failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    # This process is ours alone: httpx does without its own command line, which would load rich and pygments (40 ms).
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    # httpcore looks for this module four times in each request of the async client, which takes a tenth of its time.
    if find_spec("sniffio") is None:
        sys.modules["sniffio"] = None  # type: ignore[assignment]

    from skerry.cli.app import run_and_exit

    run_and_exit()
