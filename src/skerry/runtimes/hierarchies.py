"""Find this host's cgroup hierarchies, and the place of an instance's sandboxes in them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

Mode = Literal["v1", "hybrid", "v2"]

OWN_V2 = Path("/run/skerry/cgroup2")


@dataclass(frozen=True)
class Hierarchies:
    """This host's cgroup mounts. v1: controller → mount point, named hierarchies as `name=…`."""

    v1: dict[str, Path]
    v2: Path | None

    @cached_property  # every command reads it several times
    def mode(self) -> Mode:
        if not self.v1:
            return "v2"
        return "v1" if self.v2 in (None, OWN_V2) else "hybrid"

    @property
    def controllers(self) -> set[str]:
        names = {name for name in self.v1 if not name.startswith("name=")}
        if self.v2 is not None:
            names |= set(_read(self.v2 / "cgroup.controllers").split())
        return names


def mounted() -> Hierarchies:
    """Parse /proc/self/mountinfo; the first mount of a hierarchy counts."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    known = {line.split("\t")[0] for line in _read(Path("/proc/cgroups")).splitlines()[1:]}
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split(" ")[3:5]
        if root != "/":
            continue
        if kind == "cgroup2":
            v2 = v2 or Path(point)
        elif kind == "cgroup":
            for name in options.split(","):
                if name in known or name.startswith("name="):
                    v1.setdefault(name, Path(point))
    return Hierarchies(v1, v2)


def root_for(instance: str, found: Hierarchies) -> str:
    """Return `/skerry/<instance>`, or a path below the systemd unit that delegates its tree.

    Only if the unit has a DelegateSubgroup, so that this process is already in a leaf. If the unit's main process is at
    the top of the tree, systemd cannot restart the unit while sandboxes run below it (EBUSY: no process may be in a v2
    cgroup that distributes controllers).
    """
    if found.mode == "v2" and found.v2 is not None:
        own = _own_v2()
        above = found.v2 / own.parent.relative_to("/")
        if own != Path("/") and own.parent != Path("/") and _delegated(above):
            return f"{own.parent}/skerry/{instance}"
    return f"/skerry/{instance}"


def _own_v2() -> Path:
    lines = _read(Path("/proc/self/cgroup")).splitlines()
    return Path(next((line[3:] for line in lines if line.startswith("0::")), "/"))


def _delegated(path: Path) -> bool:
    """Return whether systemd marked the cgroup as delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(path, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
