"""Traces as bytes: their lines, and the file of an exported trace. No I/O beyond an open file that the caller passes.

An exported trace is a tar archive with exactly these regular files, in this order, without compression:

manifest.json        `TraceManifest`
steps.ndjson         the lines of the trace
blobs/SHA256         contents by hash, sorted; one of them may be the cassette of the network

A file from elsewhere is untrusted: names, order, sizes and hashes are checked, and nothing is unpacked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Final

import msgspec
from msgspec.structs import replace

from skerry.codecs import tar
from skerry.errors import InvalidRequest
from skerry.types.traces import TRACE_FORMAT, TraceContent, TraceEnd, TraceManifest, TraceStep

MAX_LINE: Final = 256 << 10
MAX_STEPS: Final = 200_000
MAX_STEPS_SIZE: Final = 64 << 20
MAX_BLOBS: Final = 200_000
MAX_BLOB: Final = 1 << 30
MAX_MANIFEST: Final = 32 << 20
MANIFEST, STEPS, BLOBS = b"manifest.json", b"steps.ndjson", b"blobs/"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PIECE: Final = 1 << 20

_encoder = msgspec.json.Encoder()
_step = msgspec.json.Decoder(TraceStep)
_end = msgspec.json.Decoder(TraceEnd)
_manifest = msgspec.json.Decoder(TraceManifest)


@dataclass
class Trace:
    """Steps in order. `damaged`: lines that cannot be read, such as the last one of a server that was killed.
    `omitted`: steps that were not recorded, because the trace or the disk was full."""

    steps: list[TraceStep] = field(default_factory=list)
    damaged: int = 0

    @property
    def omitted(self) -> int:
        return sum(step.omitted for step in self.steps)

    def get(self, n: int) -> TraceStep | None:
        """Return the step with that number."""
        return next((step for step in self.steps if step.n == n), None)


def encode_line(line: TraceStep | TraceEnd) -> bytes:
    """Return a line with its newline. JSON escapes control characters: no value can imitate another line."""
    return _encoder.encode(line) + b"\n"


def decode_line(line: bytes) -> TraceStep | TraceEnd:
    """Raise ValueError if the bytes are no line of a trace."""
    try:
        return _end.decode(line) if line.startswith(b'{"of":') else _step.decode(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class TraceMerger:
    """Puts the lines of a trace together. A line that cannot be read is counted, and no reason to stop."""

    def __init__(self) -> None:
        self._steps: dict[int, TraceStep] = {}
        self._damaged = 0

    @property
    def trace(self) -> Trace:
        return Trace(list(self._steps.values()), self._damaged)

    def feed(self, data: bytes) -> TraceStep | None:
        """Return the step that a line begins or ends."""
        try:
            step = self._step(decode_line(data)) if data.strip() else None
        except ValueError:
            self._damaged += 1
            return None
        if step is not None:
            self._steps[step.n] = step
        return step

    def _step(self, line: TraceStep | TraceEnd) -> TraceStep:
        if isinstance(line, TraceStep):
            if line.n in self._steps or len(self._steps) >= MAX_STEPS:
                raise ValueError("the number of the step is taken, or there are too many")
            return line
        begun = self._steps.get(line.of)
        if begun is None or begun.end is not None:
            raise ValueError("the step has ended, or never began")
        return replace(begun, end=line, process=begun.process or line.process)


def merge(lines: Iterable[bytes]) -> Trace:
    """Return the trace in these lines."""
    merger = TraceMerger()
    for line in lines:
        merger.feed(line)
    return merger.trace


def contents(line: TraceStep | TraceEnd) -> Iterator[TraceContent]:
    """Yield the contents that a line refers to."""
    yield from line.inputs.values()
    if isinstance(line, TraceEnd):
        yield from (content for content in (line.stdout, line.stderr, line.results) if content is not None)
    elif line.end is not None:
        yield from contents(line.end)


def blobs_of(steps: Iterable[TraceStep]) -> list[str]:
    """Return the hashes of the blobs that steps refer to, sorted."""
    found = {content.blob for step in steps for content in contents(step) if content.blob is not None}
    return sorted(blob for blob in found if SHA256.fullmatch(blob))


# -- exported traces ---------------------------------------------------------------------------------------------------


def encode_manifest(manifest: TraceManifest) -> bytes:
    return _encoder.encode(manifest)


def entry_header(name: bytes, size: int) -> bytes:
    return tar.header(tar.Entry(name, "file", 0o644, size))


class TraceFile:
    """An exported trace in an open file. Nothing is read ahead but the manifest and the lines."""

    def __init__(self, file: IO[bytes], *, max_size: int) -> None:
        """`max_size`: the largest file that is accepted. Raise InvalidRequest if it is no exported trace."""
        self._file = file
        self.manifest, self.trace = (
            TraceManifest(
                format=0, sandbox="", image="", image_digest="", exported_at=0, steps_size=0, steps_sha256=""
            ),
            Trace(),
        )
        self._places: dict[str, tuple[int, int]] = {}
        size = file.seek(0, 2)
        if size > max_size:
            raise _invalid(f"it has {size} bytes, and at most {max_size} are accepted")
        file.seek(0)
        try:
            self._read(size)
        except tar.TarError as error:
            raise _invalid(str(error)) from None

    def _read(self, size: int) -> None:
        try:
            self.manifest = _manifest.decode(self._entry(MANIFEST, MAX_MANIFEST))
        except (ValueError, RecursionError):
            raise _invalid("its manifest cannot be read") from None
        if self.manifest.format != TRACE_FORMAT:
            raise _invalid(f"its format is {self.manifest.format}, and this version reads format {TRACE_FORMAT}")
        lines = self._entry(STEPS, MAX_STEPS_SIZE)
        if hashlib.sha256(lines).hexdigest() != self.manifest.steps_sha256:
            raise _invalid("its steps are not those of the manifest")
        self.trace = merge(lines.split(b"\n"))
        if self.manifest.cassette is not None and self.manifest.cassette not in self.manifest.blobs:
            raise _invalid("its cassette is missing")
        if len(self.manifest.blobs) > MAX_BLOBS:
            raise _invalid("it has too many blobs")
        for name in sorted(self.manifest.blobs):
            length = self._header(BLOBS + name.encode("ascii", "replace"), MAX_BLOB)
            if not SHA256.fullmatch(name) or length != self.manifest.blobs[name]:
                raise _invalid("a blob is not that of the manifest")
            self._places[name] = (self._file.tell(), length)
            end = self._file.tell() + length + -length % tar.BLOCK
            if end > size:
                raise _invalid("it ends too early")
            self._file.seek(end)
        if self._file.read(len(tar.END) + 1) != tar.END:
            raise _invalid("it has more than its manifest")

    def _header(self, name: bytes, most: int) -> int:
        """Read a header that must be that of the named regular file; return the file's size."""
        block = self._file.read(tar.BLOCK)
        if len(block) < tar.BLOCK or not any(block):
            raise _invalid("it ends too early")
        head = tar.HeaderBlock(block)
        if head.kind != "file" or head.name != name:
            raise _invalid(f"it has the entry {head.name[:80]!r} instead of {name.decode()}")
        size = head.number("size")
        if size > most:
            raise _invalid(f"its entry {name.decode()} is too large")
        return size

    def _entry(self, name: bytes, most: int) -> bytes:
        size = self._header(name, most)
        data = self._file.read(size)
        if len(data) < size or len(self._file.read(-size % tar.BLOCK)) < -size % tar.BLOCK:
            raise _invalid("it ends too early")
        return data

    def blob(self, sha256: str) -> bytes:
        """Return a blob. Raise InvalidRequest if it is missing, or is not what its name says."""
        return b"".join(self.pieces(sha256))

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield a blob piece by piece. Raise InvalidRequest at its end if its hash is wrong."""
        at, left = self._places.get(sha256, (0, -1))
        if left < 0:
            raise InvalidRequest(f"blob {sha256[:64]!r} not found in the trace")
        found = hashlib.sha256()
        while left:
            self._file.seek(at)
            piece = self._file.read(min(_PIECE, left))
            if not piece:
                raise _invalid("it ends too early")
            found.update(piece)
            at, left = at + len(piece), left - len(piece)
            yield piece
        if found.hexdigest() != sha256:
            raise _invalid(f"its blob {sha256} is damaged")


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(f"this is not an exported trace: {why}", hint="`skerry trace export` makes one")
