"""Start the server in the background: fork, and wait until it listens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from skerry.client.transport.local_server import listening
from skerry.config import Settings, socket_path
from skerry.errors import HostUnsupported, InvalidRequest, ServerUnreachable, SkerryError

READY = b"\0"
READY_TIMEOUT_S = 60.0
Serve = Callable[[Callable[[object], None]], None]


def log_path(settings: Settings) -> Path:
    return settings.state_dir / "server.log"


def start_in_background(settings: Settings, serve: Serve) -> bool:
    """Start a server and return when it listens; return False if a server listens already.

    `serve` is called in the new process."""
    require_root()
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"state_dir: {settings.state_dir}: {error.strerror}") from error
    place = str(socket_path(settings.state_dir))
    with _locked(
        settings.state_dir / "start.lock"
    ):  # of two concurrent callers, the second finds the server of the first
        if listening(place):
            return False
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _run_server(serve, write_end, log_path(settings))
        os.close(write_end)
        try:
            _await_ready(pid, read_end)
        finally:
            os.close(read_end)
    return True


def require_root() -> None:
    if os.geteuid() != 0:
        raise HostUnsupported(
            "the server needs root", hint="`sudo skerry setup` installs it as a service for other users"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run_server(serve: Serve, status: int, log: Path) -> NoReturn:
    """Run the server in the new process. Until it listens, its stderr goes to the process that started it."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)  # the command line's, closed below: uvloop would restore it, and fail
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(status, 2)
        os.closerange(3, 1 << 16)  # including the start lock: a lock lives as long as any copy of its descriptor
        serve(lambda _: _report_ready(log))
        code = 0
    except SkerryError as error:
        _write_error(f"error: {error}\n")
    except BaseException as error:
        _write_error(f"error: {type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _report_ready(log: Path) -> None:
    os.write(2, READY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.dup2(file, 2)
    os.close(file)


def _write_error(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "replace"))


def _await_ready(pid: int, status: int) -> None:
    received = b""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while READY not in received:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([status], [], [], left)[0]:
            os.kill(pid, signal.SIGTERM)
            raise ServerUnreachable(
                f"the server was not ready within {READY_TIMEOUT_S:.0f} s", hint="run `skerry serve`"
            )
        piece = os.read(status, 65536)
        if not piece:
            os.waitpid(pid, 0)
            raise _failure(received)
        received = (received + piece)[-65536:]


def _failure(received: bytes) -> ServerUnreachable:
    text = received.decode("utf-8", "replace").strip()
    message, _, hint = text.removeprefix("error: ").partition("\nhint: ")
    return ServerUnreachable(
        message or "the server exited without an error message", hint=hint or "run `skerry doctor`"
    )
