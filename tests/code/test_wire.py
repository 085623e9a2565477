"""What a server and a kernel say to each other: strict, bounded, in any pieces."""

from __future__ import annotations

import pytest

from skerry.code import wire
from skerry.code.wire import MESSAGE_MOST, Decoder, Violation, encode

HELLO = encode(wire.HELLO, {"version": b"3.11"})
OUTPUT = encode(wire.OUTPUT, {"run": b"r", "main": b"1", "text/plain": bytes(range(256))})


@pytest.mark.parametrize("piece", [1, 2, 7, 10_000])
def test_messages_come_out_as_they_went_in_whatever_the_pieces(piece: int) -> None:
    decoder, stream, found = Decoder(), HELLO + OUTPUT + HELLO, []
    for at in range(0, len(stream), piece):
        found += list(decoder.feed(stream[at : at + piece]))
    assert [kind for kind, _ in found] == [wire.HELLO, wire.OUTPUT, wire.HELLO]
    assert found[1][1] == {"run": b"r", "main": b"1", "text/plain": bytes(range(256))}


@pytest.mark.parametrize(
    "sent",
    [
        b"X\0\0\0\0",  # no kernel says that
        encode(wire.RUN, {}),  # that is the server's to say
        b"D" + (MESSAGE_MOST + 1).to_bytes(4),
        b"D\0\0\0\x02\x05a",  # the name is cut short
        b"D\0\0\0\x07\x01a\0\0\0\x09x",  # the value is
        b"D\0\0\0\x06\x01\xff\0\0\0\0",
        b"D\0\0\0\x0c" + b"\x01a\0\0\0\0" * 2,
    ],
)
def test_what_is_no_message_of_a_kernel_is_refused(sent: bytes) -> None:
    with pytest.raises(Violation):
        list(Decoder().feed(sent))
