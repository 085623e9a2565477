"""What a caller may give as a file's content or a command's stdin."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from skerry.errors import InvalidRequest

Source = str | bytes | bytearray | memoryview | IO[bytes] | IO[str] | Iterable[bytes] | Iterable[str]
PIECE = 256 << 10


def whole(source: object) -> bytes | None:
    """The bytes of what is in memory already; None for what has to be read."""
    if isinstance(source, str):
        return source.encode()
    return bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else None


def pieces(source: Source) -> Iterator[bytes]:
    """Piece by piece, never all in memory; an empty piece is left out, since it would end a chunked body. Of a file
    whose size is known, neither more nor less is given than it said."""
    known, size = whole(source), size_of(source)
    if known is not None:
        yield from (known[at : at + PIECE] for at in range(0, len(known), PIECE))
    elif size is not None:
        yield from _exactly(cast("BinaryIO", source), size)
    else:
        yield from _whatever(source)


def _exactly(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        piece = source.read(min(size, PIECE))
        if not piece:
            raise InvalidRequest("content: the file became shorter while it was read")
        size -= len(piece)
        yield piece


def _whatever(source: Any) -> Iterator[bytes]:
    for piece in _read(source) if hasattr(source, "read") else source:
        data = whole(piece)
        if data is None:
            raise InvalidRequest(f"content: a piece is a {type(piece).__name__}, not bytes or str")
        if data:
            yield data


def _read(source: Any) -> Iterator[Any]:
    # read1 gives what is there: a command that answers its stdin line by line must not wait for a full buffer.
    read = getattr(source, "read1", source.read)
    while piece := read(PIECE):
        yield piece


def size_of(source: object) -> int | None:
    """How many bytes a regular file of this host has left to read; None for whatever else. Only for what `open` gives:
    a GzipFile has a descriptor too, and it is that of other bytes."""
    raw = source.raw if type(source) in (io.BufferedReader, io.BufferedRandom) else source  # type: ignore[attr-defined]
    if type(raw) is not io.FileIO:
        return None
    try:
        found = os.fstat(raw.fileno())
        left = found.st_size - cast("BinaryIO", source).tell()
    except (OSError, ValueError):
        return None
    # those of /proc say that they are empty
    return max(0, left) if stat.S_ISREG(found.st_mode) and found.st_size else None


def cut(offset: int, length: int | None) -> Callable[[bytes], bytes]:
    """Cuts a part out of pieces that come one after the other."""
    at = 0

    def part(piece: bytes) -> bytes:
        nonlocal at
        start, at = at, at + len(piece)
        end = at if length is None else min(at, offset + length)
        return piece[max(0, offset - start) : max(0, end - start)]

    return part


def check_source(source: object) -> None:
    """A clear refusal before anything is sent."""
    if whole(source) is None and not any(hasattr(source, name) for name in ("read", "__iter__", "__aiter__")):
        raise InvalidRequest(
            f"content: a {type(source).__name__} can't be sent",
            hint="give str, bytes, a file object or an iterable of bytes",
        )


def open_host_file(path: str | os.PathLike[str]) -> tuple[BinaryIO, int]:
    """A regular file of this host, and its permission bits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not keep us waiting
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"files: {os.fspath(path)!r}: {getattr(error, 'strerror', error)}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InvalidRequest(f"files: {os.fspath(path)!r} is not a regular file")
    return os.fdopen(descriptor, "rb"), stat.S_IMODE(mode) & 0o777


def check_contents(contents: Iterable[object]) -> None:
    """Each can be sent, and each file of this host can be read: said before a sandbox is made for them."""
    for content in contents:
        if isinstance(content, os.PathLike):
            open_host_file(content)[0].close()
        else:
            check_source(content)
