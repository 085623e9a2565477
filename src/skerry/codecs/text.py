"""Escaping of text from untrusted sources."""

from __future__ import annotations


def escape_char(char: str) -> str:
    r"""Return a character in backslash notation, like `\x1b` or `\u202e`."""
    return char.encode("unicode_escape").decode("ascii")


def escape(text: str, *, lines: bool = False) -> str:
    """Escape control codes, line breaks and invisible characters; keep all other characters.

    With `lines`, keep line breaks, for messages of several lines."""
    if text.isprintable():
        return text
    keep = "\n" if lines else ""
    return "".join(c if c.isprintable() or c in keep else escape_char(c) for c in text)
