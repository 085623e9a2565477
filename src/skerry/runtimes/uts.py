"""The host name of a running sandbox, changed from outside and with no help from inside."""

from __future__ import annotations

import os
import socket
import threading

from skerry import syscalls
from skerry.errors import SandboxUnavailable
from skerry.runtimes import processes
from skerry.runtimes.runtime import Init


def set_hostname(init: Init, name: str) -> None:
    """On a thread that ends with it: it never comes back from there, and does nothing else."""
    failed: list[OSError] = []

    def work(pidfd: int) -> None:
        try:
            syscalls.setns(pidfd, syscalls.CLONE_NEWUTS)
            socket.sethostname(name)
        except OSError as error:
            failed.append(error)

    pidfd = processes.pidfd(init)
    try:
        thread = threading.Thread(target=work, args=(pidfd,), name="skerry-uts")
        thread.start()
        thread.join()
    finally:
        os.close(pidfd)
    if failed:
        raise SandboxUnavailable(f"the sandbox can't be named: {failed[0]}") from failed[0]
