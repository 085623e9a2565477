"""Decoding of terminal bytes into keys, however they are split."""

from __future__ import annotations

import pytest

from skerry.cli.review.input import KeyDecoder


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"y", ["y"]),
        ("é?".encode(), ["é", "?"]),
        (b"\r\x7f\x03", ["enter", "backspace", "ctrl-c"]),
        (b"\x1b[A\x1b[B\x1bOC\x1b[6~", ["up", "down", "right", "pagedown"]),
        (b"\x1b[1;5A", ["up"]),
        (b"\x1b[99X", []),
        (b"\x1by", ["escape", "y"]),
        (b"\x1b[200~yyy\rq\x1b[201~n", ["paste:yyy\rq", "n"]),
        (b"\x00\x01", []),
    ],
)
def test_bytes_decode_to_keys_at_once_and_one_by_one(data: bytes, keys: list[str]) -> None:
    assert KeyDecoder().feed(data) == keys
    slowly = KeyDecoder()
    assert [key for byte in data for key in slowly.feed(bytes([byte]))] == keys


def test_lone_escape_byte_is_the_escape_key() -> None:
    keyboard = KeyDecoder()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.pending
    assert keyboard.flush() == ["escape"]
    assert not keyboard.pending
    assert keyboard.flush() == []


def test_unterminated_paste_is_bounded_and_presses_no_key() -> None:
    keyboard = KeyDecoder()
    keyboard.feed(b"\x1b[200~")
    for _ in range(100):
        assert keyboard.feed(b"y" * 10_000) == []
    assert not keyboard.pending
    (key,) = keyboard.feed(b"\x1b[201~")
    assert len(key) <= 8192
