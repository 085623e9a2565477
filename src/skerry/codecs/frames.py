"""Framed streams: one byte of kind, four bytes of length (big-endian), then the payload. Pure and bounded.

Keeper, server and client share this format. The constants here are the kinds that the server sends to clients; the
keeper has other kinds (`skerry.keeper.frames`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skerry.errors import SkerryError

STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE, RESULT = 1, 2, 3, 4, 5, 6, 7, 8
OUTPUT: Final = frozenset((STDOUT, STDERR))
RAW: Final = 0  # never sent: a run of encoded output frames, see `FrameDecoder.keep_raw`
HEADER_SIZE: Final = 5
MAX_PAYLOAD: Final = 1 << 20
MAX_RESULT: Final = 64 << 20  # RESULT holds pictures of code, and EXIT the files that the code wrote
MEDIA_TYPE: Final = "application/vnd.skerry.frames"
_HEADER: Final = struct.Struct(">BI")


class FrameKinds(NamedTuple):
    """The frames that a peer may send on a connection.

    `output` frames are delivered in parts; `last` ends the stream; `large` may have MAX_RESULT bytes; `error` makes the
    exception for a bad header from its kind and length."""

    output: frozenset[int]
    known: frozenset[int]
    last: frozenset[int]
    error: Callable[[int, int], SkerryError]
    large: frozenset[int] = frozenset()
    may_be_empty: bool = False


def _bad_server_frame(kind: int, size: int) -> SkerryError:
    return SkerryError(
        f"the server sent an invalid frame of kind {kind} and {size} bytes",
        hint="is the server of the same version? `skerry server status` shows it",
    )


SERVER: Final = FrameKinds(
    OUTPUT,
    OUTPUT | {EXIT, STARTED, ERROR, MISSING, PAUSE, RESULT},
    frozenset(),
    _bad_server_frame,
    large=frozenset((RESULT, EXIT)),
    may_be_empty=True,
)


def encode(kind: int, payload: bytes = b"") -> bytes:
    if len(payload) > (MAX_RESULT if kind in (RESULT, EXIT) else MAX_PAYLOAD):
        raise ValueError(f"a frame of kind {kind} cannot hold {len(payload)} bytes")
    return _HEADER.pack(kind, len(payload)) + payload


def encode_parts(kind: int, data: bytes) -> Iterator[bytes]:
    """Yield as many frames as the data needs; none for no data."""
    view = memoryview(data)
    for start in range(0, len(view), MAX_PAYLOAD):
        yield encode(kind, bytes(view[start : start + MAX_PAYLOAD]))


def check_header(header: bytes | bytearray, kinds: FrameKinds) -> tuple[int, int]:
    """Return the kind and the payload's length."""
    kind, size = header[0], int.from_bytes(header[1:HEADER_SIZE], "big")
    limit = MAX_RESULT if kind in kinds.large else MAX_PAYLOAD
    if kind not in kinds.known or size > limit or (size == 0 and not kinds.may_be_empty):
        raise kinds.error(kind, size)
    return kind, size


def take(buffer: bytearray, kinds: FrameKinds) -> tuple[int, bytes] | None:
    """Take the next frame off the front of the buffer, or return None if it is incomplete. A bad header raises at once,
    so the buffer never has to hold more than one payload."""
    if len(buffer) < HEADER_SIZE:
        return None
    kind, size = check_header(buffer, kinds)
    if len(buffer) < HEADER_SIZE + size:
        return None
    payload = bytes(memoryview(buffer)[HEADER_SIZE : HEADER_SIZE + size])
    del buffer[: HEADER_SIZE + size]
    return kind, payload


