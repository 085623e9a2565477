"""Text that comes from inside, made fit to be shown: bounded, and without what is not seen."""

from __future__ import annotations

import math
import re
from typing import Any

SHOWN = 16_000  # characters of a text that a result has, unless told otherwise
SHOWN_MOST = 40_000
DEEPEST = 64

# Controls (but for tab and line breaks), what turns the direction of text or hides in it, and halves of characters.
# What joins letters and emoji, and spaces of every width, stay.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]|\r(?!\n)"
)


def shown(text: str) -> str:
    """Escape codes, invisible characters and bytes that are no text become visible, like `\\x1b`."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str, most: int = 200) -> str:
    line = shown(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def bounded(text: str, most: int) -> tuple[str, int]:
    """The head and the tail of a text that is longer than `most` characters, with a mark between them; and how many
    characters that left out. Only what is shown is looked at: over HTTP it is the server that waits for it."""
    if len(text) <= most and len(whole := shown(text)) <= most:
        return whole, 0
    room = most // 2
    left_out = max(1, len(text) - 2 * room)
    head, tail = shown(text[:room])[:room], shown(text[len(text) - room :])[-room:]
    return f"{head}\n[… {left_out} characters left out …]\n{tail}", left_out


def is_seen(text: str) -> bool:
    """Whether it is shown as it is."""
    return _UNSEEN.search(text) is None


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at its end, whose rest is yet to come."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back and len(data) > back else data
    return data


def shown_all(value: Any, depth: int = 0) -> Any:
    """The same of every text in a value of lists and dictionaries; one that is nested too deep is a RecursionError."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown(str(key)): shown_all(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown_all(one, depth + 1) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
