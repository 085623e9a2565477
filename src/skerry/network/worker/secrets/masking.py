"""Find known bytes in streams, however the pieces are cut: secrets in responses, which are masked, and placeholders in
requests, which block them. Pure."""

from __future__ import annotations

import base64
import functools
import html
import html.entities
import itertools
import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

from skerry.network.worker.http.filters import BlockedByFilter, FilterDenial

_PRINTABLE: Final = bytes(range(0x21, 0x7F))  # without line ends: at a line end, everything before it is released
MIN_ALIGNED: Final = 12  # shorter ones would match by chance
MAX_LEVELS: Final = 2  # escapes within escapes: a URL in JSON, a URL in a URL
_ENTITIES: Final = {
    name.rstrip(";").encode(): ord(char)
    for name, char in html.entities.html5.items()
    if len(char) == 1 and " " <= char <= "~"
}
# One escaped character: %2B and %u002B of URLs; \u002B, \u{2b}, \x2b, \053 and a backslash before punctuation, of JSON
# and programming languages; &#x2B;, &#43; and &plus; of HTML. The number of digits is bounded.
_HEX: Final = rb"[0-7][0-9A-Fa-f]"
_ESCAPE: Final = re.compile(
    rb"(%(?:u00)?[0-9A-Fa-f]{2}|\\u00" + _HEX + rb"|\\u\{0{0,4}[0-7]?[0-9A-Fa-f]\}|\\x" + _HEX
    + rb"|\\(?:0[4-7][0-7]|1[0-7]{2})|\\[!-/:-@\[-`{-~]|&#[xX]0{0,6}[0-7]?[0-9A-Fa-f](?![0-9A-Fa-f]);?"
    + rb"|&#0{0,6}[0-9]{1,3}(?![0-9]);?|&(?:" + b"|".join(_ENTITIES) + rb");)"
)  # fmt: skip
# The same in groups: hexadecimal, octal, decimal, one character, a name.
_GROUPS: Final = re.compile(
    rb"(?:%(?:u00)?|\\u\{?0*|\\x|&#[xX]0*)([0-9A-Fa-f]{1,2})[;}]?|\\([0-7]{3})|&#0*([0-9]{1,3});?|\\([!-/:-@\[-`{-~])"
    rb"|&([A-Za-z]+);"
)
_MAX_ESCAPE: Final = 24  # bytes of one character, escaped twice in the usual ways


def echoed_spellings(value: str) -> set[bytes]:
    """Return a value and its usual forms in a URL, in JSON and in HTML. Any other mixture of escapes is found by
    decoding (`_Level`); the forms here are for values that contain escapes themselves. In forms a blank becomes `+`,
    which a decoder cannot distinguish from a plus sign."""
    seen = {value, quote(value, safe=""), quote(value), quote_plus(value), json.dumps(value)[1:-1], html.escape(value)}
    seen |= {quote(value, safe="").lower(), json.dumps(value)[1:-1].replace("/", "\\/"), value.replace(" ", "+")}
    return {text.encode() for text in seen}


def in_base64(text: str) -> set[bytes]:
    """Return the base64 of a login, without the padding, which an echo may drop."""
    return {base64.b64encode(text.encode()).rstrip(b"=")}


def aligned_base64(value: str) -> set[bytes]:
    """Return the parts of a value's base64 that do not depend on the text around it: the groups made of its bytes
    only."""
    found = set()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value.encode()).rstrip(b"=")
        whole = encoded[4 if before else 0 : (before + len(value)) // 3 * 4]
        found |= {whole, whole.translate(bytes.maketrans(b"+/", b"-_"))}
    return {form for form in found if len(form) >= MIN_ALIGNED}


class _Level:
    """A text with its escapes decoded once, and the way back to positions in the original text. `below`: the level that
    is decoded once more. Bodies can be full of escapes: positions are computed only for an occurrence."""

    def __init__(self, original: bytes, below: _Level | None = None) -> None:
        self._below = below
        self._parts = _ESCAPE.split(original if below is None else below.text)  # plain text and escapes in turn
        self._decoded = self._parts.copy()
        self._decoded[1::2] = map(_decode, self._parts[1::2])
        self.text: bytes = b"".join(self._decoded)

    def original(self, at: int) -> int:
        """Return the position in the original text at which the character at `at` begins."""
        part = bisect_right(self._ends, at)
        before = self._original_ends[part - 1] + at - self._ends[part - 1] if part else at
        return before if self._below is None else self._below.original(before)

    @functools.cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(map(len, self._decoded)))

    @functools.cached_property
    def _original_ends(self) -> list[int]:
        return list(itertools.accumulate(map(len, self._parts)))


