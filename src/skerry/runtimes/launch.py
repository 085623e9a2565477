"""How the runtime's program is called, so that PID 1 lands in all of its cgroups.

runc joins whatever it finds, crun only pure v2. Beside v1 it refuses a v2 mount that still has a controller: there crun
gets a mount namespace of its own without that mount, and so does not know of v2. What the runtime does not know of is
joined before it starts: a child inherits its place. (So is everything where the v2 mount is one of our own.)
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from skerry.runtimes.cgroups import Cgroups

_JOIN: Final = 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"'
_HIDE: Final = 'echo $$ >"$1/cgroup.procs" && umount "$2" && shift 2 && exec "$@"'


def command(name: str, cgroups: Cgroups, sandbox: str, argv: list[str]) -> list[str]:
    if cgroups.mode == "v2" or (cgroups.mode == "hybrid" and name != "crun"):
        return argv
    group = str(cgroups.v2(sandbox))
    if cgroups.mode == "v1":
        return ["/bin/sh", "-c", _JOIN, "sh", group, *argv]
    shell = ["/bin/sh", "-c", _HIDE, "sh", group, str(cgroups.v2_mount), *argv]
    unshare = shutil.which("unshare") or "/usr/bin/unshare"
    return [unshare, "--mount", "--propagation", "slave", *shell]


def runtime_argv(binary: Path, state: Path, bundle: Path, sandbox: str, fds: int) -> list[str]:
    """--log takes the runtime's words: its stdio becomes PID 1's, and must not be a pipe or file of ours."""
    return [
        *(str(binary), "--root", str(state), "--log", str(bundle / "log")),
        *("run", "--detach", "--preserve-fds", str(fds)),
        *("--pid-file", str(bundle / "pid"), "--bundle", str(bundle), sandbox),
    ]
