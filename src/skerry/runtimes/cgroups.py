"""The control groups of one instance's sandboxes, `<root>/<id>`, in every hierarchy that the host has mounted.

v2: one tree at /sys/fs/cgroup. v1: a tree for each controller. hybrid: v1 with a v2 mount beside it that holds no
controller, but whose `cgroup.kill` and `cgroup.freeze` work all the same. A host without any v2 mount gets one from us.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Literal

from skerry import syscalls
from skerry.errors import Conflict, HostUnsupported, SandboxUnavailable
from skerry.runtimes.hierarchies import OWN_V2, Hierarchies, Mode, mounted
from skerry.types import Limits, Usage, format_size

NEEDED = ("cpu", "memory", "pids")
PERIOD_US = 100_000
_DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
_MOST_BELOW = 2048  # sub-cgroups that root inside may make through the keeper's fd


class Cgroups:
    """The sandboxes' cgroups under `root` (`/skerry/<instance>`)."""

    def __init__(self, root: str, hierarchies: Hierarchies | None = None) -> None:
        self.root = root.strip("/")
        self._found = hierarchies or mounted()

    @property
    def mode(self) -> Mode:
        return self._found.mode

    @property
    def swap(self) -> Literal["limit", "swappiness", "none"]:
        """How swap can be kept at 0."""
        if self.mode == "v2":
            return "limit" if Path("/proc/swaps").exists() else "none"
        has_limit = (self._found.v1["memory"] / "memory.memsw.limit_in_bytes").exists()
        return "limit" if has_limit else "swappiness"

    def prepare(self) -> None:
        """The instance's own directory, with the controllers switched on along the way. Fails closed."""
        if self._found.v2 is None:
            self._found = Hierarchies(self._found.v1, _mount_own())
        missing = [name for name in NEEDED if name not in self._found.controllers]
        if missing:
            raise HostUnsupported(
                f"the cgroup controllers {', '.join(missing)} are not there",
                hint="boot with cgroup_enable=memory, or switch them on in the host's cgroup.subtree_control",
            )
        base = self.v2_mount
        for part in ("", *self.root.split("/")):
            base = base / part if part else base
            with contextlib.suppress(FileExistsError):
                os.mkdir(base, 0o755)
            if self.mode == "v2":
                _enable(base)

    def create(self, sandbox: str, uid: int) -> int:
        """Makes the v2 directory, hands it to the sandbox's root, and returns a detached fd of it: `..` ends there."""
        path = self.v2(sandbox)
        if not path.parent.exists():  # taken away since: by `remove_root`, or by systemd tidying up
            self.prepare()
        os.mkdir(path, 0o755)
        for name in _DELEGATED:
            os.chown(path / name if name else path, uid, uid)
        _write(path / "cgroup.max.descendants", str(_MOST_BELOW))
        _write(path / "cgroup.max.depth", "8")
        clone = syscalls.open_tree(str(path))
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=clone)
        finally:
            os.close(clone)

    def v2(self, sandbox: str) -> Path:
        return self.v2_mount / self.root / sandbox

    def paths(self, sandbox: str) -> list[Path]:
        """Its directory in each hierarchy, there or not."""
        points = dict.fromkeys(self._found.v1.values())
        return [self.v2(sandbox), *(point / self.root / sandbox for point in points)]

    def set_limits(self, sandbox: str, limits: Limits) -> None:
        self.set_cpu(sandbox, limits.cpus)
        self._set_memory(sandbox, limits.memory_bytes)
        if limits.pids is not None:
            _write(self._file(sandbox, "pids", "pids.max"), str(limits.pids))

    def check_pids(self, sandbox: str, wanted: int | None) -> None:
        """The kernel takes any number: it would only let nobody fork any more."""
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

    def _set_memory(self, sandbox: str, wanted: int) -> None:
        if self.mode == "v2":
            self._reclaim(sandbox, wanted)
            _write(self._file(sandbox, "memory", "memory.max"), str(wanted))
            return
        plain = self._file(sandbox, "memory", "memory.limit_in_bytes")
        both = self._file(sandbox, "memory", "memory.memsw.limit_in_bytes")
        files = [plain]
        if both.exists():  # memory+swap may never be below memory: which goes first depends on the direction
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
        """v1 refuses a limit below what can't be freed; v2 takes it, and kills. So what is only cached goes first."""
        used = self._number(sandbox, "memory", "memory.current") or 0
        if used <= wanted:
            return
        with contextlib.suppress(OSError):  # EAGAIN: not all of it could be freed
            _write(self._file(sandbox, "memory", "memory.reclaim"), str(used - wanted))
        if (self._number(sandbox, "memory", "memory.current") or 0) > wanted:
            raise self._too_little(sandbox, "memory.current", wanted)

    def _too_little(self, sandbox: str, name: str, wanted: int) -> Conflict:
        used = self._number(sandbox, "memory", name) or 0
        megabytes = format_size(-(-used >> 20) << 20)
        return Conflict(
            f"{sandbox} uses {megabytes} of memory, more than the new limit of {format_size(wanted)}",
            hint="end what uses it first, or give it a higher limit",
            details={"limit": "memory", "used": used},
        )

    def usage(self, sandbox: str) -> Usage:
        if self.mode == "v2":
            micros = _fields(self._file(sandbox, "cpu", "cpu.stat")).get("usage_usec", 0)
            cpu, peak = micros / 1e6, self._number(sandbox, "memory", "memory.peak")
        else:
            cpu = (self._number(sandbox, "cpuacct", "cpuacct.usage") or 0) / 1e9
            peak = self._number(sandbox, "memory", "memory.max_usage_in_bytes")
        return Usage(cpu_s=cpu, memory_peak=peak, pids_peak=self._number(sandbox, "pids", "pids.peak"))

    def oom_kills(self, sandbox: str) -> int | None:
        name = "memory.events" if self.mode == "v2" else "memory.oom_control"
        return _fields(self._file(sandbox, "memory", name)).get("oom_kill")

    def freeze(self, sandbox: str) -> None:
        self._freeze(sandbox, frozen=True)

    def thaw(self, sandbox: str) -> None:
        self._freeze(sandbox, frozen=False)

    def _freeze(self, sandbox: str, *, frozen: bool) -> None:
        try:
            _write(self.v2(sandbox) / "cgroup.freeze", "1" if frozen else "0")
        except FileNotFoundError:
            raise SandboxUnavailable(f"{sandbox} is not running") from None
        end = time.monotonic() + 10.0
        while (_fields(self.v2(sandbox) / "cgroup.events").get("frozen") == 1) is not frozen:
            if time.monotonic() > end:
                raise SandboxUnavailable(f"{sandbox} could not be {'frozen' if frozen else 'thawed'} within 10 s")
            time.sleep(0.0005)

    def kill(self, sandbox: str) -> None:
        """SIGKILL to everything in it at once, frozen or not. Forks can't outrun it."""
        with contextlib.suppress(FileNotFoundError):
            _write(self.v2(sandbox) / "cgroup.kill", "1")

    def strays(self, sandbox: str) -> set[int]:
        """Every process still in it, in any hierarchy (v1's are seen even if it never got into v2)."""
        return {pid for path in self.paths(sandbox) for pid in _processes(path)}

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
        """The instance's own directories, if they are empty."""
        for path in self.paths("."):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    @property
    def v2_mount(self) -> Path:
        if self._found.v2 is None:
            raise HostUnsupported("no cgroup2 file system is mounted", hint="mount -t cgroup2 none /run/skerry/cgroup2")
        return self._found.v2

    def _file(self, sandbox: str, controller: str, name: str) -> Path:
        point = self.v2_mount if self.mode == "v2" else self._found.v1.get(controller, self.v2_mount)
        return point / self.root / sandbox / name

    def _number(self, sandbox: str, controller: str, name: str) -> int | None:
        text = _read(self._file(sandbox, controller, name)).strip()
        return int(text) if text.isdigit() else None


def _mount_own() -> Path:
    os.makedirs(OWN_V2, 0o700, exist_ok=True)
    syscalls.mount("cgroup2", str(OWN_V2), "cgroup2", syscalls.MS_NOSUID | syscalls.MS_NODEV, "")
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


def _processes(path: Path) -> set[int]:
    found = {int(pid) for pid in _read(path / "cgroup.procs").split() if int(pid) > 0}  # 0: not in our pid namespace
    for name in _directories(path):
        found |= _processes(path / name)
    return found


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
