"""This host's server: found by its socket, started in the background if this user is allowed to."""

from __future__ import annotations

import socket
import subprocess
import sys

from skerry.client.host.posix import effective_uid
from skerry.client.transport.address import Address
from skerry.errors import ServerUnreachable

START_TIMEOUT = 90.0


def listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def may_start(address: Address) -> bool:
    return address.own and effective_uid() == 0


def start(address: Address) -> None:
    """Start the server and return when it listens; raise an error with its output if it does not.

    `serve --background` exits once the server listens. -P: a skerry.py in the working directory must not become root's
    server.
    """
    command = [sys.executable, "-P", "-m", "skerry", "serve", "--background"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/",
            timeout=START_TIMEOUT, start_new_session=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnreachable(f"the server cannot be started: {error}", hint="`skerry serve` shows why") from error
    if done.returncode and not listening(address.socket or ""):
        said = done.stderr.decode("utf-8", "replace").strip()[-4000:].removeprefix("error: ")
        raise ServerUnreachable(
            f"the server cannot be started: {said or f'exit code {done.returncode}'}",
            hint=None if "hint:" in said else "`skerry doctor` shows what this host lacks",
        )
