"""Three-way merges of file contents by git, and the lines that conflict."""

from __future__ import annotations

import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from skerry.client.host.git import isolated_git

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_MARKS = 7
_MANY = 127  # the highest exit code of git merge-file that counts conflicts


@dataclass(frozen=True)
class MergeResult:
    """`conflicts`: first and last lines of `mine`; last < first if lines were removed."""

    data: bytes
    conflicts: tuple[tuple[int, int], ...] = ()


def is_binary(data: bytes) -> bool:
    return b"\0" in data


def merge(mine: bytes, base: bytes, theirs: bytes) -> MergeResult:
    """Apply the change from `base` to `theirs` to `mine`. None of the three is binary."""
    with tempfile.TemporaryDirectory(prefix="skerry-merge-") as name:
        place = Path(name)
        for part, data in (("mine", mine), ("base", base), ("theirs", theirs)):
            (place / part).write_bytes(data)
        label = secrets.token_hex(16)  # conflict markers that no file contains
        code, data = isolated_git(
            place, "merge-file", "-p", "-q", f"--marker-size={_MARKS}", "-L", label, "-L", label, "-L", label,
            "mine", "base", "theirs", expect=tuple(range(_MANY + 1)),
        )  # fmt: skip
        if code == 0:
            return MergeResult(data)
        return MergeResult(b"", _lines(place, data, label.encode()))


def _lines(place: Path, marked: bytes, label: bytes) -> tuple[tuple[int, int], ...]:
    """Return the lines of the conflicts in `mine`. Lines of `theirs` stand between them: git reports how many."""
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
    _, shifts = isolated_git(
        place, "diff", "--no-index", "--no-color", "--no-ext-diff", "--no-textconv", "-U0", "mine", "ours",
        expect=(0, 1),
    )  # fmt: skip
    return tuple((_back(first, shifts) + 1, _back(last - 1, shifts) + 1) for first, last in found)


def _back(at: int, diff: bytes) -> int:
    """Return the line of the old file that line `at` (from 0) of the new file was."""
    shift = 0
    for match in _HUNK.finditer(diff):
        old, new = (int(match[2] or b"1"), int(match[4] or b"1"))
        start = int(match[3]) - (1 if new else 0)
        if start + new > at:
            break
        shift += old - new
    return max(0, at + shift) if at >= 0 else at + shift
