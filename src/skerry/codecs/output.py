"""Bounded output: the head and the tail of a stream. Pure."""

from __future__ import annotations

from skerry.types.processes import OUTPUT_KEPT


class HeadAndTail:
    """The first and the last bytes of a stream, and the number of bytes omitted between them.

    The tail is one buffer, not a list of pieces: a program that writes single bytes must not multiply the memory."""

    def __init__(self, limit: int = OUTPUT_KEPT) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        free = self._head_limit - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        if data:
            self._tail += data[-self._tail_limit :]
            if len(self._tail) > 2 * self._tail_limit:
                del self._tail[: -self._tail_limit]

    @property
    def omitted(self) -> int:
        return max(0, self._size - self._head_limit - self._tail_limit)

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        return bytes(self._tail[-self._tail_limit :])

    def value(self) -> bytes:
        mark = f"\n[skerry: {self.omitted} bytes left out here]\n".encode() if self.omitted else b""
        return self.head + mark + self.tail
