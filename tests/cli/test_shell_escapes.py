"""Escape commands in typed input."""

from __future__ import annotations

import pytest

from skerry.cli.commands.shell.escapes import EscapeKeys, TypedInput


def fed(keys: EscapeKeys, *pieces: bytes) -> tuple[bytes, list[str]]:
    typed: list[TypedInput] = [one for piece in pieces for one in keys.feed(piece)]
    return b"".join(one.data for one in typed), [one.command for one in typed if one.command]


@pytest.mark.parametrize(
    ("pieces", "data", "commands"),
    [
        ([b"ls\r"], b"ls\r", []),
        ([b"~."], b"", ["detach"]),
        ([b"~", b"."], b"", ["detach"]),
        ([b"ls\r~."], b"ls\r", ["detach"]),
        ([b"ls\n", b"~", b".", b"x"], b"ls\nx", ["detach"]),
        ([b"ls ~."], b"ls ~.", []),
        ([b"a~.\r"], b"a~.\r", []),
        ([b"~?"], b"", ["help"]),
        ([b"~?~."], b"", ["help", "detach"]),
        ([b"~~."], b"~.", []),
        ([b"~~\r~~x"], b"~\r~x", []),
        ([b"~a"], b"~a", []),
        ([b"~\r~."], b"~\r", ["detach"]),
        ([b"~/bin\r"], b"~/bin\r", []),
        ([b"\x03"], b"\x03", []),
        ([bytes(range(256))], bytes(range(256)), []),
    ],
)
def test_tilde_is_an_escape_at_the_start_of_a_line(pieces: list[bytes], data: bytes, commands: list[str]) -> None:
    assert fed(EscapeKeys(), *pieces) == (data, commands)
    one_by_one = [bytes([byte]) for piece in pieces for byte in piece]
    if "detach" not in commands:
        assert fed(EscapeKeys(), *one_by_one) == (data, commands)


def test_without_escapes_all_input_is_sent() -> None:
    assert fed(EscapeKeys(escape=False), b"~.", b"\r~?") == (b"~.\r~?", [])


def test_tilde_waits_for_the_next_byte() -> None:
    keys = EscapeKeys()
    assert keys.feed(b"~") == []
    assert keys.feed(b"x") == [TypedInput(b"~x")]
