"""Escape and shorten text from a sandbox for the model."""

from __future__ import annotations

import math
import re
from typing import Any

from skerry.codecs.text import escape_char

SHOWN = 16_000  # characters of a text in a result, by default
MAX_SHOWN = 40_000
MAX_DEPTH = 64

# Control characters (except tab and line breaks), direction marks, invisible characters and lone surrogates. Joiners of
# letters and emoji, and spaces of every width, are kept.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]|\r(?!\n)"
)


def escape(text: str) -> str:
    """Escape control codes, invisible characters and lone surrogates, like `\\x1b`."""
    return _UNSEEN.sub(lambda found: escape_char(found[0]), text)


def one_line(text: str, most: int = 200) -> str:
    line = escape(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def shorten(text: str, most: int) -> tuple[str, int]:
    """Escape a text and shorten it to about `most` characters: head, mark, tail. Return it with the number of
    characters left out. Only the returned parts are escaped, because over HTTP this runs in the server's event loop."""
    if len(text) <= most and len(whole := escape(text)) <= most:
        return whole, 0
    room = most // 2
    left_out = max(1, len(text) - 2 * room)
    head, tail = escape(text[:room])[:room], escape(text[len(text) - room :])[-room:]
    return f"{head}\n[… {left_out} characters left out …]\n{tail}", left_out


def is_visible(text: str) -> bool:
    """Return whether a text needs no escaping."""
    return _UNSEEN.search(text) is None


def whole_characters(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back and len(data) > back else data
    return data


def escape_all(value: Any, depth: int = 0) -> Any:
    """Escape every text in a value of lists and dictionaries. Raise RecursionError if it is nested too deeply."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {escape(str(key)): escape_all(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [escape_all(one, depth + 1) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
