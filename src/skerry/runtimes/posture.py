"""Check the isolation of PID 1 from the host after every start. A runtime that omitted something (or does not know an
annotation) is detected before anything of the image has run: fail closed."""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skerry.errors import SandboxUnavailable
from skerry.runtimes.adjust import WRITABLE
from skerry.runtimes.runtime import RANGE_SIZE, BindMount, ContainerConfig
from skerry.runtimes.security_modules import profile_of
from skerry.runtimes.spec import CAPABILITIES

_PAUSE_S: Final = 0.0005
_TRIES: Final = 10_000
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
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


async def check(config: ContainerConfig, pid: int, profile: str | None = None) -> None:
    """Retry, because the runtime may return before PID 1 has reached its execve, which closes the runtime's fds.
    `profile`: the AppArmor profile that it must have; crun omits it silently if it finds no AppArmor."""
    for _ in range(_TRIES):
        if not (missing := lacks(config, pid, profile)):
            return
        await asyncio.sleep(_PAUSE_S)
    raise SandboxUnavailable(f"{config.id}: the isolation is incomplete: {', '.join(missing)}")


def lacks(config: ContainerConfig, pid: int, profile: str | None = None) -> list[str]:
    status = _status(pid)
    expected = {
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Uid": " ".join([str(config.uid_base)] * 4),
        "CapInh": f"{0:016x}",
        "CapAmb": f"{0:016x}",
        **dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), f"{MASK:016x}"),
    }
    wrong = [f"{name} is {status.get(name)}" for name, value in expected.items() if status.get(name) != value]
    shared = [f"the host's {name} namespace" for name in _NAMESPACES if _namespace(pid, name) == _own(name)]
    maps = [name for name in ("uid_map", "gid_map") if _map(pid, name) != [0, config.uid_base, RANGE_SIZE]]
    other = [] if _runs(pid, config.keeper) else ["PID 1 is not the keeper"]
    if profile is not None and (found := profile_of(pid)) != profile:
        other.append(f"the AppArmor profile is {found}")
    return wrong + shared + maps + other


def check_mounts(pid: int, mounts: Sequence[BindMount]) -> None:
    """Check that each directory is the topmost mount at its place, with the IDs of the sandbox, nosuid and nodev, and
    read-only if it must be."""
    found = mounts_of(pid)
    for one in mounts:
        options = found.get(one.target, frozenset())
        needed = {"nosuid", "nodev", "ro" if one.read_only else "rw", *(["idmapped"] if one.tree is None else [])}
        if missing := needed - options:
            raise SandboxUnavailable(f"the mount on {one.target} is not {', '.join(sorted(missing))}")


def check_read_only(pid: int) -> None:
    """Check that the root is a read-only mount, and that each writable place is a mount without setuid programs and
    devices."""
    found = mounts_of(pid)
    if "ro" not in found.get("/", ()):
        raise SandboxUnavailable("the sandbox's root is not read-only")
    for place in WRITABLE:
        if missing := {"rw", "nosuid", "nodev"} - found.get(f"/{place}", frozenset()):
            raise SandboxUnavailable(f"the mount on /{place} is not {', '.join(sorted(missing))}")


def mounts_of(pid: int) -> dict[str, frozenset[str]]:
    """Return the options of each mount that a process sees, by its place; of several at one place, the topmost."""
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape")
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 exited during the start") from error
    rows = [line.split(" ") for line in text.splitlines()]
    return {_plain(row[4]): frozenset(row[5].split(",")) for row in rows}


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _status(pid: int) -> dict[str, str]:
    text = _read(pid, "status")
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: " ".join(value.split()) for name, value in pairs}


def _namespace(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 exited during the start") from error


def _runs(pid: int, program: Path) -> bool:
    """PID 1 has the binary from an overlay, with the inode's number and times but another device."""
    try:
        runs, wanted = os.stat(f"/proc/{pid}/exe"), os.stat(program)
    except OSError:
        return False
    return (runs.st_ino, runs.st_size, runs.st_mtime_ns) == (wanted.st_ino, wanted.st_size, wanted.st_mtime_ns)


@functools.cache
def _own(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")


def _map(pid: int, name: str) -> list[int]:
    return [int(word) for word in _read(pid, name).split()]


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read(1 << 16).decode()
    except OSError as error:
        raise SandboxUnavailable("the sandbox's PID 1 exited during the start") from error
