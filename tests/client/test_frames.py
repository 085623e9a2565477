"""Frames and lines: any cut of the bytes gives the same pieces, and nothing is held without bound."""

from __future__ import annotations

import random

import pytest

from skerry.codecs.frames import EXIT, MAX_PAYLOAD, STDERR, STDOUT, FrameDecoder, encode
from skerry.codecs.ndjson import MAX_LINE, LineDecoder
from skerry.errors import SkerryError

SENT = [(STDOUT, b"a"), (STDERR, b"bc"), (STDERR, b""), (STDOUT, bytes(range(256)) * 50), (EXIT, b"{}"), (EXIT, b"")]


def test_frames_are_the_same_for_any_chunking() -> None:
    wire = b"".join(encode(kind, payload) for kind, payload in SENT)
    chance = random.Random(7)
    for _ in range(50):
        decoder, at = FrameDecoder(), 0
        got: list[tuple[int, bytes]] = []
        while at < len(wire):
            step = chance.choice((1, 2, 5, 100, 5000))
            for kind, payload in decoder.feed(wire[at : at + step]):
                if got and got[-1][0] == kind != EXIT:  # output may come in parts
                    got[-1] = kind, got[-1][1] + payload
                else:
                    got.append((kind, payload))
            at += step
        assert got == [frame for frame in SENT if frame != (STDERR, b"")]
        assert not decoder.unfinished


def test_output_does_not_wait_for_the_rest_of_its_frame() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(encode(STDOUT, b"abc")[:6])) == [(STDOUT, b"a")]
    assert decoder.unfinished
    assert list(decoder.feed(b"bc")) == [(STDOUT, b"bc")]
    assert not decoder.unfinished


def test_frame_of_the_maximum_size_is_accepted() -> None:
    assert list(FrameDecoder().feed(encode(STDOUT, b"x" * MAX_PAYLOAD))) == [(STDOUT, b"x" * MAX_PAYLOAD)]


@pytest.mark.parametrize(
    "wire", [b"\x01\x00\x10\x00\x01", b"\x00\x00\x00\x00\x00", b"\x09\x00\x00\x00\x01x", b"HTTP/1.1 200 OK"]
)
def test_invalid_frame_is_rejected_before_its_payload(wire: bytes) -> None:
    with pytest.raises(SkerryError, match="invalid frame"):
        list(FrameDecoder().feed(wire))


def test_partial_frame_is_incomplete() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(encode(EXIT, b"abc")[:6])) == []
    assert decoder.unfinished


def test_lines_are_complete_for_any_chunking() -> None:
    decoder = LineDecoder()
    assert [line for byte in b'{"a":1}\n\n{"b":2}\n' for line in decoder.feed(bytes((byte,)))] == [
        b'{"a":1}',
        b'{"b":2}',
    ]


def test_endless_line_is_rejected() -> None:
    with pytest.raises(SkerryError, match="does not end"):
        list(LineDecoder().feed(b"x" * (MAX_LINE + 1)))