@functools.lru_cache(maxsize=4096)
def _decode(escape: bytes) -> bytes:
    """Return the escaped character; a number that is not ASCII stays."""
    match = _GROUPS.fullmatch(escape)
    kind = match.lastindex if match is not None else None
    if match is None or kind is None:
        return escape
    if kind == 4:
        return match[kind]
    number = _ENTITIES[match[kind]] if kind == 5 else int(match[kind], {1: 16, 2: 8, 3: 10}[kind])
    return bytes((number,)) if number < 128 else escape


def _may_have_escapes(text: bytes) -> bool:
    return b"%" in text or b"\\" in text or b"&" in text


def _levels(data: bytes) -> Iterator[_Level]:
    """Yield the text with its escapes decoded once, then twice, as long as there are any."""
    level: _Level | None = None
    for _ in range(MAX_LEVELS):
        text = data if level is None else level.text
        if not _may_have_escapes(text):
            return
        level = _Level(data, level)
        if level.text == text:
            return
        yield level


class SecretPatterns:
    """The texts to find, plain or with any of their characters escaped (`_ESCAPE`). One object per sandbox and host;
    all its streams share it."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = tuple(sorted({p for p in patterns if p}, key=len, reverse=True))
        self._longest = len(self._patterns[0]) - 1 if self._patterns else 0
        self._lower: SecretPatterns | None = None
        self._pattern_bytes = _PRINTABLE + bytes({byte for p in self._patterns for byte in p} - set(_PRINTABLE))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def with_more(self, patterns: Iterable[bytes]) -> SecretPatterns:
        return SecretPatterns((*self._patterns, *patterns))

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return every occurrence, overlapping ones too."""
        found = list(self._plain_spans(data))
        for level in _levels(data):
            found += ((level.original(a), level.original(b)) for a, b in self._plain_spans(level.text))
        return found

    def _plain_spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                yield at, at + len(pattern)
                at = data.find(pattern, at + 1)

    def held_back(self, data: bytes) -> int:
        """Return how many bytes at the end of `data` to hold back, because they may begin an occurrence. This depends
        only on whether the bytes could belong to any pattern: if only matching bytes were held back and others passed,
        a caller that can have guesses echoed could read a secret from the delay, letter by letter."""
        # the last character may be incomplete, and then each byte of its escape counts as a character
        held = self._longest + _MAX_ESCAPE
        last = data[max(0, len(data) - held * _MAX_ESCAPE) :]
        run = len(last) - len(last.rstrip(self._pattern_bytes))
        last = last[len(last) - run :]
        if not _may_have_escapes(last):
            return min(run, self._longest)
        level = deque(_levels(last), maxlen=1)
        return run - level[0].original(max(0, len(level[0].text) - held)) if level else min(run, held)

    def mask_name(self, name: bytes) -> bytes:
        """Mask a header's name, which is always in lower case."""
        if self._lower is None:
            self._lower = SecretPatterns(pattern.lower() for pattern in self._patterns)
        return self._lower.mask(name.lower())

    def mask(self, data: bytes) -> bytes:
        """Mask a complete text, such as a header's value."""
        spans = self.spans(data)
        return _mask_spans(data, spans) if spans else data


