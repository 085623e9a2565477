"""Choose the runtime: crun if the host's cgroups suit it, else runc. A requested runtime is used or fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skerry.errors import HostUnsupported, InvalidRequest
from skerry.runtimes import seccomp
from skerry.runtimes.cgroups import Cgroups
from skerry.runtimes.hierarchies import mounted, root_for
from skerry.runtimes.oci import OciRuntime
from skerry.runtimes.overlay import kernel
from skerry.runtimes.runtime import Runtime

NAMES: Final = ("crun", "runc")
MIN_KERNEL: Final = (5, 19)  # idmapped layers under an overlay
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class RuntimeProgram:
    """A runtime's program. `unsuited`: the reason that this host cannot use it."""

    name: str
    binary: Path
    version: str
    unsuited: str | None = None


def pick_runtime(run_dir: Path, requested: str | None = None) -> Runtime:
    """Return the runtime for the instance with this run directory. Fails closed."""
    _check_host()
    found = mounted()
    cgroups = Cgroups(root_for(run_dir.name, found), found)
    chosen = _choose(requested)
    return OciRuntime(chosen.name, chosen.binary, chosen.version, run_dir, cgroups)


def find(name: str) -> RuntimeProgram | None:
    path = shutil.which(name, path=_PATH)
    if path is None:
        return None
    version = _version(path)
    if version is None:
        return RuntimeProgram(name, Path(path), "unknown", f"`{path} --version` does not answer")
    return RuntimeProgram(name, Path(path), version)


def _choose(requested: str | None) -> RuntimeProgram:
    if requested is not None and requested not in NAMES:
        raise InvalidRequest(f"unknown runtime {requested!r}", hint=f"one of {', '.join(NAMES)}")
    names = (requested,) if requested else NAMES
    found = [runtime for name in names if (runtime := find(name)) is not None]
    for runtime in found:
        if runtime.unsuited is None:
            return runtime
    why = "; ".join(f"{runtime.name}: {runtime.unsuited}" for runtime in found)
    missing = " or ".join(names)
    raise HostUnsupported(why or f"{missing} was not found", hint=f"apt-get install {names[-1]}; see `skerry doctor`")


def _check_host() -> None:
    if os.geteuid() != 0:
        raise HostUnsupported("the server must run as root", hint="sudo skerry setup")
    if kernel() < MIN_KERNEL:
        raise HostUnsupported(f"Linux {os.uname().release} is too old", hint="use Linux 5.19 or newer")
    if os.uname().machine not in seccomp.machines():
        raise HostUnsupported(f"no seccomp profile for {os.uname().machine}")


def _version(path: str) -> str | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"version (\S+)", answer.stdout.decode("utf-8", "replace"))
    return match[1] if match else None
