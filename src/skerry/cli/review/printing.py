"""Rows on stdout: at a terminal coloured and by way of a pager, elsewhere plain."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from skerry.cli import here, talk

if TYPE_CHECKING:
    from skerry.cli.review.rows import Look
    from skerry.cli.review.style import Row

WIDTH = 4000  # where there is no terminal: whoever reads it breaks lines as they like


def look_here() -> Look:
    from skerry.cli.review.rows import Look
    from skerry.cli.review.style import colours_of

    terminal = here.is_terminal(1)
    return Look(here.size().cols if terminal else WIDTH, ink=colours_of(terminal=terminal) == 256)


def give(rows: Iterable[Row], *, no_pager: bool) -> bool:
    """To a terminal by way of a pager, unless it is not wanted. False: there was nothing."""
    from skerry.cli.review import programs
    from skerry.cli.review.stage import encoding_of
    from skerry.cli.review.style import colours_of, encoded, lines_of

    terminal = here.is_terminal(1)
    colours = colours_of(terminal=terminal)
    listed = iter(rows)
    first = next(listed, None)
    if first is None:
        return False
    chunks = (encoded(lines_of([row], colours), encoding_of()) for row in chain([first], listed))
    words = programs.pager() if terminal and not no_pager else None
    if words is not None:
        programs.page(chunks, words)
    else:
        for chunk in chunks:
            talk.pass_on("stdout", chunk)
    return True
