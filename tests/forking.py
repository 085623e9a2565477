"""Commands and servers in processes of their own that need not load Skerry first: they are forked off a process that
has loaded it and does nothing else. That saves most of a command's time, and half a second of a server's start."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

_NUMBER = struct.Struct("i")


class Forked:
    """What of a Popen is needed."""

    def __init__(self, reply: socket.socket) -> None:
        self.returncode: int | None = None
        self._reply = reply
        (self.pid,) = _NUMBER.unpack(reply.recv(_NUMBER.size))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reply], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["skerry"], timeout or 0)
            (status,) = _NUMBER.unpack(self._reply.recv(_NUMBER.size))
            self.returncode = os.waitstatus_to_exitcode(status)
            self._reply.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Line:
    """To the process that forks. It ends with this one."""

    def __init__(self) -> None:
        self.control, other = socket.socketpair()
        self.decisive = _decisive(os.environ)
        with other:
            command = [sys.executable, "-P", __file__, str(other.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        self.mutex = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)


_line = functools.cache(_Line)


def _decisive(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter looks at only when it begins."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def can_fork(env: Mapping[str, str]) -> bool:
    return _decisive(env) == _line().decisive


def fork(
    words: Sequence[str], stdio: Sequence[int], env: Mapping[str, str], cwd: Path | None = None, session: bool = False
) -> Forked:
    """`skerry` with these words."""
    line = _line()
    order = json.dumps([words, dict(env), str(cwd or os.getcwd()), session]).encode()
    ours, reply = socket.socketpair()
    with reply, line.mutex:
        socket.send_fds(line.control, [_NUMBER.pack(len(order))], [*stdio, reply.fileno()])
        line.control.sendall(order)
    return Forked(ours)


def run(
    words: Sequence[str], stdin: bytes | None, env: Mapping[str, str], cwd: Path | None, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """As subprocess.run has it."""
    with ThreadPoolExecutor(3) as pool:
        taken, given = (os.open(os.devnull, os.O_RDONLY), None) if stdin is None else os.pipe()
        outputs = os.pipe(), os.pipe()
        theirs = [taken, *(end for _, end in outputs)]
        process = fork(words, theirs, env, cwd)
        for end in theirs:
            os.close(end)
        fed = pool.submit(_feed, given, stdin or b"")
        told = [pool.submit(_read, end) for end, _ in outputs]
        try:
            wait([fed, *told], timeout)
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(["skerry", *words], code, *(one.result(timeout) for one in told))


def _feed(pipe: int | None, data: bytes) -> None:
    if pipe is not None:
        with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as file:
            file.write(data)


def _read(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()


def _serve(control: socket.socket) -> None:
    """Forks as it is told to and tells how each has ended. Returns in a process that was forked."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(alive)
        if control.fileno() in ready:
            head, fds, _, _ = socket.recv_fds(control, _NUMBER.size, 4)
            if not head:
                os._exit(0)
            order = control.recv(_NUMBER.unpack(head)[0], socket.MSG_WAITALL)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (control, *alive.values()):
                    one.close()
                for end in (woken, wake, fds.pop()):
                    os.close(end)
                return _become(fds, *json.loads(order))
            for fd in fds[:3]:
                os.close(fd)
            alive[pid] = socket.socket(fileno=fds[3])
            alive[pid].send(_NUMBER.pack(pid))


def _tell_ends(alive: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            with alive.pop(ended[0]) as reply, contextlib.suppress(OSError):  # nobody may be waiting any more
                reply.send(_NUMBER.pack(ended[1]), socket.MSG_NOSIGNAL)


def _become(stdio: list[int], words: list[str], env: dict[str, str], cwd: str, session: bool) -> None:
    if session:
        os.setsid()
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    for fd in stdio:
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = words
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        new = open(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if number == 2:
            new.reconfigure(line_buffering=True)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _load() -> None:
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as the command line has it
    skerry = import_module("skerry")
    for module in walk_packages(skerry.__path__, "skerry."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[0] = str(Path(sys.modules["skerry"].__path__[0]) / "__main__.py")
    import_module("skerry.cli").main()
