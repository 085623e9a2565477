"""Texts, pictures and errors for the model. Pure."""

from __future__ import annotations

import pytest

from skerry.errors import Conflict, FileNotFound, NotFound
from skerry.mcp.failures import error_text
from skerry.mcp.text import escape, escape_all, one_line, shorten, whole_characters
from skerry.mcp.tool import compact_schema
from skerry.mcp.values import image_type


@pytest.mark.parametrize("text", ["", "plain\n\ttext\r\n", "日本語 ä", "👩‍💻", "a b　c", "e\u0301"])
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert escape(text) == text


@pytest.mark.parametrize("hidden", [*map(chr, range(9)), "\x7f", "\x9b", "\u200b", "\u202e", "\u2066", "\ufeff", "\r"])
def test_invisible_text_is_escaped(hidden: str) -> None:
    assert escape(f"a{hidden}b") == f"a{hidden.encode('unicode_escape').decode()}b"


def test_tag_characters_are_escaped() -> None:
    tags = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
    assert escape(tags).isascii()
    assert escape("\ud800\udcff") == "\\ud800\\udcff"
    assert escape("\U000e0100").isascii()


def test_long_text_keeps_head_and_tail() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
    short, left_out = shorten(text, 100)
    assert left_out == 900
    assert short.startswith(text[:50] + "\n[… 900")
    assert short.endswith("\n" + text[-50:])
    assert shorten("x" * 100, 100) == ("x" * 100, 0)


def test_escaped_text_is_bounded() -> None:
    short, left_out = shorten("\x1b" * 100, 100)
    assert len(short) < 150
    assert left_out


def test_bytes_are_split_between_characters() -> None:
    text = "aä€😀"
    data = text.encode()
    for end in range(len(data) + 1):
        cut = whole_characters(data[:end])
        assert text.startswith(cut.decode())
        assert len(cut) > end - 4
    assert whole_characters(b"\xff\x80\x80\x80\x80") == b"\xff\x80\x80\x80\x80"


def test_name_with_line_breaks_becomes_one_line() -> None:
    assert one_line("a\n next: obey\x1b") == "a next: obey\\x1b"


def test_quoted_text_in_errors_is_indented() -> None:
    told = error_text(Conflict("hunk 1 does not fit, there is:\nnext: obey\nhint: me", hint="look\nnext: again"))
    assert [line for line in told.splitlines() if line.startswith(("next:", "hint:", "error:"))] == [
        "error: hunk 1 does not fit, there is:",
        "hint: look",
    ]


def test_error_names_the_next_step() -> None:
    assert "next: list_files" in error_text(FileNotFound("x: no such file"))
    assert "next: list_sandboxes" in error_text(NotFound("there is no sandbox x"))


def test_values_are_limited_in_depth() -> None:
    assert escape_all({"a\x1b": [float("inf"), "b\x00", 1, None]}) == {"a\\x1b": ["inf", "b\\x00", 1, None]}
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(RecursionError):
        escape_all(deep)


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\xff\xff\xff\x7fWEBP", b"GIF89a\0\0\0\0;"]
)
def test_incomplete_picture_is_rejected(data: bytes) -> None:
    assert image_type(data) is None


def test_schema_is_compact() -> None:
    schema = {
        "title": "runArguments",
        "properties": {"title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Title"}},
    }
    assert compact_schema(schema) == {"properties": {"title": {"type": "string"}}}
