"""Three versions of a file become one, or the lines that keep them from it are told. git merges."""

from __future__ import annotations

import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from skerry.client.applying.git import git_alone

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_MARKS = 7
_MANY = 127  # git merge-file ends with the number of conflicts, or this


@dataclass(frozen=True)
class Merged:
    """`conflicts`: lines of `mine`, first and last; last < first where lines were taken away."""

    data: bytes
    conflicts: tuple[tuple[int, int], ...] = ()


def is_binary(data: bytes) -> bool:
    return b"\0" in data


def merge(mine: bytes, base: bytes, theirs: bytes) -> Merged:
    """What leads from `base` to `theirs`, done to `mine`. None of the three is binary."""
    with tempfile.TemporaryDirectory(prefix="skerry-merge-") as name:
        place = Path(name)
        for part, data in (("mine", mine), ("base", base), ("theirs", theirs)):
            (place / part).write_bytes(data)
        label = secrets.token_hex(16)  # marks that no file can have
        code, data = git_alone(
            place, "merge-file", "-p", "-q", f"--marker-size={_MARKS}", "-L", label, "-L", label, "-L", label,
            "mine", "base", "theirs", expect=tuple(range(_MANY + 1)),
        )  # fmt: skip
        if code == 0:
            return Merged(data)
        return Merged(b"", _lines(place, data, label.encode()))


def _lines(place: Path, marked: bytes, label: bytes) -> tuple[tuple[int, int], ...]:
    """Where the conflicts stand in `mine`. Between them stand lines of `theirs` too: git tells how many."""
    begin, end = b"<" * _MARKS + b" " + label, b">" * _MARKS + b" " + label
    ours: list[bytes] = []
    found: list[tuple[int, int]] = []
    inside, first = "", 0
    for line in marked.splitlines(keepends=True):
        bare = line.rstrip(b"\r\n")
        if not inside and bare == begin:
            inside, first = "mine", len(ours)
        elif inside == "mine" and bare == b"=" * _MARKS:
            inside = "theirs"
            found.append((first, len(ours)))
        elif inside and bare == end:
            inside = ""
        elif inside != "theirs":
            ours.append(line)
    (place / "ours").write_bytes(b"".join(ours))
    _, shifts = git_alone(
        place, "diff", "--no-index", "--no-color", "--no-ext-diff", "--no-textconv", "-U0", "mine", "ours",
        expect=(0, 1),
    )  # fmt: skip
    return tuple((_back(first, shifts) + 1, _back(last - 1, shifts) + 1) for first, last in found)


def _back(at: int, diff: bytes) -> int:
    """The line of the old file that line `at` (from 0) of the new one was."""
    shift = 0
    for match in _HUNK.finditer(diff):
        old, new = (int(match[2] or b"1"), int(match[4] or b"1"))
        start = int(match[3]) - (1 if new else 0)
        if start + new > at:
            break
        shift += old - new
    return max(0, at + shift) if at >= 0 else at + shift
