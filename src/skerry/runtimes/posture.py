"""What PID 1 really has, read from the host after every start. A runtime that left something out (or does not know an
annotation) is found out before anything of the image has run: fail closed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from skerry.errors import SandboxUnavailable
from skerry.runtimes.runtime import RANGE, Wall
from skerry.runtimes.spec import CAPABILITIES

_PAUSE_S: Final = 0.0005
_TRIES: Final = 10_000
_NAMESPACES: Final = ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net")
_BITS: Final = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SETFCAP": 31,
}
MASK: Final = sum(1 << _BITS[name] for name in CAPABILITIES)


async def check(wall: Wall, pid: int) -> None:
    """The runtime may answer before PID 1 has reached its execve, with which the runtime's own fds go."""
    for _ in range(_TRIES):
        if not (missing := lacks(wall, pid)):
            return
        await asyncio.sleep(_PAUSE_S)
    raise SandboxUnavailable(f"{wall.id}: the wall is incomplete: {', '.join(missing)}")


def lacks(wall: Wall, pid: int) -> list[str]:
    status = _status(pid)
    expected = {
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Uid": " ".join([str(wall.uid_base)] * 4),
        "CapInh": f"{0:016x}",
        "CapAmb": f"{0:016x}",
        **dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), f"{MASK:016x}"),
    }
    wrong = [f"{name} is {status.get(name)}" for name, value in expected.items() if status.get(name) != value]
    shared = [f"the host's {name} namespace" for name in _NAMESPACES if _namespace(pid, name) == _own(name)]
    maps = [name for name in ("uid_map", "gid_map") if _map(pid, name) != [0, wall.uid_base, RANGE]]
    other = [] if _runs(pid, wall.keeper) else ["PID 1 is not the keeper"]
    return wrong + shared + maps + other


def _status(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 ended while it started") from error
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: " ".join(value.split()) for name, value in pairs}


def _namespace(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 ended while it started") from error


def _runs(pid: int, program: Path) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/exe"), os.stat(program))
    except OSError:
        return False


def _own(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")


def _map(pid: int, name: str) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/{name}").read_text().split()]
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 ended while it started") from error
