"""The protocol of server and kernel: strict, bounded, for any chunking."""

from __future__ import annotations

import pytest

from skerry.code import kernel_protocol
from skerry.code.kernel_protocol import MAX_MESSAGE, KernelMessageDecoder, Violation, encode

HELLO = encode(kernel_protocol.HELLO, {"version": b"3.11"})
OUTPUT = encode(kernel_protocol.OUTPUT, {"run": b"r", "main": b"1", "text/plain": bytes(range(256))})


@pytest.mark.parametrize("piece", [1, 2, 7, 10_000])
def test_messages_are_preserved_for_any_chunking(piece: int) -> None:
    decoder, stream, found = KernelMessageDecoder(), HELLO + OUTPUT + HELLO, []
    for at in range(0, len(stream), piece):
        found += list(decoder.feed(stream[at : at + piece]))
    assert [kind for kind, _ in found] == [kernel_protocol.HELLO, kernel_protocol.OUTPUT, kernel_protocol.HELLO]
    assert found[1][1] == {"run": b"r", "main": b"1", "text/plain": bytes(range(256))}


@pytest.mark.parametrize(
    "sent",
    [
        b"X\0\0\0\0",  # no kernel says that
        encode(kernel_protocol.RUN, {}),  # that is the server's to say
        b"D" + (MAX_MESSAGE + 1).to_bytes(4),
        b"D\0\0\0\x02\x05a",  # the name is cut short
        b"D\0\0\0\x07\x01a\0\0\0\x09x",  # the value is
        b"D\0\0\0\x06\x01\xff\0\0\0\0",
        b"D\0\0\0\x0c" + b"\x01a\0\0\0\0" * 2,
    ],
)
def test_invalid_kernel_message_is_rejected(sent: bytes) -> None:
    with pytest.raises(Violation):
        list(KernelMessageDecoder().feed(sent))
