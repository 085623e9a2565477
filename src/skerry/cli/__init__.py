"""The command line. A command parses its arguments, makes one call of the SDK and prints the result; one file per noun.

Data goes to stdout, messages to stderr. Exit codes: that of the command in the sandbox (128 + number after a signal,
124 after a timeout); 2 for an invalid request; 125 if a sandbox, the server or the host failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import _signal  # `signal` would import `enum` first
import os


def main() -> None:
    """`skerry`."""
    _end_at_ctrl_c()
    _check_system()
    from skerry.cli.app import run_and_exit

    run_and_exit()


def git_remote() -> None:
    """`git-remote-skerry`, which git starts."""
    _end_at_ctrl_c()
    _check_system()
    from skerry.cli.commands.git_remote import main as serve

    serve()


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
    KeyboardInterrupt in an import would print a traceback. An earlier Ctrl-C is out of reach: Python's own start takes
    some 10 ms, and then the script that pip writes for `skerry` may import `re` first. A script of our own would avoid
    that, but pip gives it no interpreter in a path with spaces."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _exit_interrupted)


def _exit_interrupted(*_: object) -> None:
    os._exit(130)
