"""Results in the names of E2B; values of R code, which its interpreter prints between marks."""

from __future__ import annotations

import re

import pytest

from skerry.errors import InvalidRequest
from skerry.server.wire.e2b.routes.code import MAX_VALUE, MarkedOutput, r_program, r_text, result_of
from skerry.types import CodeOutput

MARK = b"\x1emark"


def found(data: bytes, size: int) -> list[str | bytes]:
    """Feed the data in pieces; return the joined output, and the values as text."""
    output, seen = MarkedOutput(MARK), []
    for start in range(0, len(data), size):
        seen += output.feed(data[start : start + size])
    joined: list[str | bytes] = []
    for piece in (*seen, *output.end()):
        if isinstance(piece, CodeOutput):
            joined.append(piece.data["text/plain"])
        elif joined and isinstance(joined[-1], bytes):
            joined[-1] += piece[1]
        else:
            joined.append(piece[1])
    return joined


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_values_are_separate_from_output_however_it_is_divided(size: int) -> None:
    data = b"a\n%b(\n[1] 1\n%b)\nb \x1e\x1em c%b(\n%b)\n" % (MARK, MARK, MARK, MARK)
    assert found(data, size) == [b"a\n", "[1] 1", b"b \x1e\x1em c", ""]


def test_value_without_an_end_is_output() -> None:
    """A program may print anything, end early, or print a value without end."""
    assert found(MARK + b"(\nhalf", 3) == [b"half"]
    assert found(MARK + b")\nx" + MARK[:3], 1) == [MARK + b")\nx" + MARK[:3]]
    long = MARK + b"(\n" + b"x" * (MAX_VALUE + 10)
    assert found(long, 1 << 16) == [b"x" * (MAX_VALUE + 10)]


def test_code_becomes_one_string_of_the_language() -> None:
    """No character of the code can end the string."""
    for text in ('"; system("id") #', '\\"\n\r\t', "ä\U0001f600", "", "a\u2028b", "'%{}`$"):
        shown = r_text(text)
        assert re.fullmatch(r'"(?:[A-Za-z0-9 _+*/=.,;:()\[\]{}<>-]|\\U\{[0-9A-F]+\})*"', shown), shown
        plain = re.sub(r"\\U\{([0-9A-F]+)\}", lambda match: chr(int(match[1], 16)), shown[1:-1])
        assert plain == text
    program, mark = r_program("x <- 1")
    assert program.isascii()
    assert mark.startswith(b"\x1e")
    assert r_program("x")[1] != r_program("x")[1]
    with pytest.raises(InvalidRequest):
        r_program("a\0b")


NAMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/javascript": "javascript",
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_format_of_a_result_has_the_name_of_e2b(kind: str) -> None:
    shown = result_of(CodeOutput(data={kind: "content"}, main=True))
    assert shown == {"type": "result", "is_main_result": True, NAMES[kind]: "content"}


def test_other_formats_of_a_result_are_extra() -> None:
    shown = result_of(CodeOutput(data={"text/plain": "'a'", "text/x-other": "b", "image/gif": "c"}, main=False))
    assert shown == {
        "type": "result", "is_main_result": False, "text": "a", "extra": {"text/x-other": "b", "image/gif": "c"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ("[]", []),
        ("not json", "not json"),
        ("[" * 5000, "[" * 5000),
        ('"\\ud800"', '"\\ud800"'),
    ],
)
def test_json_of_a_result_is_decoded_or_text(text: str, value: object) -> None:
    assert result_of(CodeOutput(data={"application/json": text}, main=True))["json"] == value


def test_table_of_a_result_has_its_columns_as_data() -> None:
    html = '<table border="1" class="dataframe">'
    shown = result_of(CodeOutput(data={"text/html": html, "application/json": '[{"a":1,"b":2},{"a":3}]'}, main=True))
    assert (shown["data"], shown["html"]) == ({"a": [1, 3], "b": [2, None]}, html)
    assert "json" not in shown
    other = result_of(CodeOutput(data={"text/html": html, "application/json": "[1]"}, main=True))
    assert other["json"] == [1]
