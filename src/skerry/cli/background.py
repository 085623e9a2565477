"""A server in the background: forked off, watched until it listens, then left alone."""

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

from skerry.client.local import listening
from skerry.config import Settings, socket_path
from skerry.errors import HostUnsupported, InvalidRequest, ServerUnreachable, SkerryError

READY = b"\0"
READY_WITHIN = 60.0
Serve = Callable[[Callable[[object], None]], None]


def log_path(settings: Settings) -> Path:
    return settings.state_dir / "server.log"


def start_in_background(settings: Settings, serve: Serve) -> bool:
    """Come back once a server listens; False if one did already. `serve` is called in the new process."""
    require_root()
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"state_dir: {settings.state_dir}: {error.strerror}") from error
    place = str(socket_path(settings.state_dir))
    with _alone(settings.state_dir / "start.lock"):  # two callers at once: the second finds the first one's server
        if listening(place):
            return False
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            _be_the_server(serve, write_end, log_path(settings))
        os.close(write_end)
        try:
            _await_ready(pid, read_end)
        finally:
            os.close(read_end)
    return True


def require_root() -> None:
    if os.geteuid() != 0:
        raise HostUnsupported("the server needs root", hint="`sudo skerry setup` makes it a service for other users")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _be_the_server(serve: Serve, told: int, log: Path) -> NoReturn:
    """The new process. Until it listens, what it says on stderr goes to whoever started it."""
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(told, 2)
        os.closerange(3, 1 << 16)  # the start lock too: a lock lives as long as any copy of its descriptor
        serve(lambda _: _tell_ready(log))
        code = 0
    except SkerryError as error:
        _last_words(f"error: {error}\n")
    except BaseException as error:
        _last_words(f"error: {type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def _tell_ready(log: Path) -> None:
    os.write(2, READY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.dup2(file, 2)
    os.close(file)


def _last_words(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "replace"))


def _await_ready(pid: int, told: int) -> None:
    said = b""
    deadline = time.monotonic() + READY_WITHIN
    while READY not in said:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([told], [], [], left)[0]:
            os.kill(pid, signal.SIGTERM)
            raise ServerUnreachable(f"the server was not ready within {READY_WITHIN:.0f} s", hint="`skerry serve`")
        piece = os.read(told, 65536)
        if not piece:
            os.waitpid(pid, 0)
            raise _failed(said)
        said = (said + piece)[-65536:]


def _failed(said: bytes) -> ServerUnreachable:
    text = said.decode("utf-8", "replace").strip()
    message, _, hint = text.removeprefix("error: ").partition("\nhint: ")
    return ServerUnreachable(message or "the server ended without a word", hint=hint or "`skerry doctor`")
