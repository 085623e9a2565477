"""The guarantees of a container, by the names that `isolation` shows and `waive_guarantees` accepts."""

from __future__ import annotations

from typing import Final

from skerry.errors import HostUnsupported
from skerry.runtimes import spec
from skerry.runtimes.runtime import RANGE_SIZE, ContainerConfig
from skerry.runtimes.security_modules import SecurityModules
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


def missing(host: spec.HostFeatures) -> frozenset[str]:
    """Return the guarantees that this host cannot give. Without any of the others, a start fails."""
    return frozenset({"no_swap"} if host.swap == "swappiness" else ())


def check(config: ContainerConfig, host: spec.HostFeatures) -> None:
    """Fail if a guarantee is missing, unless the caller waived it by name."""
    if lacking := missing(host) - config.waive_guarantees:
        names = ", ".join(sorted(lacking))
        flags = " ".join(f"--waive-guarantee {name}" for name in sorted(lacking))
        raise HostUnsupported(
            f"this host cannot guarantee {names}",
            hint=f"boot with swapaccount=1 or cgroup v2; {flags} starts without it",
        )


def isolation(
    config: ContainerConfig,
    host: spec.HostFeatures,
    runtime: str,
    version: str,
    cgroups: str,
    modules: SecurityModules | None = None,
) -> Isolation:
    lacking = missing(host)
    return Isolation(
        runtime=runtime,
        runtime_version=version,
        guarantees=(
            *(name for name in GUARANTEES if name not in lacking),
            *(["apparmor_profile"] if host.apparmor else []),
            *(["read_only_root"] if config.read_only_root else []),
        ),
        waived=tuple(sorted(lacking & config.waive_guarantees)),
        details={
            "cgroups": cgroups,
            "uid_range": [config.uid_base, RANGE_SIZE],
            "open_files": spec.open_files(config.limits, host),
            "capabilities": list(spec.CAPABILITIES),
            **({"apparmor": modules.apparmor, "selinux": modules.selinux} if modules is not None else {}),
        },
    )
