"""The cgroups of one instance's sandboxes, `<root>/<id>`, in every hierarchy that the host has mounted.

v2: one tree at /sys/fs/cgroup. v1: a tree for each controller. hybrid: v1 with a v2 mount beside it that holds no
controller, but its `cgroup.kill` and `cgroup.freeze` work. Skerry mounts v2 on a host without a v2 mount.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path
from typing import Literal, NamedTuple

from skerry import linux
from skerry.errors import Conflict, HostUnsupported, SandboxUnavailable
from skerry.runtimes.hierarchies import OWN_V2, Hierarchies, Mode, mounted
from skerry.types import Limits, Usage, readable_size

NEEDED = ("cpu", "memory", "pids")
PERIOD_US = 100_000
FREEZE_TIMEOUT_S = 10.0
V1_OOM = "memory.oom_control"
_MAX_EVENTS = re.compile(rb"^max (\d+)$", re.MULTILINE)
_OOM_KILL = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_CPU_USAGE = re.compile(rb"^usage_usec (\d+)$", re.MULTILINE)
_CACHE = re.compile(rb"^inactive_file (\d+)$", re.MULTILINE)
_UNWRITTEN = re.compile(rb"^(?:total_dirty|total_writeback|file_dirty|file_writeback) (\d+)$", re.MULTILINE)
_V1_CACHE = re.compile(rb"^total_inactive_file (\d+)$", re.MULTILINE)
_DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
_MAX_SUBGROUPS = 2048  # sub-cgroups that the sandbox's root may make through the keeper's fd


class Counters(NamedTuple):
    """Counters of a sandbox since its start. `memory`: used now, without caches that can be freed."""

    cpu_s: float
    memory: int
    memory_peak: int


class Cgroups:
    """The sandboxes' cgroups under `root` (`/skerry/<instance>`)."""

    def __init__(self, root: str, hierarchies: Hierarchies | None = None) -> None:
        self.root = root.strip("/")
        self._found = hierarchies or mounted()
        self._places: dict[str, str] = {}  # by controller

    @property
    def mode(self) -> Mode:
        return self._found.mode

    @property
    def swap(self) -> Literal["limit", "swappiness", "none"]:
        """Return how swap can be kept at 0."""
        if self.mode == "v2":
            return "limit" if Path("/proc/swaps").exists() else "none"
        has_limit = (self._found.v1["memory"] / "memory.memsw.limit_in_bytes").exists()
        return "limit" if has_limit else "swappiness"

    def prepare(self) -> None:
        """Make the instance's directory and enable the controllers on the way. Fails closed."""
        if self._found.v2 is None:
            self._found = Hierarchies(self._found.v1, _mount_own())
            self._places.clear()
        missing = [name for name in NEEDED if name not in self._found.controllers]
        if missing:
            raise HostUnsupported(
                f"the cgroup controllers {', '.join(missing)} are missing",
                hint="boot with cgroup_enable=memory, or enable them in the host's cgroup.subtree_control",
            )
        base = self.v2_mount
        for part in ("", *self.root.split("/")):
            base = base / part if part else base
            with contextlib.suppress(FileExistsError):
                os.mkdir(base, 0o755)
            if self.mode == "v2":
                _enable(base)

    def create(self, sandbox: str, uid: int) -> int:
        """Make the v2 directory, give it to the sandbox's root, and return a detached fd of it: `..` ends there."""
        path = str(self.v2(sandbox))
        if not os.path.exists(os.path.dirname(path)):  # removed since: by `remove_root`, or by systemd's clean-up
            self.prepare()
        os.mkdir(path, 0o755)
        for name in _DELEGATED:
            os.chown(f"{path}/{name}", uid, uid)
        _write(f"{path}/cgroup.max.descendants", str(_MAX_SUBGROUPS))
        _write(f"{path}/cgroup.max.depth", "8")
        clone = linux.open_tree(path)
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=clone)
        finally:
            os.close(clone)

    def v2(self, sandbox: str) -> Path:
        return self.v2_mount / self.root / sandbox

    def paths(self, sandbox: str) -> list[Path]:
        """Return its directory in each hierarchy, existing or not."""
        points = dict.fromkeys(self._found.v1.values())
        return [self.v2(sandbox), *(point / self.root / sandbox for point in points)]

    def set_limits(self, sandbox: str, limits: Limits) -> None:
        self.set_cpu(sandbox, limits.cpus)
        self._set_memory(sandbox, limits.memory_bytes)
        self.set_socket_memory(sandbox, limits.memory_bytes)
        if limits.pids is not None:
            _write(self._file(sandbox, "pids", "pids.max"), str(limits.pids))

    def check_pids(self, sandbox: str, wanted: int | None) -> None:
        """The kernel accepts any number, and would then only block every fork."""
        used = self._number(sandbox, "pids", "pids.current") or 0
        if wanted is not None and used > wanted:
            raise Conflict(
                f"{sandbox} has {used} processes and threads, more than the new limit of {wanted}",
                hint="end some first, or give it a higher limit",
                details={"limit": "pids", "used": used},
            )

    def set_cpu(self, sandbox: str, cpus: float | None) -> None:
        if cpus is None:
            return
        quota = max(1000, round(cpus * PERIOD_US))
        if self.mode == "v2":
            _write(self._file(sandbox, "cpu", "cpu.max"), f"{quota} {PERIOD_US}")
        else:
            _write(self._file(sandbox, "cpu", "cpu.cfs_period_us"), str(PERIOD_US))
            _write(self._file(sandbox, "cpu", "cpu.cfs_quota_us"), str(quota))

    def set_socket_memory(self, sandbox: str, memory: int) -> None:
        """Limit the data in TCP and UDP sockets. v2 counts it as memory; v1 counts it apart, and only with a limit."""
        if self.mode != "v2":
            _write(self._file(sandbox, "memory", "memory.kmem.tcp.limit_in_bytes"), str(socket_memory_for(memory)))

    def _set_memory(self, sandbox: str, wanted: int) -> None:
        if self.mode == "v2":
            self._reclaim(sandbox, wanted)
            _write(self._file(sandbox, "memory", "memory.max"), str(wanted))
            return
        plain = self._file(sandbox, "memory", "memory.limit_in_bytes")
        both = self._file(sandbox, "memory", "memory.memsw.limit_in_bytes")
        files = [plain]
        if os.path.exists(both):  # memory+swap may never be below memory: the order depends on the direction
            growing = wanted > int(_read(both) or 0)
            files = [both, plain] if growing else [plain, both]
        for file in files:
            try:
                _write(file, str(wanted))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                raise self._too_little(sandbox, "memory.usage_in_bytes", wanted) from error

    def _reclaim(self, sandbox: str, wanted: int) -> None:
        """Free cached memory first. v1 rejects a limit below the memory that cannot be freed; v2 accepts it and
        kills."""
        used = self._number(sandbox, "memory", "memory.current") or 0
        if used <= wanted:
            return
        with contextlib.suppress(OSError):  # EAGAIN: not everything could be freed
            _write(self._file(sandbox, "memory", "memory.reclaim"), str(used - wanted))
        if (self._number(sandbox, "memory", "memory.current") or 0) > wanted:
            raise self._too_little(sandbox, "memory.current", wanted)

    def _too_little(self, sandbox: str, name: str, wanted: int) -> Conflict:
        used = self._number(sandbox, "memory", name) or 0
        taken = readable_size(used, up=True)
        return Conflict(
            f"{sandbox} uses {taken} of memory, more than the new limit of {readable_size(wanted)}",
            hint="end some processes first, or set a higher limit",
            details={"limit": "memory", "used": used},
        )

    def usage(self, sandbox: str) -> Usage:
        freeable = _fields(self._file(sandbox, "memory", "memory.stat"))
        if self.mode == "v2":
            micros = _fields(self._file(sandbox, "cpu", "cpu.stat")).get("usage_usec", 0)
            cpu, peak = micros / 1e6, self._number(sandbox, "memory", "memory.peak")
            memory, cache = self._number(sandbox, "memory", "memory.current"), freeable.get("inactive_file", 0)
        else:
            cpu = (self._number(sandbox, "cpuacct", "cpuacct.usage") or 0) / 1e9
            peak = self._number(sandbox, "memory", "memory.max_usage_in_bytes")
            memory = self._number(sandbox, "memory", "memory.usage_in_bytes")
            cache = freeable.get("total_inactive_file", 0)
        return Usage(
            cpu_s=cpu, memory_peak=peak, memory=None if memory is None else max(0, memory - cache),
            pids=self._number(sandbox, "pids", "pids.current"), pids_peak=self._number(sandbox, "pids", "pids.peak"),
        )  # fmt: skip

    def counters(self, sandbox: str, *, brief: bool = False) -> Counters | None:
        """Return the counters for metering, or None if it does not exist. Called again and again for every sandbox:
        read without the objects of pathlib and io. `brief`: two files instead of four, so the memory includes caches,
        and is the peak too."""
        v1 = self._found.v1 if self.mode != "v2" else {}
        name = f"{self.root}/{sandbox}"
        memory = f"{v1.get('memory', self.v2_mount)}/{name}/memory"
        try:
            if "cpuacct" in v1:
                cpu = int(_content(f"{v1['cpuacct']}/{name}/cpuacct.usage")) / 1e9
            else:  # a v2 cgroup counts it even without controllers
                found = _CPU_USAGE.search(_content(f"{self.v2_mount}/{name}/cpu.stat"))
                cpu = int(found[1]) / 1e6 if found is not None else 0.0
            used = int(_content(memory + (".usage_in_bytes" if v1 else ".current")))
            if brief:
                return Counters(cpu, used, used)
            cached = (_V1_CACHE if v1 else _CACHE).search(_content(f"{memory}.stat"))
            peak = _content(memory + (".max_usage_in_bytes" if v1 else ".peak"), missing=b"0")
        except (OSError, ValueError):
            return None
        freeable = int(cached[1]) if cached is not None else 0
        return Counters(cpu, max(used - freeable, 0), max(used, int(peak)))

    def unwritten(self, sandbox: str) -> int | None:
        """Return the bytes of files that wait to be written to the disk. The kernel's count is late by at most 64 pages
        for each processor."""
        try:
            found = _UNWRITTEN.findall(_content(self._file(sandbox, "memory", "memory.stat")))
        except OSError:
            return None
        return sum(map(int, found)) if found else None

    def oom_kills(self, sandbox: str) -> int | None:
        """Called twice for each command: read without the objects of pathlib and io."""
        name = "memory.events" if self.mode == "v2" else V1_OOM
        try:
            found = _OOM_KILL.search(_content(self._file(sandbox, "memory", name)))
        except OSError:
            return None
        return int(found[1]) if found is not None else None

    def fork_failures(self, sandbox: str) -> int | None:
        """Return how often a process or thread could not start because of the limit. A kernel before 6.11 with pure
        cgroup v2 counts them in the cgroup of the command, which is gone after it."""
        try:
            found = _MAX_EVENTS.search(_content(self._file(sandbox, "pids", "pids.events")))
        except OSError:
            return None
        return int(found[1]) if found is not None else None

    def freeze(self, sandbox: str, timeout_s: float = FREEZE_TIMEOUT_S) -> None:
        self._freeze(sandbox, timeout_s, frozen=True)

    def thaw(self, sandbox: str) -> None:
        self._freeze(sandbox, FREEZE_TIMEOUT_S, frozen=False)

    def _freeze(self, sandbox: str, timeout_s: float, *, frozen: bool) -> None:
        try:
            _write(self._v2_file(sandbox, "cgroup.freeze"), "1" if frozen else "0")
        except FileNotFoundError:
            raise SandboxUnavailable(f"{sandbox} is not running") from None
        end = time.monotonic() + timeout_s
        while (_fields(self._v2_file(sandbox, "cgroup.events")).get("frozen") == 1) is not frozen:
            if time.monotonic() > end:
                action = "frozen" if frozen else "thawed"
                raise SandboxUnavailable(f"{sandbox} could not be {action} within {timeout_s:g} s")
            time.sleep(0.0005)

    def add(self, sandbox: str, pid: int) -> None:
        for path in self.paths(sandbox):
            _write(path / "cgroup.procs", str(pid))

    def kill(self, sandbox: str) -> None:
        """Send SIGKILL to everything in it at once, frozen or not. Forks cannot escape it."""
        with contextlib.suppress(FileNotFoundError):
            _write(self._v2_file(sandbox, "cgroup.kill"), "1")

    def populated(self, sandbox: str) -> bool:
        """Return whether a process is in its v2 cgroup or below: one file, where `strays` reads one per hierarchy."""
        try:
            return b"populated 1" in _content(self._v2_file(sandbox, "cgroup.events"))
        except OSError:  # it is gone
            return False

    def strays(self, sandbox: str) -> set[int]:
        """Return every process still in it, in any hierarchy (v1 shows processes that never entered v2)."""
        points = dict.fromkeys((self.v2_mount, *self._found.v1.values()))
        return {pid for point in points for pid in _processes(f"{point}/{self.root}/{sandbox}")}

    def destroy(self, sandbox: str) -> None:
        """Idempotent. An emptied cgroup stays busy until its last process has been reaped."""
        for path in self.paths(sandbox):
            _remove(path)

    def ids(self) -> set[str]:
        found: set[str] = set()
        for path in self.paths("."):
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)}
        return found

    def remove_root(self) -> None:
        """Remove the instance's directories if they are empty."""
        for path in self.paths("."):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    @property
    def v2_mount(self) -> Path:
        if self._found.v2 is None:
            raise HostUnsupported("no cgroup2 file system is mounted", hint="mount -t cgroup2 none /run/skerry/cgroup2")
        return self._found.v2

    def _file(self, sandbox: str, controller: str, name: str) -> str:
        """Return the path of a file. Each command and create needs several: without the objects of pathlib."""
        place = self._places.get(controller)
        if place is None:
            point = self.v2_mount if self.mode == "v2" else self._found.v1.get(controller, self.v2_mount)
            place = self._places[controller] = f"{point}/{self.root}"
        return f"{place}/{sandbox}/{name}"

    def _v2_file(self, sandbox: str, name: str) -> str:
        return f"{self.v2_mount}/{self.root}/{sandbox}/{name}"

    def _number(self, sandbox: str, controller: str, name: str) -> int | None:
        text = _read(self._file(sandbox, controller, name)).strip()
        return int(text) if text.isdigit() else None


