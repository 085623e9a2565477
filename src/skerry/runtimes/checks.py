"""What `skerry doctor` asks of this host: each a line with what was found and the command that mends it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skerry.errors import SkerryError
from skerry.runtimes import bpf, pick, seccomp
from skerry.runtimes.cgroups import NEEDED
from skerry.runtimes.hierarchies import mounted
from skerry.runtimes.overlay import Overlays, kernel
from skerry.runtimes.ranges import FIRST
from skerry.runtimes.userns import UserNamespaces
from skerry.types import Check

_WANTED_FILES: Final = 65_536
_MANAGERS: Final = {
    "apt-get": "apt-get install -y {}",
    "dnf": "dnf install -y {}",
    "zypper": "zypper install -y {}",
    "pacman": "pacman -S --noconfirm {}",
    "apk": "apk add {}",
}
# Upstream versions with every known escape mended; a distribution mends under older numbers.
_MENDED: Final = {"runc": ((1, 3, 6), (1, 4, 3)), "crun": ((1, 24, 0),)}


def checks(state_dir: Path = Path("/var/lib")) -> list[Check]:
    """All of them, also when one fails: none depends on another. Layers lie in the state directory, and whether they
    can be mounted depends on its file system; one that is not there yet will be made below what is."""
    there = next(path for path in (state_dir, *state_dir.parents) if path.is_dir())
    tests: tuple[Callable[[], Check], ...] = (
        _root,
        _kernel,
        _user_namespaces,
        lambda: _overlay(there),
        _cgroups,
        _cgroup_kill,
        _runtime,
        *(lambda name=name: _program(name) for name in pick.NAMES),
        _seccomp,
        _network_namespaces,
        _open_files,
        _apparmor,
    )
    return [_guarded(test) for test in tests]


def install(package: str) -> str:
    """The command of this host's own package manager."""
    for manager, command in _MANAGERS.items():
        if shutil.which(manager):
            return command.format(package)
    return f"install {package}"


def _guarded(test: Callable[[], Check]) -> Check:
    try:
        return test()
    except (OSError, SkerryError) as error:
        name = getattr(test, "__name__", "check").strip("_").replace("_", " ")
        message, hint = (error.message, error.hint) if isinstance(error, SkerryError) else (str(error), None)
        return Check(name, None, f"could not be told: {message}", hint)


def _root() -> Check:
    ok = os.geteuid() == 0
    return Check("root", ok, "yes" if ok else f"uid {os.geteuid()}", None if ok else "sudo skerry doctor")


def _kernel() -> Check:
    ok = kernel() >= pick.FLOOR
    detail = os.uname().release + ("" if kernel() >= (6, 13) else " (layers by path; 6.13 takes them as fds)")
    return Check("kernel", ok, detail, None if ok else "install Linux 5.19 or newer")


def _user_namespaces() -> Check:
    most = _number("/proc/sys/user/max_user_namespaces")
    ok = Path("/proc/self/ns/user").exists() and most != 0
    fix = None if ok else "sysctl -w user.max_user_namespaces=10000"
    return Check("user namespaces", ok, f"at most {most}" if most is not None else "not in this kernel", fix)


