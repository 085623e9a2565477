"""The mounts that this process sees."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    point: Path
    kind: str
    source: str
    options: frozenset[str]  # of this mount
    super_options: frozenset[str]  # of the file system


def mounts() -> list[Mount]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [_parse(line) for line in file]


def mount_at(point: Path) -> Mount | None:
    """Return the topmost mount on exactly this directory."""
    real = Path(os.path.realpath(point))
    return next((mount for mount in reversed(mounts()) if mount.point == real), None)


def mounts_below(directory: Path) -> list[Mount]:
    """Return mounts on or below a directory, innermost first."""
    real = Path(os.path.realpath(directory))
    return [mount for mount in reversed(mounts()) if mount.point == real or real in mount.point.parents]


def _parse(line: str) -> Mount:
    left, _, right = line.rstrip("\n").partition(" - ")
    fields, tail = left.split(" "), right.split(" ")
    return Mount(
        point=Path(_unescape(fields[4])),
        kind=tail[0],
        source=_unescape(tail[1]),
        options=frozenset(fields[5].split(",")),
        super_options=frozenset(tail[2].split(",")),
    )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
