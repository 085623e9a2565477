"""The command line: each command parses, makes one call of the SDK, and renders. One file a noun.

stdout is data, stderr is talk. Exit codes: those of the command that ran inside (a signal: 128 + its number; a
time-out: 124); 2 when what was asked for can't be, 125 when a sandbox, server or host failed, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys


def main() -> None:
    # This process is ours alone: httpx does without its own command line, which would load rich and pygments (40 ms).
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

    from skerry.cli.app import run_and_exit

    run_and_exit()
