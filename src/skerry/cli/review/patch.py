"""Parse a patch as git prints it. The counts of the `@@` line decide the kind of a line, never its content: a changed
line can also begin with `diff --git`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from skerry.types import Hunk

LineKind = Literal["context", "removed", "added", "note"]
_HEAD = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)", re.DOTALL)
_KINDS: dict[bytes, LineKind] = {b" ": "context", b"-": "removed", b"+": "added", b"\\": "note"}
_QUOTED = re.compile(rb'\\(?:([0-7]{3})|([abtnvfr"\\]))')
_LETTERS = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_FACTS = ("new file mode ", "deleted file mode ", "old mode ", "new mode ", "rename from ", "rename to ", "copy from ",
          "copy to ", "similarity index ", "dissimilarity index ", "index ")  # fmt: skip


@dataclass(frozen=True)
class PatchLine:
    """A line of a hunk. `old` and `new` are its line numbers before and after, None on the side where it does not
    exist. `text` has no line end; bytes that are not UTF-8 are surrogates."""

    kind: LineKind
    text: str
    old: int | None = None
    new: int | None = None


@dataclass
class PatchHunk:
    """A hunk: its position and its lines."""

    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    heading: str = ""
    lines: list[PatchLine] = field(default_factory=list)


@dataclass
class FilePatch:
    """One file of a patch. `facts` are its extended headers, like `new file mode 100755`. A `binary` file has no lines
    to show. `cut` means that the patch ends in the middle of the file."""

    path: str
    old_path: str | None = None
    facts: list[str] = field(default_factory=list)
    parts: list[PatchHunk] = field(default_factory=list)
    binary: bool = False
    cut: bool = False

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for part in self.parts for line in part.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for part in self.parts for line in part.lines)


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def hunk_parts(hunk: Hunk) -> list[PatchHunk]:
    """Return the lines of a hunk with their numbers. The hunk of a renamed file can have several parts, each with an
    `@@` line."""
    parts = [PatchHunk(hunk.old_start, hunk.old_lines, hunk.new_start, hunk.new_lines, hunk.heading)]
    data = hunk.raw if hunk.raw is not None else hunk.text.encode("utf-8", "surrogatepass")
    body = _HunkBody(parts[0])
    lines = data.split(b"\n")
    for line in lines[:-1] if lines and not lines[-1] else lines:
        if not body.take(line) and (match := _HEAD.match(line)):
            parts.append(_part(match))
            body = _HunkBody(parts[-1])
    return [part for part in parts if part.lines]


def _part(match: re.Match[bytes]) -> PatchHunk:
    old, old_lines, new, new_lines = (int(match[at] or 1) for at in range(1, 5))
    return PatchHunk(old, old_lines, new, new_lines, decoded(match[5]))


def changed_lines(hunk: Hunk) -> list[tuple[str, str]]:
    """Return the removed and added lines of a hunk, without context."""
    lines = [line for part in hunk_parts(hunk) for line in part.lines]
    return [(line.kind, line.text) for line in lines if line.kind in ("added", "removed")]


class _HunkBody:
    """Collects the lines of one hunk until both sides are complete."""

    def __init__(self, part: PatchHunk) -> None:
        self._part = part
        self._old, self._new = part.old_start, part.new_start
        self._left = [part.old_lines, part.new_lines]

    @property
    def complete(self) -> bool:
        return self._left[0] <= 0 and self._left[1] <= 0

    def take(self, line: bytes) -> bool:
        """Add a line; return False if it is not a line of a hunk."""
        kind = _KINDS.get(
            line[:1], "context" if not line else None
        )  # some tools strip the space of an empty context line
        if kind is None:
            return False
        old = self._old if kind in ("context", "removed") else None
        new = self._new if kind in ("context", "added") else None
        self._old += old is not None
        self._new += new is not None
        self._left[0] -= old is not None
        self._left[1] -= new is not None
        self._part.lines.append(PatchLine(kind, decoded(line[1:]), old, new))
        return True


def file_patches(lines: Iterable[bytes], *, most: int | None = None) -> Iterator[FilePatch]:
    """Yield the files of a patch, each when it is complete. Keep at most `most` lines per file; later lines are
    consumed and set `cut`."""
    return _PatchReader(most).read(lines)


class _PatchReader:
    def __init__(self, most: int | None) -> None:
        self._max_bytes = most
        self._file: FilePatch | None = None
        self._body: _HunkBody | None = None
        self._kept = 0

    def read(self, lines: Iterable[bytes]) -> Iterator[FilePatch]:
        for line in lines:
            if self._in_hunk(line):
                continue
            if line.startswith(b"diff --git "):
                if self._file is not None:
                    yield self._file
                self._file, self._body, self._kept = _start_file(line), None, 0
            elif self._file is not None:
                self._head(self._file, line)
        if self._file is not None:
            self._file.cut |= self._body is not None and not self._body.complete
            yield self._file

    def _in_hunk(self, line: bytes) -> bool:
        if self._body is None or self._file is None:
            return False
        if line.startswith(b"\\"):
            return self._body.take(line)
        if self._body.complete or not self._body.take(line):
            return False
        self._kept += 1
        if self._max_bytes is not None and self._kept > self._max_bytes:
            self._file.parts[-1].lines.pop()
            self._file.cut = True
        return True

    def _head(self, piece: FilePatch, line: bytes) -> None:
        match = _HEAD.match(line)
        if match:
            piece.parts.append(_part(match))
            self._body = _HunkBody(piece.parts[-1])
        elif line.startswith((b"Binary files ", b"GIT binary patch")):
            piece.binary = True
        elif line.startswith((b"+++ ", b"--- ")):
            path = _unquote(line[4:].rstrip(b"\t"))
            if path != b"/dev/null" and (line[:1] == b"+" or not piece.path):
                piece.path = decoded(path[2:])
        elif line.startswith((b"rename from ", b"copy from ")):
            piece.old_path = decoded(_unquote(line.split(b" from ", 1)[1]))
        elif line.startswith((b"rename to ", b"copy to ")):
            piece.path = decoded(_unquote(line.split(b" to ", 1)[1]))
        elif line.startswith(tuple(fact.encode() for fact in _FACTS)):
            piece.facts.append(decoded(line))


def _start_file(line: bytes) -> FilePatch:
    """Parse `diff --git a/x b/x`. Both names are equal unless a rename header follows."""
    rest = line[len(b"diff --git ") :]
    if rest.startswith(b'"'):
        second = rest.rfind(b' "') + 1 or rest.rfind(b" b/") + 1
        return FilePatch(decoded(_unquote(rest[second:])[2:]))
    half = (len(rest) - 1) // 2
    return FilePatch(decoded(_unquote(rest[half + 1 :])[2:]))


def _unquote(name: bytes) -> bytes:
    """Decode a name that git may have quoted."""
    if not (name.startswith(b'"') and name.endswith(b'"') and len(name) > 1):
        return name
    return _QUOTED.sub(lambda m: bytes([int(m[1], 8) & 0xFF if m[1] else _LETTERS[m[2][0]]]), name[1:-1])


def split_lines(chunks: Iterable[bytes], *, longest: int = 1 << 20) -> Iterator[bytes]:
    """Yield the lines of a stream without line ends. Truncate a line at `longest` bytes."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(held).split(b"\n")
            yield from (line[:longest] for line in whole)
            held = bytearray(rest)
        elif len(held) > 2 * longest:
            del held[longest:]
    if held:
        yield bytes(held[:longest])