class FrameDecoder:
    """Decode frames from bytes as they arrive.

    Output arrives in parts as it comes, so that it never waits for the rest of its frame and little is copied; other
    frames arrive whole. The decoder holds at most one unfinished frame that is not output. After the last frame it
    keeps further bytes in `rest` without decoding them."""

    def __init__(self, kinds: FrameKinds = SERVER) -> None:
        self.rest = b""
        self._kinds = kinds
        self.waiting: deque[tuple[int, bytes]] = deque()
        self._error: SkerryError | None = None
        self._head = bytearray()  # the next header, or all of a frame that is not output
        self._kind = 0
        self._left = 0  # missing bytes of an output frame
        self._ended = False
        self._raw = False
        self._parts: list[bytes | memoryview] = []

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes and yield the frames that they complete."""
        self.push(data)
        while (frame := self.next()) is not None:
            yield frame

    def next(self) -> tuple[int, bytes] | None:
        """Return the next frame, or None if more bytes are needed. Raise an error after the frames before it."""
        if self.waiting:
            return self.waiting.popleft()
        if self._error is not None:
            raise self._error
        return None

    @property
    def unfinished(self) -> bool:
        return bool(self._left or self._head)

    def keep_raw(self) -> None:
        """From now on deliver output as whole frames, many at a time: (RAW, bytes)."""
        self._raw = True
        self.waiting = deque((RAW, encode(*frame)) if frame[0] in OUTPUT else frame for frame in self.waiting)

    def push(self, data: bytes) -> None:
        """Add bytes; `next` returns the frames."""
        try:
            if self._raw:
                self._scan(data)
            else:
                self._split(data)
        except SkerryError as error:
            self._error = error

    def _split(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size and not self._ended:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                self.waiting.append((self._kind, part))
            else:
                at = self._begin(data, at)
        self.rest += data[at:]

    def _scan(self, data: bytes) -> None:
        """Leave whole frames encoded. Re-encode an incomplete frame as a frame of the bytes that arrived, so that the
        following bytes always start a frame; put a header that was cut in two back in front."""
        if 0 < len(self._head) < HEADER_SIZE:
            data = bytes(self._head) + data
            self._head.clear()
        self._parts, view = [], memoryview(data)
        start = at = self._part(view, 0) if self._left else 0
        try:
            while at < len(view) and not self._ended:
                if self._head or data[at] not in OUTPUT:
                    self._flush(view[start:at])
                    start = at
                    start = at = min(self._begin(data, at), len(view))
                elif len(view) - at < HEADER_SIZE:
                    break
                else:
                    kind, size = check_header(data[at : at + HEADER_SIZE], self._kinds)
                    if at + HEADER_SIZE + size <= len(view):
                        at += HEADER_SIZE + size
                        continue
                    self._parts.append(view[start:at])
                    self._kind, self._left = kind, size
                    start = at = self._part(view, at + HEADER_SIZE)
        except SkerryError:
            self._flush(view[start:at])
            raise
        self._flush(view[start:at])
        if self._ended:
            self.rest += data[at:]
        else:
            self._head += data[at:]

    def _part(self, view: memoryview, at: int) -> int:
        """Make a frame of the available bytes of an output frame; return the position after them."""
        part = view[at : at + self._left]
        self._left -= len(part)
        if part:
            self._parts += (_HEADER.pack(self._kind, len(part)), part)
        return at + len(part)

    def _flush(self, more: memoryview) -> None:
        self._parts.append(more)
        if data := b"".join(self._parts):
            self.waiting.append((RAW, data))
        self._parts = []

    def _begin(self, data: bytes, at: int) -> int:
        """Take a header, and the payload unless the frame is output; return the position after them."""
        head = self._head
        if len(head) < HEADER_SIZE:
            head += data[at : (at := at + HEADER_SIZE - len(head))]
            if len(head) < HEADER_SIZE:
                return at
        kind, size = check_header(head, self._kinds)
        if kind in self._kinds.output:
            self._kind, self._left = kind, size
            head.clear()
            return at
        head += data[at : (at := at + HEADER_SIZE + size - len(head))]
        if len(head) == HEADER_SIZE + size:
            self.waiting.append((kind, bytes(head[HEADER_SIZE:])))
            self._ended = kind in self._kinds.last
            head.clear()
        return at
