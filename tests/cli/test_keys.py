"""What is typed, and what of it is for us."""

from __future__ import annotations

import pytest

from skerry.cli.keys import Keys, Typed


def fed(keys: Keys, *pieces: bytes) -> tuple[bytes, list[str]]:
    typed: list[Typed] = [one for piece in pieces for one in keys.feed(piece)]
    return b"".join(one.data for one in typed), [one.wish for one in typed if one.wish]


@pytest.mark.parametrize(
    ("pieces", "data", "wishes"),
    [
        ([b"ls\r"], b"ls\r", []),
        ([b"~."], b"", ["leave"]),
        ([b"~", b"."], b"", ["leave"]),
        ([b"ls\r~."], b"ls\r", ["leave"]),
        ([b"ls\n", b"~", b".", b"x"], b"ls\nx", ["leave"]),
        ([b"ls ~."], b"ls ~.", []),
        ([b"a~.\r"], b"a~.\r", []),
        ([b"~?"], b"", ["help"]),
        ([b"~?~."], b"", ["help", "leave"]),
        ([b"~~."], b"~.", []),
        ([b"~~\r~~x"], b"~\r~x", []),
        ([b"~a"], b"~a", []),
        ([b"~\r~."], b"~\r", ["leave"]),
        ([b"~/bin\r"], b"~/bin\r", []),
        ([b"\x03"], b"\x03", []),
        ([bytes(range(256))], bytes(range(256)), []),
    ],
)
def test_a_tilde_counts_at_the_start_of_a_line(pieces: list[bytes], data: bytes, wishes: list[str]) -> None:
    assert fed(Keys(), *pieces) == (data, wishes)
    one_by_one = [bytes([byte]) for piece in pieces for byte in piece]
    if "leave" not in wishes:
        assert fed(Keys(), *one_by_one) == (data, wishes)


def test_nothing_counts_without_escapes() -> None:
    assert fed(Keys(escape=False), b"~.", b"\r~?") == (b"~.\r~?", [])


def test_a_tilde_waits_for_what_follows_it() -> None:
    keys = Keys()
    assert keys.feed(b"~") == []
    assert keys.feed(b"x") == [Typed(b"~x")]
