"""The runtime checks of `skerry doctor`: each a line with the finding and the command that fixes it."""

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
from skerry.runtimes import bpf, pick, seccomp, spec
from skerry.runtimes.cgroups import NEEDED
from skerry.runtimes.hierarchies import mounted
from skerry.runtimes.overlay import Overlays, kernel, unmount
from skerry.runtimes.ranges import FIRST
from skerry.runtimes.security_modules import security_modules
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
# Upstream versions with every known escape fixed; a distribution backports fixes to older numbers.
_MENDED: Final = {"runc": ((1, 3, 6), (1, 4, 3)), "crun": ((1, 24, 0),)}


def checks(state_dir: Path = Path("/var/lib")) -> list[Check]:
    """Run all checks; none depends on another. Layers are in the state directory, and its file system decides whether
    they can be mounted; a missing directory will be created below an existing one."""
    there = next(path for path in (state_dir, *state_dir.parents) if os.path.isdir(path))
    tests: tuple[Callable[[], Check], ...] = (
        _root,
        _kernel,
        _user_namespaces,
        lambda: _as_root("idmapped overlay", lambda: _overlay(there)),
        _cgroups,
        _cgroup_kill,
        _runtime,
        *(lambda name=name: _program(name) for name in pick.NAMES),
        _seccomp,
        _network_namespaces,
        _open_files,
        lambda: _as_root("making user namespaces", _restricted_namespaces),
        lambda: _as_root("AppArmor", _apparmor),
    )
    return [_guarded(test) for test in tests]


def _as_root(name: str, test: Callable[[], Check]) -> Check:
    """Run a check that only root can make. For other users it is open: they have a server that runs as root."""
    return test() if os.geteuid() == 0 else Check(name, None, "requires root", "sudo skerry doctor")


def install(package: str) -> str:
    """Return the install command of this host's package manager."""
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
        return Check(name, None, f"check failed: {message}", hint)


def _root() -> Check:
    if os.geteuid() == 0:
        return Check("root", True, "yes")
    return Check("root", None, f"uid {os.geteuid()}: some checks require root", "sudo skerry doctor")


def _kernel() -> Check:
    ok = kernel() >= pick.MIN_KERNEL
    detail = os.uname().release + ("" if kernel() >= (6, 13) else " (layers by path; 6.13 accepts fds)")
    return Check("kernel", ok, detail, None if ok else "install Linux 5.19 or newer")


def _user_namespaces() -> Check:
    most = _number("/proc/sys/user/max_user_namespaces")
    ok = Path("/proc/self/ns/user").exists() and most != 0
    fix = None if ok else "sysctl -w user.max_user_namespaces=10000"
    return Check("user namespaces", ok, f"at most {most}" if most is not None else "not supported by this kernel", fix)


def _overlay(place: Path) -> Check:
    """Mount a real idmapped overlay in a temporary directory, write to it and remove it."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".skerry-doctor-") as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        for part in ("layer", "unit/upper", "unit/work", "m"):
            (scratch / part).mkdir(parents=True)
        overlays = Overlays(scratch / "m")
        stack.callback(overlays.close)
        stack.callback(unmount, scratch / "m" / "doctor")
        try:
            with overlays.opened((scratch / "layer",), scratch / "unit", FIRST) as layers:
                root = overlays.mount("doctor", layers, FIRST)
            (root / "file").touch()
            ok = (scratch / "unit" / "upper" / "file").exists()
        except (OSError, SkerryError) as error:
            fix = f"modprobe overlay; if it is loaded, put {place} on ext4, xfs or btrfs (tmpfs needs Linux 6.3)"
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
    """The file exists in every cgroup except the root; it came with Linux 5.14."""
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
    detail = f"{found.version} at {found.binary}: unknown whether its distribution fixed the known escapes"
    return Check(name, None, detail, f"keep it up to date: {install(name)}")


def mended(name: str, version: str) -> bool:
    """Return True only for an upstream version that is known to be fixed; False for one like "1.1.5+ds1", which may
    be."""
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
    return Check(
        "seccomp", ok, detail if ok else "not supported by this kernel", None if ok else "boot a kernel with seccomp"
    )


def _network_namespaces() -> Check:
    ok = Path("/proc/self/ns/net").exists() and _number("/proc/sys/user/max_net_namespaces") != 0
    fix = None if ok else "sysctl -w user.max_net_namespaces=10000"
    return Check("network namespaces", ok, "yes" if ok else "cannot be created", fix)


def _open_files() -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= _WANTED_FILES:
        return Check("open files", True, "no limit" if hard < 0 else f"hard limit {hard}")
    fix = f"ulimit -Hn {_WANTED_FILES} before the server starts, or LimitNOFILE={_WANTED_FILES} in its unit"
    return Check("open files", None, f"hard limit {hard}: sandboxes get that instead of {_WANTED_FILES}", fix)


def _restricted_namespaces() -> Check:
    """The restriction applies to unprivileged users, not to a server that runs as root."""
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


def _apparmor() -> Check:
    """A profile is a second barrier: sandboxes start without one too."""
    found = security_modules(spec.CAPABILITIES, load=False)
    detail = found.apparmor if "without SELinux" in found.selinux else f"{found.apparmor}; SELinux: {found.selinux}"
    return Check("AppArmor", True if found.profile else None, detail, install(found.fix) if found.fix else None)


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None
