"""Keys by name, however their bytes arrive."""

from __future__ import annotations

import pytest

from skerry.cli.review.keyboard import Keyboard


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
def test_bytes_are_keys_whole_and_one_by_one(data: bytes, keys: list[str]) -> None:
    assert Keyboard().feed(data) == keys
    slowly = Keyboard()
    assert [key for byte in data for key in slowly.feed(bytes([byte]))] == keys


def test_an_escape_alone_is_one_when_nothing_follows() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == []
    assert keyboard.waits
    assert keyboard.rest() == ["escape"]
    assert not keyboard.waits
    assert keyboard.rest() == []


def test_a_paste_without_an_end_stays_bounded_and_presses_nothing() -> None:
    keyboard = Keyboard()
    keyboard.feed(b"\x1b[200~")
    for _ in range(100):
        assert keyboard.feed(b"y" * 10_000) == []
    assert not keyboard.waits
    (key,) = keyboard.feed(b"\x1b[201~")
    assert len(key) <= 8192
