"""Finding known bytes in streams, wherever the pieces are cut: secrets in what comes back, which are starred out, and
placeholders in what goes out, which trip a wire. Pure."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, quote_plus

_PRINTABLE: Final = bytes(range(0x21, 0x7F))  # a line's end lets all before it go
ALIGNED_LEAST: Final = 12  # shorter ones would be met by chance


def spellings(value: str) -> set[bytes]:
    """A value, and how it looks where a server echoes it in a URL, in JSON or in HTML."""
    seen = {value, quote(value, safe=""), quote(value), quote_plus(value), json.dumps(value)[1:-1], html.escape(value)}
    seen |= {quote(value, safe="").lower(), json.dumps(value)[1:-1].replace("/", "\\/")}
    return {text.encode() for text in seen}


def in_base64(text: str) -> set[bytes]:
    """As a login carries it; without the padding, which an echo may drop."""
    return {base64.b64encode(text.encode()).rstrip(b"=")}


def aligned_base64(value: str) -> set[bytes]:
    """What is seen of a value in the base64 of any text around it: the groups that are made of its bytes alone."""
    found = set()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value.encode()).rstrip(b"=")
        whole = encoded[4 if before else 0 : (before + len(value)) // 3 * 4]
        found |= {whole, whole.translate(bytes.maketrans(b"+/", b"-_"))}
    return {form for form in found if len(form) >= ALIGNED_LEAST}


class Patterns:
    """What is looked for. One for each sandbox and host: finding is the same for every stream."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = tuple(sorted({p for p in patterns if p}, key=len, reverse=True))
        self._longest = len(self._patterns[0]) - 1 if self._patterns else 0
        self._small: Patterns | None = None
        self._letters = _PRINTABLE + bytes({byte for p in self._patterns for byte in p} - set(_PRINTABLE))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def with_more(self, patterns: Iterable[bytes]) -> Patterns:
        return Patterns((*self._patterns, *patterns))

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Every occurrence, also those that overlap."""
        found = []
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = data.find(pattern, at + 1)
        return found

    def open_end(self, data: bytes) -> int:
        """How many bytes at the end of `data` are held back, because they may be the beginning of an occurrence. What
        they are is not asked, only whether they could be of any: were it the right ones that wait and wrong ones that
        go on, whoever can have guesses echoed would read a secret from that, one letter after the other."""
        last = data[max(0, len(data) - self._longest) :]
        return len(last) - len(last.rstrip(self._letters))

    def mask_name(self, name: bytes) -> bytes:
        """A header's name: it comes in small letters, whatever it was."""
        if self._small is None:
            self._small = Patterns(pattern.lower() for pattern in self._patterns)
        return self._small.mask(name.lower())

    def mask(self, data: bytes) -> bytes:
        """A text that is whole: a header's value, say."""
        spans = self.spans(data)
        return _starred(data, spans) if spans else data


def _starred(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = b"*" * (end - start)
    return bytes(out)


class Mask:
    """A stream from which the patterns are starred out, byte for byte, so that its length stays as announced.

    Its last word is held back until more comes, or its end."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._held = b""
        self._covered = 0  # of what is held, so much belongs to an occurrence already

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
        spans = self._patterns.spans(data)
        if self._covered:
            spans.append((0, self._covered))
        ready = len(data) - self._patterns.open_end(data)
        self._held = bytes(data[ready:])
        # What begins in the held part is found again with the next piece.
        crossing = [end - ready for start, end in spans if start < ready < end]
        self._covered = max(0, self._covered - ready, *crossing)
        if ready < len(data):
            return _starred(data, spans)[:ready]
        return _starred(data, spans) if spans else data

    def end(self) -> bytes:
        """What was held back, at the stream's end."""
        held = _starred(self._held, [*self._patterns.spans(self._held), (0, self._covered)])
        self._held, self._covered = b"", 0
        return held


class Tripwire:
    """Tells the first of some named texts that passes in a stream."""

    def __init__(self, named: dict[bytes, str]) -> None:
        self._named = named
        self._longest = max(map(len, named), default=0)
        self._tail = b""

    def feed(self, data: bytes) -> str | None:
        """The name of one that is complete with this piece. The piece must not be sent on then."""
        window = self._tail + data
        for text, name in self._named.items():
            if text in window:
                return name
        self._tail = bytes(window[-(self._longest - 1) :]) if self._longest > 1 else b""
        return None
