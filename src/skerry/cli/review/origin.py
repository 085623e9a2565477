"""Where a hunk came from."""

from __future__ import annotations

import time
from collections.abc import Iterator

from skerry.cli.review import headings, patch
from skerry.cli.review.rows import Look, folded, part_rows
from skerry.cli.review.style import Row, Style, plain
from skerry.cli.review.visible import name_shown, spans
from skerry.types import Why

MOST_OUTPUT = 200  # lines of each command
MOST_LETTERS = 2000


def why_rows(why: Why, look: Look) -> Iterator[Row]:
    hunk = why.hunk
    yield from folded((plain(headings.path_of(hunk), "file"), plain(f"  {hunk.id}  "), plain(hunk.state)), look.cols)
    for reason in hunk.risk:
        yield from folded((plain(f"FLAGGED: {name_shown(reason)}", "risk"),), look.cols)
    for part in patch.of_hunk(hunk):
        yield from part_rows(hunk.path, part, look, head=hunk.kind in ("text", "renamed"))
    if not why.entries:
        yield ()
        yield (plain("nobody can tell what made it", "dim"),)
    for entry in why.entries:
        yield ()
        yield (plain("made by  ", "dim"), *headings.command_row(entry, look.cols - 9))
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(entry.at))
        yield (plain(f"{moment}  {entry.commit[:12]}  {' '.join(map(name_shown, entry.processes))}".rstrip(), "dim"),)
        yield from headings.hosts_rows([entry], look.cols)
        for process in entry.processes:
            yield from _output(why.output.get(process), look)


def _output(text: str | None, look: Look) -> Iterator[Row]:
    lines = (text or "").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    for line in lines[:MOST_OUTPUT]:
        yield from folded((plain("  "), *spans(line[:MOST_LETTERS], Style())), look.cols)
    if len(lines) > MOST_OUTPUT:
        yield (plain(f"  CUT: {len(lines) - MOST_OUTPUT:,} more lines", "risk"),)
