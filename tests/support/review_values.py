"""Hand-made values of a review, and their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from skerry.cli.review.style import Row, text_of
from skerry.types import FileChange, Hunk, LedgerEntry, Review

# Characters that control a terminal, are invisible, or look like other characters.
HOSTILE = (
    "".join(map(chr, [*range(1, 9), *range(11, 32), *range(0x7F, 0xA1)])),
    "\x1b]0;title\x07\x1b[31mred\x1b[2J\x1b[6n\x1bP+q544e\x1b\\\x9b31m\x90q\x9c",
    "\u202eright to left\u202c \u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u115f\u1160\u3164\uffa0\u2800\ufe0f\U000e0101\U000e0041",
    "\u2028\u2029\x85\x0b\x0c\xa0\u3000\u2003",
    "a" + "\u0301" * 50,
    "\ud800\udcff\udc9b31m",
)


def hunk(text: str, *, path: str = "app.py", **more: Any) -> Hunk:
    lines = [line for line in text.split("\n")[:-1] if not line.startswith("\\")]
    old = sum(not line.startswith("+") for line in lines)
    new = sum(not line.startswith("-") for line in lines)
    name = "h-" + hashlib.sha256(f"{path}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    known = {"kind": "text", "old_start": 1, "old_lines": old, "new_start": 1, "new_lines": new}
    return Hunk(id=name, path=path, text=text, **{**known, **more})


def change(path: str, *hunks: Hunk, **more: Any) -> FileChange:
    return FileChange(path=path, hunks=hunks, **{"kind": "modified", "added": 1, "removed": 1, **more})


def review(*files: FileChange, **more: Any) -> Review:
    return Review(sandbox="sb-aaaaaaaaaa", path="/workspace", base="0" * 40, tip="1" * 40, files=files, **more)


def entry(command: str = "sed -i s/foo/bar/ app.py", **more: Any) -> LedgerEntry:
    known = {"commit": "2" * 40, "at": 0.0, "kind": "command", "exit_code": 0, "duration_s": 0.2}
    return LedgerEntry(command=command, **{**known, **more})


def texts(rows: Iterable[Row]) -> list[str]:
    return [text_of(row).rstrip() for row in rows]


def is_harmless(data: str | bytes, allowed: Sequence[str] = ("\n", "\r")) -> bool:
    """Return whether all characters are printable or allowed."""
    text = data.decode() if isinstance(data, bytes) else data
    return all(char.isprintable() or char in allowed for char in text)
