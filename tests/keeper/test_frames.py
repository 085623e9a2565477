"""The frames of a process: any cut of the bytes gives the same, and nothing is held without bound."""

from __future__ import annotations

import random
import time

import pytest

from skerry.codecs.frames import MAX_PAYLOAD, RAW, FrameDecoder, encode
from skerry.keeper import KeeperProtocolError
from skerry.keeper.frames import EXIT, MISSING, OUTPUT, RUN, STARTED, STDERR, STDOUT

SENT = [
    (STARTED, b"{}"), (STDOUT, b"a"), (STDERR, b"bc"), (STDOUT, bytes(range(256)) * 50), (MISSING, b'{"missing":1}'),
    (STDERR, b"x" * 70_000), (STDERR, b"y"), (EXIT, b"[]"),
]  # fmt: skip
WIRE = b"".join(encode(kind, payload) for kind, payload in SENT)
SIZES = (1, 2, 5, 100, 5000, 100_000)


def merged(frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Output may come in parts."""
    got: list[tuple[int, bytes]] = []
    for kind, payload in frames:
        if got and got[-1][0] == kind and kind in (*OUTPUT, RAW):
            got[-1] = kind, got[-1][1] + payload
        else:
            got.append((kind, payload))
    return got


def taken(decoder: FrameDecoder) -> list[tuple[int, bytes]]:
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


def test_frames_are_the_same_for_any_chunking() -> None:
    chance = random.Random(7)
    for _ in range(50):
        decoder, got, at = FrameDecoder(RUN), [], 0
        while at < len(WIRE):
            step = chance.choice(SIZES)
            decoder.push(WIRE[at : at + step])
            got += taken(decoder)
            at += step
        assert merged(got) == merged(SENT)
        assert decoder.rest == b""


def test_forwarded_output_has_the_same_frames_from_any_start() -> None:
    chance = random.Random(8)
    for _ in range(300):
        decoder, at = FrameDecoder(RUN), 0
        begin = chance.randrange(len(encode(*SENT[0])), len(WIRE))
        got: list[tuple[int, bytes]] = []
        while at < len(WIRE):
            step = chance.choice(SIZES)
            if at <= begin < at + step:
                got += [(RAW, encode(*frame)) if frame[0] in OUTPUT else frame for frame in taken(decoder)]
                decoder.keep_raw()
                begin = -1
            decoder.push(WIRE[at : at + step])
            found = taken(decoder)
            got += [(RAW, encode(*frame)) if frame[0] in OUTPUT else frame for frame in found]
            at += step
        assert all(kind not in OUTPUT for kind, _ in got)
        decoder = FrameDecoder(RUN)
        for kind, payload in got:
            decoder.push(payload if kind == RAW else encode(kind, payload))
            assert not decoder.unfinished  # frames are whole: anything may follow them
        assert merged(taken(decoder)) == merged(SENT)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("bad", [b"\x01\x00\x10\x00\x01", b"\x02\x00\x00\x00\x00", b"\x09\x00\x00\x00\x01x", b"HTTP/"])
def test_invalid_frame_is_a_protocol_error_after_the_valid_ones(bad: bytes, raw: bool) -> None:
    decoder = FrameDecoder(RUN)
    if raw:
        decoder.keep_raw()
    decoder.push(encode(STDOUT, b"before") + bad)
    assert decoder.next() == ((RAW, encode(STDOUT, b"before")) if raw else (STDOUT, b"before"))
    with pytest.raises(KeeperProtocolError):
        decoder.next()


def test_bytes_after_the_last_frame_are_ignored() -> None:
    for raw in (False, True):
        decoder = FrameDecoder(RUN)
        if raw:
            decoder.keep_raw()
        decoder.push(encode(STDOUT, b"x") + encode(EXIT, b"{}") + b"HTTP/1.1 200 OK")
        assert [kind for kind, _ in taken(decoder)] == [RAW if raw else STDOUT, EXIT]
        assert decoder.rest == b"HTTP/1.1 200 OK"


def test_frame_received_byte_by_byte_takes_linear_time() -> None:
    wire = encode(EXIT, b"x" * MAX_PAYLOAD)
    for raw in (False, True):
        decoder = FrameDecoder(RUN)
        if raw:
            decoder.keep_raw()
        began = time.process_time()
        for at in range(0, len(wire), 64):
            decoder.push(wire[at : at + 64])
        assert taken(decoder) == [(EXIT, b"x" * MAX_PAYLOAD)]
        assert time.process_time() - began < 5
