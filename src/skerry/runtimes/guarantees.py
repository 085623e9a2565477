"""What a wall guarantees, in words that `isolation` shows and `waive` takes."""

from __future__ import annotations

from typing import Final

from skerry.errors import HostUnsupported
from skerry.runtimes import spec
from skerry.runtimes.runtime import RANGE, Wall
from skerry.types import Isolation

GUARANTEES: Final = (
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
    "no_swap",
)


def missing(host: spec.Host) -> frozenset[str]:
    """What this host can't give. Everything else is there or the wall is not built."""
    return frozenset({"no_swap"} if host.swap == "swappiness" else ())


def check(wall: Wall, host: spec.Host) -> None:
    """Fails closed, unless the caller goes without by name."""
    if lacking := missing(host) - wall.waive:
        names = ", ".join(sorted(lacking))
        raise HostUnsupported(
            f"this host can't guarantee {names}",
            hint=f"boot with swapaccount=1 or cgroup v2; --waive {' --waive '.join(sorted(lacking))} goes without",
        )


def isolation(wall: Wall, host: spec.Host, runtime: str, version: str, cgroups: str) -> Isolation:
    lacking = missing(host)
    return Isolation(
        runtime=runtime,
        runtime_version=version,
        guarantees=tuple(name for name in GUARANTEES if name not in lacking),
        waived=tuple(sorted(lacking & wall.waive)),
        details={
            "cgroups": cgroups,
            "uid_range": [wall.uid_base, RANGE],
            "open_files": spec.open_files(wall.limits, host),
            "capabilities": list(spec.CAPABILITIES),
        },
    )
