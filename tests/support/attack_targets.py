"""Targets on the host for attackers: a file, a process, services, shared memory."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from skerry.config import run_dir
from support.server import Server

HELLO = b"hello from the host"
_libc = ctypes.CDLL(None, use_errno=True)
_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextmanager
def bait(server: Server) -> Iterator[dict[str, Any]]:
    """Yield the facts for the attacks; all targets exist and are open to every user of the host."""
    mark = f"mark-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        stack.enter_context(_crowd())
        yield {
            "mark": mark,
            "secret": stack.enter_context(_secret(mark)),
            "state_dir": str(server.state_dir),
            "run_dir": str(run_dir(server.state_dir)),
            "hostname": socket.gethostname(),
            "machine_id": _machine_id(),
            "victim": stack.enter_context(_victim(mark)),
            "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in _namespaces()},
            "host_processes": sum(name.isdigit() for name in os.listdir("/proc")),
            "shm_name": stack.enter_context(_shm_file(mark)),
            "shm_key": stack.enter_context(_shm_segment()),
            "root_major": os.major(os.stat("/").st_dev),
            "root_minor": os.minor(os.stat("/").st_dev),
            "first": [1],
            **stack.enter_context(_services(mark)),
        }


def _namespaces() -> list[str]:
    return ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"]


def _machine_id() -> str:
    path = Path("/etc/machine-id")
    return path.read_text().strip() if path.exists() else ""


@contextmanager
def _secret(mark: str) -> Iterator[str]:
    path = Path(f"/tmp/{mark}.txt")
    path.write_text(f"{mark}\n")
    path.chmod(0o644)
    yield str(path)
    path.unlink()


@contextmanager
def _victim(mark: str) -> Iterator[int]:
    """In a separate session, so that its group can be a target."""
    with subprocess.Popen(["tail", "-f", "/dev/null", "--", f"/dev/null/{mark}"], start_new_session=True,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        yield process.pid
        assert process.poll() is None, "the victim was killed"
        process.kill()


@contextmanager
def _crowd(size: int = 40) -> Iterator[None]:
    """A host may be a container with fewer processes than a sandbox has."""
    with ExitStack() as stack:
        for _ in range(size):
            process = stack.enter_context(subprocess.Popen(["tail", "-f", "/dev/null"]))
            stack.callback(process.kill)
        yield


@contextmanager
def _shm_file(mark: str) -> Iterator[str]:
    path = Path("/dev/shm") / mark
    path.write_text(mark)
    path.chmod(0o666)
    yield mark
    path.unlink()


@contextmanager
def _shm_segment() -> Iterator[int]:
    key = secrets.randbits(30)
    segment = _libc.shmget(key, 4096, _IPC_CREAT | 0o666)
    assert segment >= 0
    yield key
    _libc.shmctl(segment, _IPC_RMID, None)


@contextmanager
def _services(mark: str) -> Iterator[dict[str, Any]]:
    """On every address that this host has, by every way that a socket can be called."""
    tcp = socket.create_server(("0.0.0.0", 0))
    tcp6 = socket.create_server(("::1", 0), family=socket.AF_INET6)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", 0))
    path = f"/tmp/{mark}.sock"
    named, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
    named.bind(path)
    Path(path).chmod(0o777)
    abstract.bind(f"\0{mark}")
    for listener in (named, abstract):
        listener.listen(8)
    for service in (tcp, tcp6, named, abstract):
        threading.Thread(target=_greet, args=(service,), daemon=True).start()
    threading.Thread(target=_greet_by_datagram, args=(udp,), daemon=True).start()
    yield {
        "tcp": tcp.getsockname()[1],
        "tcp6": tcp6.getsockname()[1],
        "udp": udp.getsockname()[1],
        "path": path,
        "abstract": mark,
        "address": own_address(),
    }
    for service in (tcp, tcp6, udp, named, abstract):
        service.close()
    Path(path).unlink()


def own_address() -> str:
    """The address that this host would call others from; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def _greet(service: socket.socket) -> None:
    while True:
        try:
            caller, _ = service.accept()
        except OSError:
            return
        with caller:
            caller.sendall(HELLO)


def _greet_by_datagram(service: socket.socket) -> None:
    while True:
        try:
            _, caller = service.recvfrom(100)
            service.sendto(HELLO, caller)
        except OSError:
            return
