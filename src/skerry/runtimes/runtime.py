"""What a runtime is: something that builds the wall around a sandbox, reaches its keeper, and takes the wall away."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.types import Isolation, Limits, Usage

RANGE = 65536  # ids in a sandbox's uid and gid range


@dataclass(frozen=True)
class Wall:
    """All that one sandbox's wall is built from. `layers` are top first; `unit` holds upper/ and work/."""

    id: str
    run_dir: Path
    cgroup_root: str
    layers: tuple[Path, ...]
    unit: Path
    uid_base: int
    limits: Limits
    hostname: str
    keeper: Path
    waive: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Init:
    """A sandbox's PID 1 as the host knows it. A pid alone is reused; with its start time and the boot it is not."""

    pid: int
    start_time: int
    boot_id: str


class Runtime(Protocol):
    """Nothing above this may assume a shared kernel or a host path into the sandbox."""

    name: str
    cgroup_root: str

    def version(self) -> str: ...

    async def start(self, wall: Wall) -> Init: ...

    async def connect(self, sandbox: str) -> socket.socket: ...

    def alive(self, init: Init) -> bool: ...

    def pidfd(self, init: Init) -> int: ...

    async def kill(self, sandbox: str, init: Init | None) -> None: ...

    async def clear(self, sandbox: str) -> None: ...

    def ids(self) -> set[str]: ...

    def set_limits(self, sandbox: str, init: Init, limits: Limits) -> None:
        """Of memory, with /dev/shm, of CPUs and of processes, from now on; also of a frozen one. Open files are the
        keeper's to set for each command: here it is only seen to that it can. Conflict if more is in use: then some of
        them may have been set."""

    def open_files(self, limits: Limits) -> int:
        """What this host can give of that wish."""

    def set_hostname(self, init: Init, name: str) -> None: ...

    def usage(self, sandbox: str) -> Usage: ...

    def oom_kills(self, sandbox: str) -> int | None: ...

    def freeze(self, sandbox: str) -> None: ...

    def thaw(self, sandbox: str) -> None: ...

    def isolation(self, wall: Wall) -> Isolation: ...

    def close(self) -> None:
        """Lets go of what this process holds for it. Sandboxes live on."""
