"""Which runtime this host gets: crun where its cgroups suit it, else runc. A forced wish is honoured or refused."""

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
FLOOR: Final = (5, 19)  # idmapped layers under an overlay
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Found:
    """A runtime's program. `unsuited` says why this host can't use it."""

    name: str
    binary: Path
    version: str
    unsuited: str | None = None


def pick_runtime(run_dir: Path, wish: str | None = None) -> Runtime:
    """The runtime for the sandboxes of the instance whose run directory this is. Fails closed."""
    _check_host()
    found = mounted()
    cgroups = Cgroups(root_for(run_dir.name, found), found)
    chosen = _choose(wish)
    return OciRuntime(chosen.name, chosen.binary, chosen.version, run_dir, cgroups)


def find(name: str) -> Found | None:
    path = shutil.which(name, path=_PATH)
    if path is None:
        return None
    version = _version(path)
    if version is None:
        return Found(name, Path(path), "unknown", f"`{path} --version` does not answer")
    return Found(name, Path(path), version)


def _choose(wish: str | None) -> Found:
    if wish is not None and wish not in NAMES:
        raise InvalidRequest(f"there is no runtime {wish!r}", hint=f"one of {', '.join(NAMES)}")
    names = (wish,) if wish else NAMES
    found = [runtime for name in names if (runtime := find(name)) is not None]
    for runtime in found:
        if runtime.unsuited is None:
            return runtime
    why = "; ".join(f"{runtime.name}: {runtime.unsuited}" for runtime in found)
    missing = " or ".join(names)
    raise HostUnsupported(why or f"{missing} was not found", hint=f"apt-get install {names[-1]}; see `skerry doctor`")


def _check_host() -> None:
    if os.geteuid() != 0:
        raise HostUnsupported("the wall needs a server that runs as root", hint="sudo skerry setup")
    if kernel() < FLOOR:
        raise HostUnsupported(f"Linux {os.uname().release} is too old", hint="Linux 5.19 or newer is needed")
    if os.uname().machine not in seccomp.machines():
        raise HostUnsupported(f"there is no seccomp profile for {os.uname().machine}")


def _version(path: str) -> str | None:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"version (\S+)", answer.stdout.decode("utf-8", "replace"))
    return match[1] if match else None
