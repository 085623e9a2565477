"""The OCI spec of a sandbox: one pure function of a container config and the host's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from skerry.runtimes import adjust, bpf, seccomp
from skerry.runtimes.mount_view import BOOT_ID, KEEPER_DIR, ROOTS
from skerry.runtimes.runtime import RANGE_SIZE, ContainerConfig
from skerry.types import Limits

KEEPER: Final = "/run/skerry/bin/skerry-keeper"

# Needed by the sandbox's root for package managers and services; they apply only in its user namespace.
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
# Not the host's totals that programs need (/proc/stat, meminfo, vmstat, loadavg, cgroups), which all activity changes.
# crun holds an fd for each during the start, so that they count towards the smallest limit of open files.
MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/crypto",  # with the number of users of each algorithm
    "/proc/diskstats",
    "/proc/fs",  # the state of each file system of the host
    "/proc/interrupts",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sys/fs/quota",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/zoneinfo",
    "/sys/block",
    "/sys/class/bdi",
    "/sys/class/block",
    "/sys/dev/block",
    "/sys/devices/virtual/bdi",  # the host's mounted file systems
    "/sys/devices/virtual/block",  # the paths of files behind loop devices
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/btrfs",  # the disk use of each sandbox
    "/sys/fs/ext4",
    "/sys/fs/f2fs",
    "/sys/fs/selinux",
    "/sys/fs/xfs",
    "/sys/kernel/irq",
    "/sys/kernel/slab",
    "/sys/kernel/uevent_seqnum",
    "/sys/kernel/vmcoreinfo",
    "/sys/module",  # how many users each module has: file systems and rules of other sandboxes
)
READ_ONLY: Final = ("/proc/bus", "/proc/sys")
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_PTS: Final = "max=256"  # the host has 4096 in total
_NAMESPACES: Final = ("user", "mount", "pid", "ipc", "uts", "cgroup", "network")


@dataclass(frozen=True)
class HostFeatures:
    """Features of the host that the spec depends on."""

    machine: str  # from os.uname()
    open_files: int  # the server's hard limit; without CAP_SYS_RESOURCE it cannot be exceeded
    swap: Literal["limit", "swappiness", "none"]  # how swap is kept at 0: by a limit, on old v1 by swappiness
    oom_score_adj: int = 100  # above the server's own: if the host runs out of memory, sandboxes are killed first
    bpf: str | None = None  # the seccomp profile compiled for crun
    core: Literal[0, 1] = 1  # 1 also keeps the kernel from piping a core to a host handler, which it does at 0
    boot_id: bool = False  # the runtime can mount a file below /proc/sys: crun; runc refuses
    linger: bool = True  # the server's sockets can refuse fds, so a lingering socket is harmless
    apparmor: str | None = None  # the profile that is loaded for sandboxes
    disks: tuple[str, ...] = ()  # the buses of physical disks below /sys/devices, with the activity of each disk


def build(config: ContainerConfig, host: HostFeatures, user_namespace: str | None = None) -> dict[str, Any]:
    """Build the spec. user_namespace: the path of an existing one; None: the runtime creates one."""
    return {
        "ociVersion": "1.0.2",
        **({"annotations": {bpf.ANNOTATION: host.bpf}} if host.bpf else {}),
        "hostname": config.hostname,
        "root": {"path": str(ROOTS / config.id / "root"), "readonly": False},
        "process": _process(config, host),
        "mounts": _mounts(config, host),
        "linux": {
            "namespaces": _namespaces(user_namespace),
            "uidMappings": _mapping(config),
            "gidMappings": _mapping(config),
            "cgroupsPath": f"{config.cgroup_root}/{config.id}",
            "resources": _resources(config, host),
            "rootfsPropagation": "private",
            **({} if host.bpf else {"seccomp": seccomp.profile(host.machine, linger=host.linger)}),
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "maskedPaths": [*MASKED, *host.disks],
            "readonlyPaths": list(READ_ONLY),
        },
    }


def _namespaces(user: str | None) -> list[dict[str, str]]:
    return [{"type": kind, **({"path": user} if user and kind == "user" else {})} for kind in _NAMESPACES]


def open_files(limits: Limits, host: HostFeatures) -> int:
    return min(limits.open_files or host.open_files, host.open_files)


def _process(config: ContainerConfig, host: HostFeatures) -> dict[str, Any]:
    files = open_files(config.limits, host)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [KEEPER, "init"],
        "env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SKERRY_CGROUP_FD=4",
            "GOMAXPROCS=2",  # set from outside, so that a keeper on a host with many cores starts no extra threads
        ],
        "cwd": "/",
        "capabilities": {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "hard": files, "soft": files},
            {"type": "RLIMIT_CORE", "hard": host.core, "soft": host.core},
        ],
        "noNewPrivileges": True,
        **({"apparmorProfile": host.apparmor} if host.apparmor else {}),
        "oomScoreAdj": host.oom_score_adj,
    }


def _mapping(config: ContainerConfig) -> list[dict[str, int]]:
    return [{"containerID": 0, "hostID": config.uid_base, "size": RANGE_SIZE}]


def _mounts(config: ContainerConfig, host: HostFeatures) -> list[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    shm_size = f"size={adjust.shm_size_for(config.limits.memory_bytes)}"
    return [
        _mount("/proc", "proc", quiet),
        _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=64k", "nr_inodes=256"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", _PTS]),
        _mount("/dev/shm", "tmpfs", [*quiet, "mode=1777", shm_size]),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", quiet),
        _mount("/sys", "sysfs", [*quiet, "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", [*quiet, "relatime", "ro"]),
        _mount("/run/skerry", "tmpfs", [*quiet, "mode=755", "size=8m", "nr_inodes=256"]),
        _mount(KEEPER, "bind", ["bind", "ro", "nosuid", "nodev"], str(KEEPER_DIR / config.keeper.name)),
        # The host's would be the same in all sandboxes, and in each of them after a stop.
        *([_mount(_BOOT_ID, "bind", ["bind", "ro", *quiet], str(BOOT_ID))] if host.boot_id else []),
    ]


def _mount(target: str, kind: str, options: list[str], source: str | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": options}


def _resources(config: ContainerConfig, host: HostFeatures) -> dict[str, Any]:
    """No CPU quota: it would throttle the runtime's own start. It is set as soon as PID 1 runs."""
    memory: dict[str, int] = {"limit": config.limits.memory_bytes}
    if host.swap == "limit":
        memory["swap"] = config.limits.memory_bytes
    elif host.swap == "swappiness":
        memory["swappiness"] = 0
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "pids": {"limit": config.limits.pids},
    }
