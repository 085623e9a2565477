"""The values that a caller can pass as the content of a file or the stdin of a command."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO, cast

from skerry.client.host.posix import NAMED_FILE
from skerry.errors import InvalidRequest
from skerry.types import check_path

Source = str | bytes | bytearray | memoryview | IO[bytes] | IO[str] | Iterable[bytes] | Iterable[str]
PIECE = 256 << 10


def whole(source: object) -> bytes | None:
    """Return the bytes of a value that is in memory; None if it must be read."""
    if isinstance(source, str):
        return source.encode()
    return bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else None


def pieces(source: Source) -> Iterator[bytes]:
    """Yield the content in pieces, never all in memory. Empty pieces are skipped, because one would end a chunked body.
    For a file of known size, exactly that many bytes are sent."""
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
    # read1 returns the available bytes: a command that answers its stdin line by line must not wait for a full buffer.
    read = getattr(source, "read1", source.read)
    while piece := read(PIECE):
        yield piece


def size_of(source: object) -> int | None:
    """Return the number of bytes left in a regular file of this host; None for anything else. Only for objects from
    `open`: a GzipFile has a descriptor too, but of different bytes."""
    raw = source.raw if type(source) in (io.BufferedReader, io.BufferedRandom) else source  # type: ignore[attr-defined]
    if type(raw) is not io.FileIO:
        return None
    try:
        found = os.fstat(raw.fileno())
        left = found.st_size - cast("BinaryIO", source).tell()
    except (OSError, ValueError):
        return None
    # files in /proc report a size of 0
    return max(0, left) if stat.S_ISREG(found.st_mode) and found.st_size else None


def cut(offset: int, length: int | None) -> Callable[[bytes], bytes]:
    """Return a function that cuts a range out of consecutive pieces."""
    at = 0

    def part(piece: bytes) -> bytes:
        nonlocal at
        start, at = at, at + len(piece)
        end = at if length is None else min(at, offset + length)
        return piece[max(0, offset - start) : max(0, end - start)]

    return part


def check_source(source: object) -> None:
    """Reject an unsupported content before anything is sent."""
    try:
        known = whole(source)
    except UnicodeEncodeError:
        raise InvalidRequest("content: not valid Unicode", hint="pass it as bytes") from None
    if known is None and not any(hasattr(source, name) for name in ("read", "__iter__", "__aiter__")):
        raise InvalidRequest(
            f"content: a {type(source).__name__} cannot be sent",
            hint="pass str, bytes, a file object or an iterable of bytes",
        )


def open_host_file(path: str | os.PathLike[str]) -> tuple[BinaryIO, int]:
    """Open a regular file of this host; return it with its permission bits."""
    try:
        descriptor = os.open(path, NAMED_FILE)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"files: {os.fspath(path)!r}: {getattr(error, 'strerror', error)}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InvalidRequest(f"files: {os.fspath(path)!r} is not a regular file")
    return os.fdopen(descriptor, "rb"), stat.S_IMODE(mode) & 0o777


def check_files(files: Mapping[str, object]) -> None:
    """Check the paths and the contents of files for a new sandbox."""
    if not isinstance(files, Mapping):
        raise InvalidRequest("files: not a mapping of paths to contents", hint='files={"data.csv": "1,2"}')
    for place in files:
        if not isinstance(place, str):
            raise InvalidRequest(f"files: {place!r} is not a path inside", hint='files={"data.csv": "1,2"}')
        check_path("files", place)
    check_contents(files.values())


def check_contents(contents: Iterable[object]) -> None:
    """Check that each content can be sent and each file of this host can be read, before a sandbox is created."""
    for content in contents:
        if isinstance(content, os.PathLike):
            open_host_file(content)[0].close()
        else:
            check_source(content)
