"""Read untrusted streams, plain or compressed, with a limit on the output. The first bytes determine the format."""

from __future__ import annotations

import hashlib
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from skerry.images.archive.tar import Damaged

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_IN: Final = 256 << 10
_OUT: Final = 1 << 20
_LZMA_MEMORY: Final = 256 << 20
_ZSTD_WINDOW: Final = 27  # 128 MiB, which every decoder must support
_FREE: Final = 1 << 30  # output that is allowed for any input size
_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decoder with the interface of the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._full = False  # it may hold more output than it was allowed to return

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not (self._zlib.unconsumed_tail or self._full)

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self._full = len(out) == max_length
        return out


def _zstd() -> _Decoder:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW})


def _lzma() -> _Decoder:
    return lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)


class DecompressedStream:
    """The decompressed content of a file descriptor. `came` counts input bytes, `gave` output bytes; `digest` covers
    the output, and is complete once `drain` has read the rest."""

    def __init__(self, fd: int, most: int, ratio: int, tick: Callable[[], None] = lambda: None) -> None:
        self._fd, self._max_bytes, self._ratio, self._tick = fd, most, ratio, tick
        self.came = self.gave = 0
        self._hash = hashlib.sha256()
        first = self._take()
        self._make = _decoder(first)
        self.compressed = self._make is not None
        self._pieces = self._decoded(first) if self._make is not None else self._plain(first)
        self._held = bytearray()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def read(self, size: int) -> bytes:
        held = self._held
        while len(held) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._account(piece)
            held += piece
        out = bytes(memoryview(held)[:size])
        del held[: len(out)]
        return out

    def drain(self) -> None:
        """Read to the end, past the end of the archive: truncated or forged data shows there."""
        self._held.clear()
        for piece in self._pieces:
            self._account(piece)

    def _account(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.gave += len(piece)
        if self.gave > self._max_bytes:
            raise Damaged(f"the archive holds more than {self._max_bytes} bytes")
        if self.gave > max(_FREE, self._ratio * self.came):
            raise Damaged(f"the archive is a decompression bomb: {self.came} bytes became {self.gave} so far")
        self._tick()

    def _take(self) -> bytes:
        """Read a piece of input; the first one is long enough to detect the format, even from a slow pipe."""
        data = os.read(self._fd, _IN)
        while 0 < self.came + len(data) < len(_XZ) and (more := os.read(self._fd, _IN)):
            data += more
        self.came += len(data)
        return data

    def _plain(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield data
            data = self._take()

    def _decoded(self, data: bytes) -> Iterator[bytes]:
        """Decode consecutive members or frames: pigz, eStargz and zstd:chunked write several."""
        assert self._make is not None  # noqa: S101 - asked before
        while data:
            decoder = self._make()
            yield from self._member(decoder, data)
            data = decoder.unused_data or self._take()
            if not data.strip(b"\0"):
                data = b""  # tape padding

    def _member(self, decoder: _Decoder, data: bytes) -> Iterator[bytes]:
        try:
            while True:
                out = decoder.decompress(data, _OUT)
                if out:
                    yield out
                if decoder.eof:
                    return
                data = self._take() if decoder.needs_input else b""
                if decoder.needs_input and not data:
                    raise Damaged("the compressed archive is truncated")
        except (zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError) as error:
            raise Damaged(f"the compressed archive is damaged: {error}") from None


def _decoder(first: bytes) -> Callable[[], _Decoder] | None:
    if first.startswith(_GZIP):
        return _Gzip
    if first.startswith(_XZ):
        return _lzma
    skippable = first[1:4] == b"\x2a\x4d\x18" and 0x50 <= first[0] <= 0x5F
    return _zstd if first.startswith(_ZSTD) or skippable else None
