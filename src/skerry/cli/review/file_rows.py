"""Render the files of a patch as rows, for `diff`, `history -p` and `watch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from skerry.cli.review import labels
from skerry.cli.review.escape import escape_name, width_of
from skerry.cli.review.patch import FilePatch, file_patches
from skerry.cli.review.rows import Layout, fold, hunk_rows, truncate
from skerry.cli.review.style import Row, Span, styled
from skerry.types import FileChange

MAX_FILE_LINES = 20_000  # lines
MAX_HIGHLIGHTED = 5_000  # lines of one patch with syntax colours
MAX_FACTS = 8
_QUIET = ("index ", "similarity index ", "dissimilarity index ")
_BAR = 40
_NOTE = b"# skerry: "


def file_patch_rows(
    file: FilePatch, layout: Layout, *, prefix: str = "", most: int | None = None, risk: Sequence[str] = ()
) -> Iterator[Row]:
    """Render one file, at most `most` lines, followed by the number of lines left out."""
    name: list[Span] = [styled(prefix, "dim"), styled(escape_name(file.path), "file"), styled("  ")]
    counted = labels.counts(None, None) if file.binary else labels.counts(file.added, file.removed)
    yield from fold((*name, *counted, *([styled(" or more", "dim")] if file.cut else [])), layout.cols)
    if risk:
        yield from fold((styled(f"FLAGGED: {'; '.join(map(escape_name, risk))}", "risk"),), layout.cols)
    if file.old_path is not None:
        yield from fold((styled(f"renamed from {escape_name(file.old_path)}", "bold"),), layout.cols)
    for fact in [fact for fact in file.facts if not fact.startswith(_QUIET)][:MAX_FACTS]:
        yield truncate((styled(escape_name(fact), "bold"),), layout.cols)
    left = most
    for at, part in enumerate(file.parts):
        if left is not None and len(part.lines) > left:
            missing = sum(len(one.lines) for one in file.parts[at:]) - left
            del part.lines[left:]
            if part.lines:
                yield from hunk_rows(file.path, part, layout)
            yield (styled(f"CUT: {missing:,} more lines", "risk"),)
            return
        yield from hunk_rows(file.path, part, layout)
        left = None if left is None else left - len(part.lines)
    if file.cut:
        yield (styled("CUT: the rest is not shown here", "risk"),)


def patch_rows(lines: Iterable[bytes], layout: Layout) -> Iterator[Row]:
    """Render a patch file by file as it arrives, with the server's notes before it."""
    inked = 0
    notes: list[Row] = []
    first = True
    for file in file_patches(_without_notes(lines, notes, layout), most=MAX_FILE_LINES):
        yield from notes
        notes.clear()
        if not first:
            yield ()
        first = False
        yield from file_patch_rows(file, layout if inked < MAX_HIGHLIGHTED else Layout(layout.cols, ink=False))
        inked += sum(len(part.lines) for part in file.parts)
    yield from notes


def _without_notes(lines: Iterable[bytes], notes: list[Row], layout: Layout) -> Iterator[bytes]:
    """Collect the server's notes, which come before the first file. Later, such a line belongs to a file."""
    begun = False
    for line in lines:
        begun |= line.startswith(b"diff --git ")
        if not begun and line.startswith(_NOTE):
            notes += fold((styled(escape_name(line[2:]), "risk"),), layout.cols)
        else:
            yield line


def stat_rows(files: Iterable[FileChange], layout: Layout) -> Iterator[Row]:
    """Render a summary like `git diff --stat`."""
    listed = list(files)
    names = [_stat_name(file) for file in listed]
    width = min(max(map(width_of, names), default=0), max(10, layout.cols - 28))
    most = max((_changed(file) for file in listed), default=0)
    bar = max(1, min(_BAR, layout.cols - width - 12))
    for file, name in zip(listed, names, strict=True):
        shown = truncate((styled(name),), width)
        gap = " " * (width - sum(width_of(span.text) for span in shown))
        flag = (styled("  FLAGGED", "risk"),) if file.risk else ()
        yield (styled(" "), *shown, styled(f"{gap} | "), *_bar(file, most, bar), *flag)
    added, removed = (sum(getattr(file, side) or 0 for file in listed) for side in ("added", "removed"))
    files_word = "1 file" if len(listed) == 1 else f"{len(listed)} files"
    yield (styled(f" {files_word} changed, "), *labels.counts(added, removed))


def _stat_name(file: FileChange) -> str:
    if file.kind == "renamed" and file.old_path is not None:
        old = file.raw_old_path if file.raw_old_path is not None else file.old_path
        return f"{escape_name(old)} → {labels.path_of(file)}"
    return labels.path_of(file)


def _changed(file: FileChange) -> int:
    return (file.added or 0) + (file.removed or 0)


def _bar(file: FileChange, most: int, room: int) -> tuple[Span, ...]:
    if file.added is None and file.removed is None:
        word = "large" if file.large else "binary"
        return (styled(f"{word} {file.old_size or 0:,} → {file.new_size or 0:,} bytes", "dim"),)
    total = _changed(file)
    added, removed = file.added or 0, file.removed or 0
    least = bool(added) + bool(removed)
    cells = total if most <= room else max(least, total * room // most)
    plus = max(bool(added), min(round(cells * added / total), cells - bool(removed))) if total else 0
    words = {"added": " (new)", "deleted": " (deleted)"}.get(file.kind, "")
    if not words and file.old_mode != file.new_mode and file.new_mode is not None:
        words = f" (mode {file.new_mode})"
    return (
        styled(f"{total:>4} "),
        styled("+" * plus, "good"),
        styled("-" * (cells - plus), "bad"),
        styled(words, "dim"),
    )
