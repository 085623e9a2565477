"""The size limit of a hunk in a review."""

from __future__ import annotations

from msgspec.structs import replace
from support.review_values import hunk

from skerry.cli.review.app import MAX_CHARACTERS, MAX_LINES, _limited


def test_short_hunk_is_kept_unchanged() -> None:
    short = hunk("-a\n+b\n\\ No newline at end of file\n")
    assert _limited(short) == short
    assert _limited(replace(short, raw=short.text.encode())).raw == short.text.encode()


def test_long_hunk_is_limited_and_marked_as_truncated() -> None:
    held = _limited(hunk("+x\n" * 200_000))
    assert held.text == "+x\n" * MAX_LINES
    assert held.truncated
    raw = b"+\xff\n" * 200_000
    assert _limited(replace(hunk("+\ufffd\n" * 200_000), raw=raw)).raw == raw[: 3 * MAX_LINES]


def test_endless_line_is_truncated() -> None:
    held = _limited(hunk("+" + "x" * (2 * MAX_CHARACTERS) + "\n"))
    assert len(held.text) == MAX_CHARACTERS
    assert held.truncated
