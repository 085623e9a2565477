"""`skerry serve` with a switch for the audit log and the metering of commands, so that both states can be measured in
turns, on one server and in one sandbox. The first byte of the file in the environment is the switch: a `Records`."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

from skerry.config import load, socket_path

SWITCH = "SKERRY_BENCH_SWITCH"
WAIT_S = 60.0


class Records(IntEnum):
    """States of the switch: commands with audit log and metering, without, and with `audit.sync = "all"`."""

    ON, OFF, SYNCED = range(3)


class NoAction:
    """An action without records."""

    seq = 0

    async def durable(self) -> None:
        return

    def end(self, *_: Any, **__: Any) -> None:
        return

    replace_result = end


@contextlib.contextmanager
def switched_server(place: Path) -> Iterator[Callable[[Records], None]]:
    """Run the server in place of the one on its state directory. Yield the switch."""
    subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True, capture_output=True)
    place.write_bytes(b"\0")
    with place.open("r+b") as file, mmap.mmap(file.fileno(), 1) as byte:
        command = [sys.executable, "-m", "bench.switched_server"]
        server = subprocess.Popen(
            command, env={**os.environ, SWITCH: str(place)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def switch(state: Records) -> None:
            byte[0] = state

        try:
            _await(socket_path(load().state_dir), server)
            yield switch
        finally:
            server.terminate()
            server.wait(WAIT_S)


def _await(path: Path, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server listens: a client would start another one."""
    for _ in range(int(WAIT_S / 0.05)):
        with socket.socket(socket.AF_UNIX) as line:
            if line.connect_ex(str(path)) == 0:
                return
        assert server.poll() is None, "the server ended"
        time.sleep(0.05)
    raise TimeoutError("the server does not listen")


def main() -> None:
    from skerry.engine.records.audit.service import AuditService
    from skerry.engine.records.usage.account import Account
    from skerry.server.http import audit
    from skerry.types import Usage

    file = open(os.environ[SWITCH], "r+b")  # noqa: SIM115 -- as long as the process
    byte, none = mmap.mmap(file.fileno(), 1), NoAction()

    def switchable(owner: Any, name: str, off: Callable[..., Any]) -> None:
        on = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: (off if byte[0] == Records.OFF else on)(*given, **named))

    begin = AuditService.begin

    def begin_synced(service: AuditService, *given: Any, **named: Any) -> Any:
        service._sync = "all" if byte[0] == Records.SYNCED else "boundary"
        return begin(service, *given, **named)

    AuditService.begin = begin_synced  # type: ignore[method-assign]
    switchable(audit, "begin", lambda *_: none)
    switchable(audit, "outcome", lambda *_: (None, None))
    switchable(AuditService, "event", lambda *_, **__: None)
    for name in ("begin", "end", "exited"):
        switchable(Account, name, lambda *_, **__: None)
    switchable(Account, "usage_of", lambda _, __, cpu_s, peak, ___: Usage(cpu_s=cpu_s, memory_peak=peak))
    sys.argv[1:] = ["serve"]
    from skerry.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