def _overlay(place: Path) -> Check:
    """A real idmapped overlay in a directory of its own, written to and taken away."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".skerry-doctor-") as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        for part in ("layer", "unit/upper", "unit/work", "m"):
            (scratch / part).mkdir(parents=True)
        overlays = Overlays(scratch / "m")
        stack.callback(overlays.close)
        stack.callback(overlays.unmount, "doctor")
        try:
            root = overlays.mount("doctor", (scratch / "layer",), scratch / "unit", FIRST)
            (root / "file").touch()
            ok = (scratch / "unit" / "upper" / "file").exists()
        except (OSError, SkerryError) as error:
            fix = f"modprobe overlay; if it is there, put {place} on ext4, xfs or btrfs (tmpfs needs Linux 6.3)"
            return Check("idmapped overlay", False, f"in {place}: {error}".replace("\n", " "), fix)
    return Check("idmapped overlay", ok, f"works ({'layers by fd' if overlays.by_fd else 'layers by path'})")


def _cgroups() -> Check:
    found = mounted()
    missing = [name for name in NEEDED if name not in found.controllers]
    if missing:
        fix = "add cgroup_enable=memory swapaccount=1 to the kernel's command line and reboot"
        return Check("cgroups", False, f"{found.mode}, without {', '.join(missing)}", fix)
    return Check("cgroups", True, f"{found.mode}, {', '.join(sorted(found.controllers))}")


def _cgroup_kill() -> Check:
    """The file is in every cgroup but the topmost; the call came with 5.14."""
    found = mounted()
    ok = kernel() >= (5, 14)
    where = f"v2 at {found.v2}" if found.v2 else "no v2 mount; one is made at /run/skerry/cgroup2"
    return Check("cgroup.kill", ok, where, None if ok else "install Linux 5.19 or newer")


def _runtime() -> Check:
    found = [name for name in pick.NAMES if (runtime := pick.find(name)) and runtime.unsuited is None]
    if not found:
        return Check("runtime", False, "neither crun nor runc", install("crun"))
    return Check("runtime", True, f"{found[0]} is used" + (f", {found[1]} can be forced" if found[1:] else ""))


def _program(name: str) -> Check:
    found = pick.find(name)
    if found is None:
        return Check(name, None, "not installed", install(name))
    if found.unsuited:
        return Check(name, False, found.unsuited, install(name))
    if mended(name, found.version):
        return Check(name, True, f"{found.version} at {found.binary}")
    detail = f"{found.version} at {found.binary}: whether its distribution mended the known escapes is unknown"
    return Check(name, None, detail, f"keep it up to date: {install(name)}")


def mended(name: str, version: str) -> bool:
    """True only for an upstream version that is known to be. "1.1.5+ds1" may or may not be: not True."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        return False
    number = tuple(int(part) for part in f"{version}.0".split(".")[:3])
    lines = _MENDED[name]
    return number >= lines[-1] or any(number[:2] == line[:2] and number >= line for line in lines)


def _seccomp() -> Check:
    machine = os.uname().machine
    if machine not in seccomp.machines():
        return Check("seccomp", False, f"no profile for {machine}", "use an x86_64 or aarch64 machine")
    ok = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    ready = bpf.compiled(seccomp.profile(machine)) is not None
    detail = f"profile for {machine}, {'compiled ahead for crun' if ready else 'compiled at each start'}"
    return Check("seccomp", ok, detail if ok else "not in this kernel", None if ok else "boot a kernel with seccomp")


def _network_namespaces() -> Check:
    ok = Path("/proc/self/ns/net").exists() and _number("/proc/sys/user/max_net_namespaces") != 0
    fix = None if ok else "sysctl -w user.max_net_namespaces=10000"
    return Check("network namespaces", ok, "yes" if ok else "none can be made", fix)


def _open_files() -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= _WANTED_FILES:
        return Check("open files", True, "no limit" if hard < 0 else f"hard limit {hard}")
    fix = f"ulimit -Hn {_WANTED_FILES} before the server starts, or LimitNOFILE={_WANTED_FILES} in its unit"
    return Check("open files", None, f"hard limit {hard}: sandboxes get that instead of {_WANTED_FILES}", fix)


def _apparmor() -> Check:
    """The restriction is for unprivileged users: it does not meet a server that is root."""
    value = _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    namespaces = UserNamespaces()
    try:
        os.close(namespaces.fd(FIRST))
    except (OSError, SkerryError) as error:
        fix = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" if value else None
        return Check("making user namespaces", False, str(error), fix)
    finally:
        namespaces.close()
    return Check("making user namespaces", True, "works" + (" (AppArmor restricts other users only)" if value else ""))


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
