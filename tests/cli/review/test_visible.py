"""Text from inside speaks to no terminal, and nothing in it is unseen."""

from __future__ import annotations

import sys

import pytest
from cli.review.shown import HOSTILE, is_harmless

from skerry.cli.review.style import Span, Style, colours_of, encoded, paint, text_of
from skerry.cli.review.visible import is_odd, name_shown, remarks, spans, width_of

ADDED = Style("added")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_reaches_the_terminal_and_nothing_is_swallowed(text: str) -> None:
    row = spans(text, ADDED, ends=True)
    assert is_harmless(text_of(row))
    assert is_harmless(name_shown(text), allowed=())
    assert len(text_of(row)) >= len(text)
    assert remarks(text, added=True) or "\u0301" in text


def test_characters_of_every_kind_come_out_harmless() -> None:
    for start in (*range(0, 0x11000, 4096), 0x1F000, 0xE0000, 0xF0000, sys.maxunicode - 4095):
        text = "".join(map(chr, range(start, start + 4096))).replace("\n", "")
        assert is_harmless(text_of(spans(text, ADDED, ends=True)))


def test_what_stands_for_something_else_is_marked_as_such() -> None:
    row = spans("a\x1bb\u202e", ADDED)
    assert row == (
        Span(Style("added"), "a"), Span(Style("added", "odd"), "\\x1b"), Span(Style("added"), "b"),
        Span(Style("added", "odd"), "\\u202e"),
    )  # fmt: skip


def test_spaces_at_the_end_and_tabs_of_a_changed_line_are_seen() -> None:
    assert text_of(spans("x = 1 \t", ADDED, ends=True)) == "x = 1·→ "
    assert text_of(spans("\tx", ADDED, ends=True)) == "→   x"
    assert text_of(spans("ab\tx", ADDED, ends=True)) == "ab→ x"
    assert text_of(spans("\tx ", Style())) == "    x "
    assert text_of(spans("x\r", ADDED, ends=True)) == "x\\r"
    assert remarks("x = 1 ", added=True) == ["spaces at its end"]


def test_a_letter_of_another_script_inside_a_word_is_pointed_out() -> None:
    row = spans("p\u0430ypal", ADDED)
    assert [span.style.ink for span in row] == ["", "odd", ""]
    assert remarks("p\u0430ypal", added=True) == ["U+0430 cyrillic small letter a, inside a Latin word"]
    assert remarks("привет мир, naïve ελληνικά", added=True) == []
    assert "another order" in remarks("x = 'שלום'", added=True)[0]


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    assert name_shown(b"caf\xe9") == "caf\\xe9"
    assert remarks("caf\udce9", added=False) == ["bytes that are no UTF-8"]


def test_a_name_is_one_line_and_its_spaces_are_seen() -> None:
    assert name_shown("a\nb") == "a\\nb"
    assert name_shown("a ") == "'a '"
    assert name_shown("été 你好") == "été 你好"


def test_widths_are_those_of_the_terminal() -> None:
    assert [width_of(text) for text in ("abc", "你好", "e\u0301", "é")] == [3, 4, 1, 1]


def test_a_blank_that_unicode_calls_a_letter_is_odd() -> None:
    assert all(map(is_odd, "\u3164\u2800\ufe0f\xa0\u200b"))
    assert not any(map(is_odd, "aé你 👍"))


def test_colours_follow_the_terminal_and_the_wish_for_none() -> None:
    assert colours_of({"TERM": "xterm-256color"}) == 256
    assert colours_of({"TERM": "xterm", "COLORTERM": "truecolor"}) == 256
    assert colours_of({"TERM": "linux"}) == 16
    assert colours_of({"TERM": "dumb"}) == 0
    assert colours_of({"TERM": "xterm-256color", "NO_COLOR": "1"}) == 0
    assert colours_of({"TERM": "xterm-256color"}, terminal=False) == 0


def test_paint_adds_colours_and_nothing_else() -> None:
    row = spans("x\u202e", ADDED, marks=[(0, 1)])
    assert paint(row, 0) == "x\\u202e"
    assert paint(row, 16) == "\x1b[32;7mx\\u202e\x1b[0m"
    assert paint(row, 256) == "\x1b[48;5;28;38;5;253mx\x1b[0m\x1b[48;5;22;38;5;231;7m\\u202e\x1b[0m"


def test_a_terminal_without_utf_8_gets_letters_that_it_has() -> None:
    assert encoded("é … −1 ·", "ascii") == b"\\xe9 ... -1 ."
    assert encoded("é …", "utf-8") == "é …".encode()
