"""Render hunks: their lines as in a patch, with context, within a size limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from skerry.review.hunks.atoms import Atom
from skerry.review.hunks.decisions import HunkSegment
from skerry.review.hunks.hunks import FileHunk, ReviewedFile
from skerry.types import MAX_HUNKS, MAX_SHOWN, Hunk, HunkState
from skerry.types.values import encode_path

CONTEXT = 3
MAX_HEADING = 80
MAX_TEXT_BYTES = 8 << 20  # bytes of text in a list of hunks
_NO_END = b"\n\\ No newline at end of file\n"


def readable_path(path: bytes) -> tuple[str, bytes | None]:
    return encode_path(path.decode("utf-8", "surrogateescape"))


class HunkRenderer:
    """Renders the hunks of one file. `room`: bytes of text for all of them together, so that a long list can still be
    sent; hunks beyond it are `truncated`."""

    def __init__(self, changed: ReviewedFile, room: int | None = None) -> None:
        self._changed = changed
        self.room = room
        self._heading_upto, self._heading = 0, b""
        self._free: dict[HunkSegment, tuple[int, int]] = {}
        if not changed.segments:
            return
        spans = [(segment.start, segment.end) for segment in changed.segments]
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans), len(changed.base)]
        for number, segment in enumerate(changed.segments):
            self._free[segment] = (ends[number], starts[number + 1])

    def hunk(self, hunk: FileHunk, most: int | None = MAX_SHOWN) -> Hunk:
        """Render one hunk. Call in file order: the search for headings continues from the previous hunk."""
        path, raw_path = readable_path(self._changed.delta.path)
        numbers, text = self._lines(hunk)
        bounds = [bound for bound in (most, self.room) if bound is not None]
        shown, truncated = _cut(text, min(bounds) if bounds else None)
        if self.room is not None:
            self.room = max(0, self.room - len(shown))
        try:
            readable, raw = shown.decode(), None
        except UnicodeDecodeError:
            readable, raw = shown.decode("utf-8", "replace"), shown
        old_start, old_lines, new_start, new_lines = numbers
        decided = hunk.decision if hunk.state != "open" else None
        return Hunk(
            id=hunk.id, path=path, kind=hunk.kind, state=hunk.state,
            reason=hunk.decision.reason if hunk.decision is not None else None, risk=hunk.risk,
            old_start=old_start, old_lines=old_lines, new_start=new_start, new_lines=new_lines,
            heading=self._headed(hunk), text=readable, raw=raw, truncated=truncated, splittable=len(hunk.segments) > 1,
            edited=hunk.edited.decode() if hunk.edited is not None else None, raw_path=raw_path,
            decided_at=decided.at if decided is not None else None,
            decided_by=decided.by if decided is not None else None,
        )  # fmt: skip

    def _lines(self, hunk: FileHunk) -> tuple[tuple[int, int, int, int], Iterator[bytes]]:
        changed = self._changed
        if hunk.segments:
            first, last = hunk.segments[0], hunk.segments[-1]
            before = min(CONTEXT, first.start - self._free[first][0])
            after = min(CONTEXT, self._free[last][1] - last.end)
            return _numbers(first, last, before, after), _patch(changed, hunk.segments, before, after)
        if hunk.kind == "renamed":
            return (0, 0, 0, 0), _chunks(changed)
        if hunk.kind in ("added", "deleted", "link"):
            everything = HunkSegment(0, len(changed.base), 0, len(changed.tip))
            return _numbers(everything, everything, 0, 0), _patch(changed, (everything,), 0, 0)
        return (0, 0, 0, 0), iter(())

    def _headed(self, hunk: FileHunk) -> str:
        """Return the last line before the hunk that starts like a definition, as git does; or the change of modes."""
        if hunk.kind == "mode":
            return f"mode {self._changed.delta.old_mode} to {self._changed.delta.new_mode}"
        if not hunk.segments:
            return ""
        start = max(hunk.segments[0].start - CONTEXT, 0)
        for number in range(start - 1, self._heading_upto - 1, -1):
            line = self._changed.base[number]
            if line[:1].isalpha() or line[:1] in (b"_", b"$"):
                self._heading = line[:MAX_HEADING].rstrip()
                break
        self._heading_upto = max(start, self._heading_upto)
        return self._heading.decode("utf-8", "replace")


class HunkList:
    """Renders the hunks of many files, as far as there is room. `cut`: there were more."""

    def __init__(self, room: int = MAX_TEXT_BYTES) -> None:
        self.room, self.count, self.cut = room, 0, False

    def of(
        self, changed: ReviewedFile, state: HunkState | None = None, ids: set[str] | None = None
    ) -> tuple[Hunk, ...]:
        showing = HunkRenderer(changed, self.room)
        found = []
        for unit in changed.hunks:
            if (state is not None and unit.state != state) or (ids is not None and unit.id not in ids):
                continue
            if self.count == MAX_HUNKS:
                self.cut = True
                break
            found.append(showing.hunk(unit))
            self.count += 1
        self.room = showing.room or 0
        return tuple(found)


def _numbers(first: HunkSegment, last: HunkSegment, before: int, after: int) -> tuple[int, int, int, int]:
    """Return line numbers as in a patch: one-based; a side without lines names the line before."""
    old, new = first.start - before, first.new_start - before
    old_lines, new_lines = last.end + after - old, last.new_end + after - new
    return old + (old_lines > 0), old_lines, new + (new_lines > 0), new_lines


def _patch(changed: ReviewedFile, segments: Sequence[HunkSegment], before: int, after: int) -> Iterator[bytes]:
    base, tip = changed.base, changed.tip
    last = segments[-1]
    yield from _marked(b" ", base[segments[0].start - before : segments[0].start])
    for segment, following in (*pairwise(segments), (last, None)):
        yield from _marked(b"-", base[segment.start : segment.end])
        yield from _marked(b"+", tip[segment.new_start : segment.new_end])
        yield from _marked(b" ", base[segment.end : following.start if following else last.end + after])


def _marked(sign: bytes, some: Sequence[bytes]) -> Iterator[bytes]:
    for line in some:
        yield sign + line if line.endswith(b"\n") else sign + line + _NO_END


def _chunks(changed: ReviewedFile) -> Iterator[bytes]:
    """Yield the lines of a renamed file, each place with its `@@` line."""
    groups: list[list[Atom]] = []
    for atom in changed.atoms:
        if groups and atom.start - groups[-1][-1].end <= 2 * CONTEXT:
            groups[-1].append(atom)
        else:
            groups.append([atom])
    for group in groups:
        segments = [HunkSegment(*atom) for atom in group]
        before, after = min(CONTEXT, segments[0].start), min(CONTEXT, len(changed.base) - segments[-1].end)
        yield b"@@ -%d,%d +%d,%d @@\n" % _numbers(segments[0], segments[-1], before, after)
        yield from _patch(changed, segments, before, after)


def _cut(text: Iterator[bytes], most: int | None) -> tuple[bytes, bool]:
    """Return as many whole lines as fit; cut the first line if even that does not fit."""
    taken: list[bytes] = []
    size = 0
    for line in text:
        if most is not None and size + len(line) > most:
            if not taken:
                taken.append(line[:most])
            return b"".join(taken), True
        taken.append(line)
        size += len(line)
    return b"".join(taken), False
