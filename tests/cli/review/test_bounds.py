"""How much of a hunk a review holds."""

from __future__ import annotations

from cli.review.shown import hunk
from msgspec.structs import replace

from skerry.cli.review.reviewing import LETTERS_MOST, LINES_MOST, _bounded


def test_a_short_hunk_is_held_as_it_is() -> None:
    short = hunk("-a\n+b\n\\ No newline at end of file\n")
    assert _bounded(short) == short
    assert _bounded(replace(short, raw=short.text.encode())).raw == short.text.encode()


def test_of_a_long_one_so_many_lines_are_held_and_it_says_so() -> None:
    held = _bounded(hunk("+x\n" * 200_000))
    assert held.text == "+x\n" * LINES_MOST
    assert held.truncated
    raw = b"+\xff\n" * 200_000
    assert _bounded(replace(hunk("+\ufffd\n" * 200_000), raw=raw)).raw == raw[: 3 * LINES_MOST]


def test_a_line_without_an_end_is_cut() -> None:
    held = _bounded(hunk("+" + "x" * (2 * LETTERS_MOST) + "\n"))
    assert len(held.text) == LETTERS_MOST
    assert held.truncated
