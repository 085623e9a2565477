"""The runtime protocol: start an isolated container, connect to its keeper, and clear it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from skerry.runtimes.cgroups import FREEZE_TIMEOUT_S, Counters
from skerry.types import Isolation, Limits, Usage

RANGE_SIZE = 65536  # IDs in a sandbox's uid and gid range


@dataclass(frozen=True)
class BindMount:
    """A directory of the host at a place inside. It holds container IDs, as an upper does. `listed`: a directory of the
    operator, at a path without links. If that is writable, its owner is the sandbox's default user, and no other ID is
    mapped: so root inside cannot make files of the host's root."""

    source: Path
    target: str
    read_only: bool = False
    listed: bool = False
    tree: int | None = None


@dataclass(frozen=True)
class ContainerConfig:
    """The input for one sandbox's container. `layers`: top first; `upper_dir` holds upper/ and work/."""

    id: str
    run_dir: Path
    cgroup_root: str
    layers: tuple[Path, ...]
    upper_dir: Path
    uid_base: int
    limits: Limits
    hostname: str
    keeper: Path
    waive_guarantees: frozenset[str] = frozenset()
    mounts: tuple[BindMount, ...] = ()
    read_only_root: bool = False


@dataclass(frozen=True)
class Init:
    """A sandbox's PID 1 as the host identifies it. A pid alone can be reused; together with start time and boot it is
    unique."""

    pid: int
    start_time: int
    boot_id: str


class Runtime(Protocol):
    """Callers must not assume a shared kernel or a host path into the sandbox."""

    name: str
    cgroup_root: str

    def version(self) -> str: ...

    async def start(self, config: ContainerConfig) -> Init: ...

    async def connect(self, sandbox: str) -> socket.socket: ...

    def alive(self, init: Init) -> bool: ...

    def pidfd(self, init: Init) -> int: ...

    async def kill(self, sandbox: str, init: Init | None) -> None: ...

    async def clear(self, sandbox: str) -> Counters | None:
        """Remove every resource of a sandbox, and return its last counters, if it had any."""

    def ids(self) -> set[str]: ...

    def has_processes(self, sandbox: str) -> bool: ...

    def set_limits(self, sandbox: str, init: Init, limits: Limits) -> None:
        """Set the limits of memory (with /dev/shm), CPUs and processes; works on a frozen sandbox too. The keeper sets
        open files for each command: here only the possibility is checked. Raise Conflict if more is in use; some limits
        may be set then."""

    def open_files(self, limits: Limits) -> int:
        """Return the number of open files that this host can give."""

    def set_hostname(self, init: Init, name: str) -> None: ...

    def mount(self, init: Init, uid_base: int, mounts: Sequence[BindMount]) -> None:
        """Mount directories in a running sandbox, nosuid and nodev, before any command has run in it."""

    def add_process(self, sandbox: str, pid: int) -> None:
        """Move a process of the host into the sandbox's cgroup: it counts towards the limits, is frozen with the
        sandbox, and ends with it. Code inside cannot see it."""

    def seal_root(self, init: Init) -> None:
        """Make the root file system read-only, except for the writable places that `start` prepared, before any command
        has run in it. For a config with `read_only_root`."""

    def usage(self, sandbox: str) -> Usage: ...

    def counters(self, sandbox: str, *, brief: bool = False) -> Counters | None:
        """Return the counters of a running sandbox. `brief`: fewer reads, for a less exact memory."""

    def unwritten(self, sandbox: str) -> int | None:
        """Return the bytes of its files that wait to be written to the disk; None: unknown."""

    def oom_kills(self, sandbox: str) -> int | None: ...

    def fork_failures(self, sandbox: str) -> int | None: ...

    def freeze(self, sandbox: str, timeout_s: float = FREEZE_TIMEOUT_S) -> None: ...

    def thaw(self, sandbox: str) -> None: ...

    def isolation(self, config: ContainerConfig) -> Isolation: ...

    def close(self) -> None:
        """Release the resources of this process. Sandboxes keep running."""
