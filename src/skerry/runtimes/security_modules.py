"""The host's security modules, as a second barrier behind namespaces, masks and seccomp: an AppArmor profile for every
process of a sandbox. SELinux is only reported.

The profile permits everything that a sandbox needs inside its own namespaces: no mount, no change of policy, no signal
to and no trace of a process of the host, no write below /proc/sys and /sys. It holds also if one of the masks
fails."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Rules of AppArmor 3.0, which Debian 12 and Ubuntu 24.04 have; newer kernels mediate no more than these.
_ABI: Final = "<abi/3.0>"
# Files of the host's kernel that stay closed even without the mask over them.
_CLOSED: Final = (
    "/proc/kcore",
    "/proc/kmsg",
    "/proc/kallsyms",
    "/proc/kpage*",
    "/proc/sysrq-trigger",
    "/sys/firmware/**",
    "/sys/fs/bpf/**",
    "/sys/fs/selinux/**",
    "/sys/kernel/debug/**",
    "/sys/kernel/security/**",
    "/sys/kernel/tracing/**",
)
_UNWRITABLE: Final = ("/proc/sys/**", "/proc/bus/**", "/proc/irq/**", "/proc/acpi/**", "/sys/**")
_SBIN: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOAD_LIMIT_S: Final = 60.0
_ENABLED: Final = "sys/module/apparmor/parameters/enabled"
_LOADED: Final = "sys/kernel/security/apparmor/profiles"
_OWN: Final = "proc/self/attr/apparmor/current"
_SELINUX: Final = "sys/fs/selinux/enforce"


@dataclass(frozen=True)
class SecurityModules:
    """`profile`: the AppArmor profile of all sandboxes, or None. `apparmor`, `selinux`: the state in words. `fix`: the
    package that is missing."""

    profile: str | None
    apparmor: str
    selinux: str
    fix: str | None = None


def apparmor_profile(capabilities: tuple[str, ...]) -> tuple[str, str]:
    """Return the name of the profile and its text. The name has a digest of the rules: sandboxes that run keep theirs
    when another version of Skerry loads its own."""
    rules = [
        "  file,",
        "  network,",
        "  unix,",
        *(f"  capability {name.removeprefix('CAP_').lower()}," for name in capabilities),
        "  signal (receive),",  # from the host; sandboxes do not see each other's processes
        "  signal (send) peer=@{profile_name},",
        "  ptrace (readby, tracedby),",
        "  ptrace (read, trace) peer=@{profile_name},",
        *(f"  deny {path} mrwklx," for path in _CLOSED),
        *(f"  deny {path} wkl," for path in _UNWRITABLE),
    ]
    body = "\n".join(rules)
    name = f"skerry-sandbox-{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    # The keeper has a handle on its cgroup, which has no path inside.
    head = f"abi {_ABI},\nprofile {name} flags=(attach_disconnected,mediate_deleted) {{"
    return name, f"{head}\n{body.replace('@{profile_name}', name)}\n}}\n"


@functools.cache
def security_modules(capabilities: tuple[str, ...], root: Path = Path("/"), *, load: bool = True) -> SecurityModules:
    """Load the profile unless it is loaded, and return the state of this host."""
    name, text = apparmor_profile(capabilities)
    selinux = _selinux(_read(root / _SELINUX))
    if _read(root / _ENABLED) != "Y":
        return SecurityModules(None, "not available: this kernel runs without AppArmor", selinux)
    if (own := _read(root / _OWN)) != "unconfined":
        return SecurityModules(None, f"not available: the server itself is confined by {own or 'a profile'}", selinux)
    if _is_loaded(root, name):
        return SecurityModules(name, f"profile {name}", selinux)
    parser = shutil.which("apparmor_parser", path=_SBIN)
    if parser is None:
        return SecurityModules(None, "not available: apparmor_parser is not installed", selinux, "apparmor")
    if not load:
        return SecurityModules(name, f"profile {name}; the server loads it", selinux)
    failure = _load(parser, text)
    if failure is None and not _is_loaded(root, name):
        failure = "the kernel does not list it; is securityfs mounted at /sys/kernel/security?"
    if failure is not None:
        return SecurityModules(None, f"not available: the profile could not be loaded: {failure}", selinux)
    return SecurityModules(name, f"profile {name}", selinux)


def profile_of(pid: int) -> str | None:
    """Return the AppArmor profile that the kernel enforces for a process; None: none, or it only complains."""
    label = _read(Path(f"/proc/{pid}/attr/apparmor/current"))
    return label.removesuffix(" (enforce)") if label.endswith(" (enforce)") else None


def _load(parser: str, text: str) -> str | None:
    """Return the reason of a failure."""
    try:
        done = subprocess.run(
            [parser, "--replace", "--skip-cache", "--quiet"], input=text.encode(), capture_output=True,
            timeout=_LOAD_LIMIT_S, env={"PATH": _SBIN, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else f"apparmor_parser ended with {done.returncode}"


def _is_loaded(root: Path, name: str) -> bool:
    return f"{name} (enforce)" in _read(root / _LOADED).splitlines()


def _selinux(enforce: str) -> str:
    if enforce not in ("0", "1"):
        return "not available: this kernel runs without SELinux"
    mode = "enforcing" if enforce == "1" else "permissive"
    return f"not applied: SELinux is {mode}, and sandboxes keep the label that the server's runtime gives them"


def _read(path: Path) -> str:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC)) as file:
            return file.read().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
