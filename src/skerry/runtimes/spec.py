"""The OCI spec of a sandbox: one pure function from a wall and what the host has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from skerry.runtimes import bpf, seccomp, shm
from skerry.runtimes.runtime import RANGE, Wall
from skerry.types import Limits

KEEPER: Final = "/run/skerry/bin/skerry-keeper"

# What root inside needs for package managers and services of its own; all of them count in its user namespace alone.
CAPABILITIES: Final = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_SETFCAP",
    "CAP_NET_BIND_SERVICE",
)
MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/block",  # the files behind loop devices, by their paths
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
    "/sys/kernel/vmcoreinfo",
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")
_PTS: Final = "max=256"  # the host has 4096 for all
_NAMESPACES: Final = ("user", "mount", "pid", "ipc", "uts", "cgroup", "network")


@dataclass(frozen=True)
class Host:
    """What the spec has to know of the host."""

    machine: str  # as os.uname() says
    open_files: int  # the server's hard limit; without CAP_SYS_RESOURCE nothing can go above it
    swap: Literal["limit", "swappiness", "none"]  # how swap is kept at 0: by a limit, on old v1 by never wanting it
    oom_score_adj: int = 100  # above the server's own: when the host runs out of memory, sandboxes go first
    bpf: str | None = None  # the seccomp profile as crun's ready-made program
    core: Literal[0, 1] = 1  # 1 also keeps a core from a handler of the host, to which the kernel pipes it at 0
    linger: bool = True  # the server's own sockets can refuse fds, so a lingering one does it no harm


def build(wall: Wall, host: Host, user_namespace: str | None = None) -> dict[str, Any]:
    """user_namespace: the path of one made beforehand; None: the runtime makes one."""
    return {
        "ociVersion": "1.0.2",
        **({"annotations": {bpf.ANNOTATION: host.bpf}} if host.bpf else {}),
        "hostname": wall.hostname,
        "root": {"path": str(wall.run_dir / "m" / wall.id / "root"), "readonly": False},
        "process": _process(wall, host),
        "mounts": _mounts(wall),
        "linux": {
            "namespaces": _namespaces(user_namespace),
            "uidMappings": _mapping(wall),
            "gidMappings": _mapping(wall),
            "cgroupsPath": f"{wall.cgroup_root}/{wall.id}",
            "resources": _resources(wall, host),
            "rootfsPropagation": "private",
            **({} if host.bpf else {"seccomp": seccomp.profile(host.machine, linger=host.linger)}),
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
        },
    }


def _namespaces(user: str | None) -> list[dict[str, str]]:
    return [{"type": kind, **({"path": user} if user and kind == "user" else {})} for kind in _NAMESPACES]


def open_files(limits: Limits, host: Host) -> int:
    return min(limits.open_files or host.open_files, host.open_files)


def _process(wall: Wall, host: Host) -> dict[str, Any]:
    files = open_files(wall.limits, host)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [KEEPER, "init"],
        "env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SKERRY_CGROUP_FD=4",
            "GOMAXPROCS=2",  # said from outside, so that a host of many cores costs a keeper no threads at its start
        ],
        "cwd": "/",
        "capabilities": {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "hard": files, "soft": files},
            {"type": "RLIMIT_CORE", "hard": host.core, "soft": host.core},
        ],
        "noNewPrivileges": True,
        "oomScoreAdj": host.oom_score_adj,
    }


def _mapping(wall: Wall) -> list[dict[str, int]]:
    return [{"containerID": 0, "hostID": wall.uid_base, "size": RANGE}]


def _mounts(wall: Wall) -> list[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    shm_size = f"size={shm.size_for(wall.limits.memory_bytes)}"
    return [
        _mount("/proc", "proc", quiet),
        _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=64k", "nr_inodes=256"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", _PTS]),
        _mount("/dev/shm", "tmpfs", [*quiet, "mode=1777", shm_size]),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", quiet),
        _mount("/sys", "sysfs", [*quiet, "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", [*quiet, "relatime", "ro"]),
        _mount("/run/skerry", "tmpfs", [*quiet, "mode=755", "size=8m", "nr_inodes=256"]),
        _mount(KEEPER, "bind", ["bind", "ro", "nosuid", "nodev"], str(wall.keeper)),
    ]


def _mount(target: str, kind: str, options: list[str], source: str | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": options}


def _resources(wall: Wall, host: Host) -> dict[str, Any]:
    """No CPU quota: the runtime's own start would be throttled by it. It is set as soon as PID 1 runs."""
    memory: dict[str, int] = {"limit": wall.limits.memory_bytes}
    if host.swap == "limit":
        memory["swap"] = wall.limits.memory_bytes
    elif host.swap == "swappiness":
        memory["swappiness"] = 0
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "pids": {"limit": wall.limits.pids},
    }
