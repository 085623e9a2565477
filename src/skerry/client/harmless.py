"""Text of unknown origin, made fit for a terminal."""

from __future__ import annotations


def harmless(text: str, *, lines: bool = False) -> str:
    """Escape codes, line breaks and invisible characters become visible; all else stays as it is.

    With `lines`, line breaks stay: for a message that may have several lines."""
    keep = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