def _mask_spans(data: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = b"*" * (end - start)
    return bytes(out)


class StreamMask:
    """Masks the patterns in a stream byte for byte, so that its length does not change.

    Its last word is held back until more data or the end comes.
    """

    def __init__(self, patterns: SecretPatterns) -> None:
        self._patterns = patterns
        self._held = b""
        self._masked = 0  # bytes of the held part that belong to an occurrence already found

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
        spans = self._patterns.spans(data)
        if self._masked:
            spans.append((0, self._masked))
        ready = len(data) - self._patterns.held_back(data)
        self._held = bytes(data[ready:])
        # An occurrence that begins in the held part is found again with the next piece.
        crossing = [end - ready for start, end in spans if start < ready < end]
        self._masked = max(0, self._masked - ready, *crossing)
        if ready < len(data):
            return _mask_spans(data, spans)[:ready]
        return _mask_spans(data, spans) if spans else data

    def end(self) -> bytes:
        """Return the held bytes at the stream's end."""
        held = _mask_spans(self._held, [*self._patterns.spans(self._held), (0, self._masked)])
        self._held, self._masked = b"", 0
        return held


class TextDetector:
    """Finds the first of some named texts that passes in a stream."""

    def __init__(self, named: dict[bytes, str]) -> None:
        self._names = named
        self._longest = max(map(len, named), default=0)
        self._tail = b""

    def feed(self, data: bytes) -> str | None:
        """Return the name of a text that this piece completes. Then the piece must not be sent."""
        window = self._tail + data
        for text, name in self._names.items():
            if text in window:
                return name
        self._tail = bytes(window[-(self._longest - 1) :]) if self._longest > 1 else b""
        return None


_RESERVED: Final = 0x70  # extensions, none of which was negotiated
_MASKED: Final = 0x80
_FINAL: Final = 0x80
_CONTROL: Final = 0x08
_LENGTHS: Final = {126: 2, 127: 8}
_MAX_MARKS: Final = 1024


class FrameMask:
    """Masks a server's WebSocket frames message by message; nothing is held back beyond a message's end. A message that
    ends in a word would otherwise wait for the next one, which its receiver may first have to request. Within a message
    a secret may span frames."""

    same_length = True

    def __init__(self, patterns: SecretPatterns) -> None:
        self._patterns = patterns
        self._mask = StreamMask(patterns)
        self._head = bytearray()
        self._left = 0  # of the frame's payload
        self._final = True
        self._control: tuple[bytes, bytearray] | None = None  # head and payload of a frame in progress
        self._received = self._emitted = 0  # of the message's payload
        # heads and control frames that follow so many bytes of payload, some of which are held back
        self._marks: deque[tuple[int, bytes]] = deque()

    def feed(self, data: bytes) -> bytes:
        out = bytearray()
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self._payload(bytes(piece), out)
            else:
                self._head.append(view[0])
                view = view[1:]
                self._begin_frame(out)
        return bytes(out)

    def end(self) -> bytes:
        out = bytearray()
        self._emit(self._mask.end(), out)
        return bytes(out)

    def _begin_frame(self, out: bytearray) -> None:
        """Begin the payload once the head is complete."""
        head = self._head
        if len(head) < 2:
            return
        if head[0] & _RESERVED or head[1] & _MASKED:
            raise _unmaskable()
        extra = _LENGTHS.get(head[1], 0)
        if len(head) < 2 + extra:
            return
        self._left = int.from_bytes(head[2:]) if extra else head[1]
        if not head[0] & _CONTROL:
            self._final = bool(head[0] & _FINAL)
            self._emit_aside(bytes(head), out)
        elif extra or not head[0] & _FINAL:
            raise _unmaskable()
        else:
            self._control = (bytes(head), bytearray())
        head.clear()
        if not self._left:
            self._end_frame(out)

    def _payload(self, piece: bytes, out: bytearray) -> None:
        if self._control is not None:
            self._control[1].extend(piece)
        else:
            self._received += len(piece)
            self._emit(self._mask.feed(piece), out)
        if not self._left:
            self._end_frame(out)

    def _end_frame(self, out: bytearray) -> None:
        if self._control is not None:
            head, payload = self._control
            self._control = None
            self._emit_aside(head + self._patterns.mask(bytes(payload)), out)
        elif self._final:
            self._emit(self._mask.end(), out)
            self._received = self._emitted = 0

    def _emit_aside(self, data: bytes, out: bytearray) -> None:
        if self._emitted == self._received:
            out += data
            return
        if len(self._marks) >= _MAX_MARKS:
            raise _unmaskable()
        self._marks.append((self._received, data))

    def _emit(self, data: bytes, out: bytearray) -> None:
        while self._marks and self._marks[0][0] <= self._emitted + len(data):
            at, mark = self._marks.popleft()
            out += data[: at - self._emitted]
            out += mark
            data, self._emitted = data[at - self._emitted :], at
        out += data
        self._emitted += len(data)


def _unmaskable() -> BlockedByFilter:
    return BlockedByFilter(
        FilterDenial(why="it sent WebSocket frames in which a secret could not be masked", status=502)
    )
