"""Frames: one byte of type, four of length (big-endian), the payload. Bytes in, frames out; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from skerry.keeper.failures import KeeperLied

STDOUT: Final = 1
STDERR: Final = 2
EXIT: Final = 3
STARTED: Final = 4
MISSING: Final = 5
PAUSE: Final = 6
CHANNEL: Final = 7
TURNED: Final = 8
SHUT: Final = 9
STDIN: Final = 10
STDIN_EOF: Final = 11
SIGNAL: Final = 12
RESIZE: Final = 13
OVER: Final = 14

AS_IS: Final = 0  # not on the wire: output frames
HEAD: Final = 5
MAX_PAYLOAD: Final = 1 << 20
OUTPUT: Final = {STDOUT: "stdout", STDERR: "stderr"}


class Kinds(NamedTuple):
    """What a keeper may send on a connection: output, which comes in parts; all; and what is the last."""

    output: frozenset[int]
    known: frozenset[int]
    last: frozenset[int]


RUN: Final = Kinds(
    frozenset((STDOUT, STDERR)),
    frozenset((STDOUT, STDERR, EXIT, STARTED, MISSING, PAUSE)),
    frozenset((EXIT, PAUSE)),
)
JOURNAL: Final = Kinds(RUN.output | {CHANNEL}, RUN.known | {CHANNEL}, RUN.last)
TURN: Final = Kinds(JOURNAL.output, JOURNAL.known - {PAUSE} | {TURNED, SHUT}, frozenset((EXIT, TURNED)))


def encode(kind: int, payload: bytes = b"") -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ValueError("a frame holds at most 1 MiB")
    return _head(kind, len(payload)) + payload


def _head(kind: int, size: int) -> bytes:
    return kind.to_bytes(1, "big") + size.to_bytes(4, "big")


def encode_stdin(data: bytes) -> Iterator[bytes]:
    """As many frames as the data needs; none for none."""
    view = memoryview(data)
    for start in range(0, len(view), MAX_PAYLOAD):
        yield encode(STDIN, bytes(view[start : start + MAX_PAYLOAD]))


class Decoder:
    """The frames of a process: bytes in as they come, frames out. Output comes as it does, a frame perhaps in parts, so
    that nothing waits and little is copied; all else comes whole. After the last frame the rest is not looked at."""

    def __init__(self, kinds: Kinds = RUN) -> None:
        self.rest = b""
        self._kinds = kinds
        self.waiting: deque[tuple[int, bytes]] = deque()
        self._lie: KeeperLied | None = None
        self._head = bytearray()  # of the next frame, or all of one that is not output
        self._kind = 0
        self._left = 0  # of an output frame
        self._over = False
        self._as_is = False
        self._parts: list[bytes | memoryview] = []

    def next(self) -> tuple[int, bytes] | None:
        """The next frame; None: feed it first."""
        if self.waiting:
            return self.waiting.popleft()
        if self._lie is not None:
            raise self._lie
        return None

    @property
    def unfinished(self) -> bool:
        return bool(self._left or self._head)

    def pass_on(self) -> None:
        """From now on output comes as whole frames, many at a time: (AS_IS, bytes)."""
        self._as_is = True
        self.waiting = deque((AS_IS, encode(*frame)) if frame[0] in OUTPUT else frame for frame in self.waiting)

    def feed(self, data: bytes) -> None:
        try:
            if self._as_is:
                self._look(data)
            else:
                self._split(data)
        except KeeperLied as lie:
            self._lie = lie  # after what came before it

    def _split(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size and not self._over:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                self.waiting.append((self._kind, part))
            else:
                at = self._begin(data, at)
        self.rest += data[at:]

    def _look(self, data: bytes) -> None:
        """Whole frames stay as they are; one of which only a part is here becomes a frame of that part, so that what
        follows is a frame in any case; a head that was cut in two goes in front again."""
        if 0 < len(self._head) < HEAD:
            data = bytes(self._head) + data
            self._head.clear()
        self._parts, view = [], memoryview(data)
        start = at = self._part(view, 0) if self._left else 0
        try:
            while at < len(view) and not self._over:
                if self._head or data[at] not in OUTPUT:
                    self._flush(view[start:at])
                    start = at
                    start = at = min(self._begin(data, at), len(view))
                elif len(view) - at < HEAD:
                    break
                else:
                    kind, size = _check(data[at : at + HEAD], self._kinds)
                    if at + HEAD + size <= len(view):
                        at += HEAD + size
                        continue
                    self._parts.append(view[start:at])
                    self._kind, self._left = kind, size
                    start = at = self._part(view, at + HEAD)
        except KeeperLied:
            self._flush(view[start:at])
            raise
        self._flush(view[start:at])
        if self._over:
            self.rest += data[at:]
        else:
            self._head += data[at:]

    def _part(self, view: memoryview, at: int) -> int:
        """A frame of what is here of an output frame."""
        part = view[at : at + self._left]
        self._left -= len(part)
        if part:
            self._parts += (_head(self._kind, len(part)), part)
        return at + len(part)

    def _flush(self, more: memoryview) -> None:
        self._parts.append(more)
        if data := b"".join(self._parts):
            self.waiting.append((AS_IS, data))
        self._parts = []

    def _begin(self, data: bytes, at: int) -> int:
        """Takes a head, and the payload of what is not output; returns where to go on."""
        head = self._head
        if len(head) < HEAD:
            head += data[at : (at := at + HEAD - len(head))]
            if len(head) < HEAD:
                return at
        kind, size = _check(head, self._kinds)
        if kind in self._kinds.output:
            self._kind, self._left = kind, size
            head.clear()
            return at
        head += data[at : (at := at + HEAD + size - len(head))]
        if len(head) == HEAD + size:
            self.waiting.append((kind, bytes(head[HEAD:])))
            self._over = kind in self._kinds.last
            head.clear()
        return at


def _check(head: bytes | bytearray, kinds: Kinds = RUN) -> tuple[int, int]:
    kind, size = head[0], int.from_bytes(head[1:HEAD], "big")
    if kind not in kinds.known or size > MAX_PAYLOAD or size == 0:
        raise KeeperLied(f"the keeper sent a bad frame (type {kind}, {size} bytes)")
    return kind, size


def decode(buffer: bytearray) -> tuple[int, bytes] | None:
    """Takes the next frame off the buffer's front, or returns None if it is not whole yet. A bad head raises at once,
    so the buffer never has to hold more than one payload."""
    if len(buffer) < HEAD:
        return None
    kind, size = _check(buffer)
    if len(buffer) < HEAD + size:
        return None
    payload = bytes(memoryview(buffer)[HEAD : HEAD + size])
    del buffer[: HEAD + size]
    return kind, payload
