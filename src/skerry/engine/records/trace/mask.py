"""Values of secrets, masked in everything that a trace stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.network.worker.secrets.masking import aligned_base64, echoed_spellings, in_base64


class SecretMask:
    """The values of a sandbox's secrets, and their usual spellings. Every value that was ever seen stays masked."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._patterns: tuple[bytes, ...] = ()
        self.held = 0  # bytes at the end of a piece that may begin a value

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def add(self, values: Iterable[str]) -> None:
        fresh = set(values) - self._values
        if fresh:
            self._values |= fresh
            forms = {
                form
                for value in self._values
                for form in (*echoed_spellings(value), *in_base64(value), *aligned_base64(value))
            }
            self._patterns = tuple(sorted(forms, key=len, reverse=True))
            self.held = len(self._patterns[0]) - 1

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        found = []
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = data.find(pattern, at + 1)
        return found

    def bytes(self, data: bytes) -> tuple[bytes, int]:
        """Return the data with masked values, and the number of masked bytes."""
        spans = self.spans(data)
        if not spans:
            return data, 0
        out = bytearray(data)
        for start, end in spans:
            out[start:end] = b"*" * (end - start)
        return bytes(out), out.count(b"*") - data.count(b"*")


class MaskedStream:
    """Masks a stream, however its pieces are cut: the end of each piece waits for the next one."""

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask
        self._held = b""
        self._before = 0  # bytes at the start of `_held` that belong to a value that began earlier
        self.masked = 0

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        return self._release(data, max(0, len(data) - self._mask.held))

    def end(self) -> bytes:
        return self._release(self._held, len(self._held))

    def _release(self, data: bytes, ready: int) -> bytes:
        spans = self._mask.spans(data)
        if self._before:
            spans.append((0, self._before))
        out = bytearray(data[:ready])
        for start, end in spans:
            if start < ready:
                out[start : min(end, ready)] = b"*" * (min(end, ready) - start)
        self._before = max((end - ready for start, end in spans if start < ready < end), default=0)
        self.masked += out.count(b"*") - data[:ready].count(b"*") if spans else 0
        self._held = data[ready:]
        return bytes(out)
