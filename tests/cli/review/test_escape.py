"""Escaping of text from a sandbox: no control codes, no invisible characters."""

from __future__ import annotations

import sys

import pytest
from support.review_values import HOSTILE, is_harmless

from skerry.cli.review.escape import escape_name, needs_escape, remarks, spans, width_of
from skerry.cli.review.style import Span, Style, detect_colours, encode, paint, text_of

ADDED = Style("added")


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_escaped_and_not_dropped(text: str) -> None:
    row = spans(text, ADDED, ends=True)
    assert is_harmless(text_of(row))
    assert is_harmless(escape_name(text), allowed=())
    assert len(text_of(row)) >= len(text)
    assert remarks(text, added=True) or "\u0301" in text


def test_all_unicode_ranges_are_escaped() -> None:
    for start in (*range(0, 0x11000, 4096), 0x1F000, 0xE0000, 0xF0000, sys.maxunicode - 4095):
        text = "".join(map(chr, range(start, start + 4096))).replace("\n", "")
        assert is_harmless(text_of(spans(text, ADDED, ends=True)))


def test_escaped_characters_have_their_own_style() -> None:
    row = spans("a\x1bb\u202e", ADDED)
    assert row == (
        Span(Style("added"), "a"), Span(Style("added", "odd"), "\\x1b"), Span(Style("added"), "b"),
        Span(Style("added", "odd"), "\\u202e"),
    )  # fmt: skip


def test_trailing_spaces_and_tabs_are_visible() -> None:
    assert text_of(spans("x = 1 \t", ADDED, ends=True)) == "x = 1·→ "
    assert text_of(spans("\tx", ADDED, ends=True)) == "→   x"
    assert text_of(spans("ab\tx", ADDED, ends=True)) == "ab→ x"
    assert text_of(spans("\tx ", Style())) == "    x "
    assert text_of(spans("x\r", ADDED, ends=True)) == "x\\r"
    assert remarks("x = 1 ", added=True) == ["trailing spaces"]


def test_lookalike_letter_in_a_word_is_reported() -> None:
    row = spans("p\u0430ypal", ADDED)
    assert [span.style.ink for span in row] == ["", "odd", ""]
    assert remarks("p\u0430ypal", added=True) == ["U+0430 cyrillic small letter a, inside a Latin word"]
    assert remarks("привет мир, naïve ελληνικά", added=True) == []
    assert "may reorder them" in remarks("x = 'שלום'", added=True)[0]


def test_invalid_utf8_is_shown_as_bytes() -> None:
    assert escape_name(b"caf\xe9") == "caf\\xe9"
    assert remarks("caf\udce9", added=False) == ["bytes that are not UTF-8"]


def test_name_is_one_line_with_visible_spaces() -> None:
    assert escape_name("a\nb") == "a\\nb"
    assert escape_name("a ") == "'a '"
    assert escape_name("été 你好") == "été 你好"


def test_widths_match_the_terminal() -> None:
    assert [width_of(text) for text in ("abc", "你好", "e\u0301", "é")] == [3, 4, 1, 1]


def test_blank_letters_need_escaping() -> None:
    assert all(map(needs_escape, "\u3164\u2800\ufe0f\xa0\u200b"))
    assert not any(map(needs_escape, "aé你 👍"))


def test_colours_follow_the_terminal_and_no_color() -> None:
    assert detect_colours({"TERM": "xterm-256color"}) == 256
    assert detect_colours({"TERM": "xterm", "COLORTERM": "truecolor"}) == 256
    assert detect_colours({"TERM": "linux"}) == 16
    assert detect_colours({"TERM": "dumb"}) == 0
    assert detect_colours({"TERM": "xterm-256color", "NO_COLOR": "1"}) == 0
    assert detect_colours({"TERM": "xterm-256color"}, terminal=False) == 0


def test_paint_adds_only_colours() -> None:
    row = spans("x\u202e", ADDED, marks=[(0, 1)])
    assert paint(row, 0) == "x\\u202e"
    assert paint(row, 16) == "\x1b[32;7mx\\u202e\x1b[0m"
    assert paint(row, 256) == "\x1b[48;5;28;38;5;253mx\x1b[0m\x1b[48;5;22;38;5;231;7m\\u202e\x1b[0m"


def test_terminal_without_utf8_gets_ascii() -> None:
    assert encode("é … −1 ·", "ascii") == b"\\xe9 ... -1 ."
    assert encode("é …", "utf-8") == "é …".encode()
