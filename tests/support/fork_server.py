"""Commands and servers in processes of their own that need not load Skerry first: they are forked off a process that
has loaded it and does nothing else. That saves most of a command's time, and half a second of a server's start."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import marshal
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

_NUMBER = struct.Struct("i")
CALLER = """
import _signal, _socket, array, marshal, os, sys
line = _socket.socket(_socket.AF_UNIX)
line.connect(DOOR)
order = marshal.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), False])
size = len(order).to_bytes(4, sys.byteorder)
line.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
while order:
    order = order[line.send(order):]
pid = int.from_bytes(line.recv(4), sys.byteorder)
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, lambda number, _: os.kill(pid, number))
for fd in range(3):
    os.close(fd)
status = int.from_bytes(line.recv(4), sys.byteorder)
if os.WIFSIGNALED(status):
    _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


class Forked:
    """The used part of Popen."""

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
            waiting = select.poll()  # the descriptor may be any number
            waiting.register(self._reply, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
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
    """To the process that forks. It ends with this one. `before`: the prefix of a command that leads into other
    namespaces, in which all its children run then."""

    def __init__(self, before: tuple[str, ...]) -> None:
        self.control, other = socket.socketpair()
        self.decisive = _decisive(os.environ)
        self.place = Path(tempfile.mkdtemp(prefix="skerry-test-fork-"))
        with other, socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.place / "door"))
            door.listen(100)
            ends = [other.fileno(), door.fileno()]
            command = [*before, sys.executable, "-P", __file__, *map(str, ends)]
            self.process = subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL)
        caller = self.place / "skerry"
        caller.write_text(f"#!{sys.executable} -IS\nDOOR = {str(self.place / 'door')!r}\n{CALLER}")
        caller.chmod(0o755)
        self.mutex = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)
        shutil.rmtree(self.place)


_line = functools.cache(_Line)


def bin_directory(before: tuple[str, ...] = ()) -> Path:
    """Where a `skerry` is for scripts: it has all of a command's files, passes signals on, and is no terminal's."""
    return _line(before).place


def _decisive(env: Mapping[str, str]) -> dict[str, str]:
    """Apply settings that an interpreter reads only at its start."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def can_fork(env: Mapping[str, str], before: tuple[str, ...] = ()) -> bool:
    return _decisive(env) == _line(before).decisive


def fork(
    words: Sequence[str],
    stdio: Sequence[int],
    env: Mapping[str, str],
    cwd: Path | None = None,
    session: bool = False,
    before: tuple[str, ...] = (),
) -> Forked:
    """`skerry` with these words."""
    line = _line(before)
    order = marshal.dumps([list(words), dict(env), str(cwd or os.getcwd()), session])
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


def _serve(control: socket.socket, door: socket.socket) -> None:
    """Fork on request and report each exit. Return in a forked process."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), door.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(alive)
        if control.fileno() in ready:
            order, fds = _order(control)
            if not fds:  # the tests have ended
                os._exit(0)
            reply = socket.socket(fileno=fds.pop())
        elif door.fileno() in ready:
            reply, _ = door.accept()
            order, fds = _order(reply)
        else:
            continue
        if not fds:  # the caller has left
            continue
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (control, door, reply, *alive.values()):
                one.close()
            for end in (woken, wake):
                os.close(end)
            return _become(fds, *marshal.loads(order))
        for fd in fds:
            os.close(fd)
        alive[pid] = reply
        with contextlib.suppress(OSError):
            reply.send(_NUMBER.pack(pid), socket.MSG_NOSIGNAL)


def _order(line: socket.socket) -> tuple[bytes, list[int]]:
    head, fds, _, _ = socket.recv_fds(line, _NUMBER.size, 4)
    return (line.recv(_NUMBER.unpack(head)[0], socket.MSG_WAITALL), fds) if head else (b"", [])


def _tell_ends(alive: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            with alive.pop(ended[0]) as reply, contextlib.suppress(OSError):  # the caller may have left
                reply.send(_NUMBER.pack(ended[1]), socket.MSG_NOSIGNAL)


def _become(stdio: list[int], words: list[str], env: dict[str, str], cwd: str, session: bool) -> None:
    if session:
        os.setsid()
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)
    for fd in stdio:
        os.close(fd)
    if session and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
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
    skerry = import_module("skerry")
    for module in walk_packages(skerry.__path__, "skerry."):
        adapter = module.name.startswith("skerry.integrations.")  # of a framework that need not be installed
        if not module.name.endswith("__main__") and not adapter:
            import_module(module.name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _load()
    _serve(*(socket.socket(fileno=int(end)) for end in sys.argv[1:]))
    sys.argv[0] = str(Path(sys.modules["skerry"].__path__[0]) / "__main__.py")
    import_module("skerry.cli").main()
