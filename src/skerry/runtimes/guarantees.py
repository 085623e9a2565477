"""What a wall guarantees, in words that `isolation` shows and `waive` takes."""

from __future__ import annotations

from typing import Final

from skerry.runtimes import spec
from skerry.runtimes.runtime import RANGE, Wall
from skerry.types import Isolation

ALWAYS: Final = (
    "user_namespace",
    "mount_namespace",
    "pid_namespace",
    "ipc_namespace",
    "uts_namespace",
    "cgroup_namespace",
    "network_namespace",
    "idmapped_root",
    "capabilities_dropped",
    "no_new_privileges",
    "seccomp",
    "masked_paths",
    "memory_limit",
    "cpu_limit",
    "pids_limit",
    "open_files_limit",
    "no_core_dumps",
)


def isolation(wall: Wall, host: spec.Host, runtime: str, version: str, cgroups: str) -> Isolation:
    """Nothing of this can be waived: a wall that lacks one of them is not built."""
    swap = {"limit": ("no_swap",), "none": ("no_swap",), "swappiness": ()}[host.swap]
    return Isolation(
        runtime=runtime,
        runtime_version=version,
        guarantees=(*ALWAYS, *swap),
        details={
            "cgroups": cgroups,
            "uid_range": [wall.uid_base, RANGE],
            "open_files": spec.open_files(wall, host),
            "capabilities": list(spec.CAPABILITIES),
        },
    )
