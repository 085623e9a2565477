"""A patch's files as rows: for `diff`, `history -p` and `watch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skerry.cli.review import headings
from skerry.cli.review.patch import Piece, pieces
from skerry.cli.review.rows import Look, cut, folded, part_rows
from skerry.cli.review.style import Row, Span, plain
from skerry.cli.review.visible import name_shown, width_of
from skerry.types import FileChange

MOST_OF_A_FILE = 20_000  # lines
MOST_INKED = 5_000  # lines of one patch that get the colours of programs
MOST_FACTS = 8
_QUIET = ("index ", "similarity index ", "dissimilarity index ")
_BAR = 40
_NOTE = b"# skerry: "


def piece_rows(
    piece: Piece, look: Look, *, prefix: str = "", most: int | None = None, risk: Sequence[str] = ()
) -> Iterator[Row]:
    """`most`: lines of it that are shown; how many are not is said."""
    name: list[Span] = [plain(prefix, "dim"), plain(name_shown(piece.path), "file"), plain("  ")]
    counted = headings.counts(None, None) if piece.binary else headings.counts(piece.added, piece.removed)
    yield from folded((*name, *counted, *([plain(" or more", "dim")] if piece.cut else [])), look.cols)
    if risk:
        yield from folded((plain(f"FLAGGED: {'; '.join(map(name_shown, risk))}", "risk"),), look.cols)
    if piece.old_path is not None:
        yield from folded((plain(f"renamed from {name_shown(piece.old_path)}", "bold"),), look.cols)
    for fact in [fact for fact in piece.facts if not fact.startswith(_QUIET)][:MOST_FACTS]:
        yield cut((plain(name_shown(fact), "bold"),), look.cols)
    left = most
    for at, part in enumerate(piece.parts):
        if left is not None and len(part.lines) > left:
            missing = sum(len(one.lines) for one in piece.parts[at:]) - left
            del part.lines[left:]
            if part.lines:
                yield from part_rows(piece.path, part, look)
            yield (plain(f"CUT: {missing:,} more lines", "risk"),)
            return
        yield from part_rows(piece.path, part, look)
        left = None if left is None else left - len(part.lines)
    if piece.cut:
        yield (plain("CUT: more of it is not shown here", "risk"),)


def patch_rows(lines: Iterable[bytes], look: Look) -> Iterator[Row]:
    """All of a patch, file by file as it comes, with what is said in front of it."""
    inked = 0
    notes: list[Row] = []
    first = True
    for piece in pieces(_without_notes(lines, notes, look), most=MOST_OF_A_FILE):
        yield from notes
        notes.clear()
        if not first:
            yield ()
        first = False
        yield from piece_rows(piece, look if inked < MOST_INKED else Look(look.cols, ink=False))
        inked += sum(len(part.lines) for part in piece.parts)
    yield from notes


def _without_notes(lines: Iterable[bytes], notes: list[Row], look: Look) -> Iterator[bytes]:
    """What the server says comes before the first file: behind it, such a line is a file's own."""
    begun = False
    for line in lines:
        begun |= line.startswith(b"diff --git ")
        if not begun and line.startswith(_NOTE):
            notes += folded((plain(name_shown(line[2:]), "risk"),), look.cols)
        else:
            yield line


def stat_rows(files: Iterable[FileChange], look: Look) -> Iterator[Row]:
    """As `git diff --stat` has it."""
    listed = list(files)
    names = [_stat_name(file) for file in listed]
    width = min(max(map(width_of, names), default=0), max(10, look.cols - 28))
    most = max((_changed(file) for file in listed), default=0)
    bar = max(1, min(_BAR, look.cols - width - 12))
    for file, name in zip(listed, names, strict=True):
        shown = cut((plain(name),), width)
        gap = " " * (width - sum(width_of(span.text) for span in shown))
        flag = (plain("  FLAGGED", "risk"),) if file.risk else ()
        yield (plain(" "), *shown, plain(f"{gap} | "), *_bar(file, most, bar), *flag)
    added, removed = (sum(getattr(file, side) or 0 for file in listed) for side in ("added", "removed"))
    files_word = "1 file" if len(listed) == 1 else f"{len(listed)} files"
    yield (plain(f" {files_word} changed, "), *headings.counts(added, removed))


def _stat_name(file: FileChange) -> str:
    if file.kind == "renamed" and file.old_path is not None:
        old = file.raw_old_path if file.raw_old_path is not None else file.old_path
        return f"{name_shown(old)} → {headings.path_of(file)}"
    return headings.path_of(file)


def _changed(file: FileChange) -> int:
    return (file.added or 0) + (file.removed or 0)


def _bar(file: FileChange, most: int, room: int) -> tuple[Span, ...]:
    if file.added is None and file.removed is None:
        word = "large" if file.large else "binary"
        return (plain(f"{word} {file.old_size or 0:,} → {file.new_size or 0:,} bytes", "dim"),)
    total = _changed(file)
    added, removed = file.added or 0, file.removed or 0
    least = bool(added) + bool(removed)
    cells = total if most <= room else max(least, total * room // most)
    plus = max(bool(added), min(round(cells * added / total), cells - bool(removed))) if total else 0
    words = {"added": " (new)", "deleted": " (gone)"}.get(file.kind, "")
    if not words and file.old_mode != file.new_mode and file.new_mode is not None:
        words = f" (mode {file.new_mode})"
    return (plain(f"{total:>4} "), plain("+" * plus, "good"), plain("-" * (cells - plus), "bad"), plain(words, "dim"))