def socket_memory_for(memory: int) -> int:
    """Return the limit for this memory limit. Together with the rest that is not counted as memory, a sandbox takes at
    most 16 MB and 10 % more than its limit."""
    return (4 << 20) + memory // 20


def _mount_own() -> Path:
    os.makedirs(OWN_V2, 0o700, exist_ok=True)
    linux.mount("cgroup2", str(OWN_V2), "cgroup2", linux.MS_NOSUID | linux.MS_NODEV, "")
    return OWN_V2


def _enable(path: Path) -> None:
    here = set(_read(path / "cgroup.subtree_control").split())
    for name in NEEDED:
        if name not in here:
            _write(path / "cgroup.subtree_control", f"+{name}")


def _remove(path: Path) -> None:
    for entry in _directories(path):
        _remove(path / entry)
    end = time.monotonic() + 5.0
    while True:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.001)


def _directories(path: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _processes(path: str) -> set[int]:
    """Called for every hierarchy until a sandbox has ended, so without the objects of pathlib."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it is gone, or cannot be read
        found = {pid for pid in map(int, _content(f"{path}/cgroup.procs").split()) if pid > 0}  # 0: another namespace's
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_nlink > 2:  # the kernel counts subdirectories
            for name in _directories(Path(path)):
                found |= _processes(f"{path}/{name}")
    return found


def _content(path: str, *, missing: bytes | None = None) -> bytes:
    """Read a file. `missing`: its content if this kernel does not have it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if missing is None:
            raise
        return missing
    try:
        first = os.read(fd, 1 << 16)
        if len(first) < 1 << 11:  # the kernel gives a page at least, if there is so much
            return first
        return first + b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def _fields(path: str) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: Path | str) -> str:
    try:
        return _content(str(path)).decode()
    except OSError:
        return ""


def _write(path: Path | str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
