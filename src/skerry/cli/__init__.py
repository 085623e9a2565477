"""The command line. A command parses its arguments, makes one call of the SDK and prints the result; one file per noun.

Data goes to stdout, messages to stderr. Exit codes: that of the command in the sandbox (128 + number after a signal,
124 after a timeout); 2 for an invalid request; 125 if a sandbox, the server or the host failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import _signal  # `signal` would import `enum` first
import os
import sys


def main() -> None:
    """`skerry`."""
    _begin()
    from skerry.cli.app import run_and_exit

    run_and_exit()


def git_remote() -> None:
    """`git-remote-skerry`, which git starts."""
    _begin()
    from skerry.cli.commands.git_remote import main as serve

    serve()


def _begin() -> None:
    _check_system()
    _end_at_ctrl_c()
    sys.argv[0] = sys.argv[0].removesuffix("-cli")  # the launcher's path, which other programs can start


def _check_system() -> None:
    """Windows lacks the terminals, signals and directory descriptors that the commands use."""
    if os.name == "nt":
        os.write(2, _ON_WINDOWS)
        raise SystemExit(125)


_ON_WINDOWS = b"""error: the command line of Skerry does not support Windows
hint: use it in WSL; the Python SDK works here: skerry.Sandbox(server="https://host:7070"), with SKERRY_TOKEN
"""


def _end_at_ctrl_c() -> None:
    """Let Ctrl-C end the program at once until its command is loaded: there is nothing to clean up yet, and
    KeyboardInterrupt in an import would print a traceback. `bin/skerry` blocks SIGINT during Python's own start, which
    would print one too: an earlier Ctrl-C arrives here."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit_interrupted)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGINT])


def _exit_interrupted(*_: object) -> None:
    os._exit(130)
