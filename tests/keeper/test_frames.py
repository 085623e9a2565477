"""The frames of a process: any cut of the bytes gives the same, and nothing is held without bound."""

from __future__ import annotations

import random
import time

import pytest

from skerry.keeper import KeeperLied
from skerry.keeper.frames import AS_IS, EXIT, MAX_PAYLOAD, MISSING, OUTPUT, STARTED, STDERR, STDOUT, Decoder, encode

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
        if got and got[-1][0] == kind and kind in (*OUTPUT, AS_IS):
            got[-1] = kind, got[-1][1] + payload
        else:
            got.append((kind, payload))
    return got


def taken(decoder: Decoder) -> list[tuple[int, bytes]]:
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


def test_any_cut_of_the_bytes_gives_the_same_frames() -> None:
    chance = random.Random(7)
    for _ in range(50):
        decoder, got, at = Decoder(), [], 0
        while at < len(WIRE):
            step = chance.choice(SIZES)
            decoder.feed(WIRE[at : at + step])
            got += taken(decoder)
            at += step
        assert merged(got) == merged(SENT)
        assert decoder.rest == b""


def test_output_passed_on_is_the_same_frames_wherever_that_begins() -> None:
    chance = random.Random(8)
    for _ in range(300):
        decoder, at = Decoder(), 0
        begin = chance.randrange(len(encode(*SENT[0])), len(WIRE))
        got: list[tuple[int, bytes]] = []
        while at < len(WIRE):
            step = chance.choice(SIZES)
            if at <= begin < at + step:
                got += [(AS_IS, encode(*frame)) if frame[0] in OUTPUT else frame for frame in taken(decoder)]
                decoder.pass_on()
                begin = -1
            decoder.feed(WIRE[at : at + step])
            found = taken(decoder)
            got += [(AS_IS, encode(*frame)) if frame[0] in OUTPUT else frame for frame in found]
            at += step
        assert all(kind not in OUTPUT for kind, _ in got)
        decoder = Decoder()
        for kind, payload in got:
            decoder.feed(payload if kind == AS_IS else encode(kind, payload))
            assert not decoder.unfinished  # frames are whole: anything may follow them
        assert merged(taken(decoder)) == merged(SENT)


@pytest.mark.parametrize("as_is", [False, True])
@pytest.mark.parametrize("bad", [b"\x01\x00\x10\x00\x01", b"\x02\x00\x00\x00\x00", b"\x09\x00\x00\x00\x01x", b"HTTP/"])
def test_what_is_no_frame_is_a_lie_after_what_came_before_it(bad: bytes, as_is: bool) -> None:
    decoder = Decoder()
    if as_is:
        decoder.pass_on()
    decoder.feed(encode(STDOUT, b"before") + bad)
    assert decoder.next() == ((AS_IS, encode(STDOUT, b"before")) if as_is else (STDOUT, b"before"))
    with pytest.raises(KeeperLied):
        decoder.next()


def test_what_follows_the_last_frame_is_not_looked_at() -> None:
    for as_is in (False, True):
        decoder = Decoder()
        if as_is:
            decoder.pass_on()
        decoder.feed(encode(STDOUT, b"x") + encode(EXIT, b"{}") + b"HTTP/1.1 200 OK")
        assert [kind for kind, _ in taken(decoder)] == [AS_IS if as_is else STDOUT, EXIT]
        assert decoder.rest == b"HTTP/1.1 200 OK"


def test_a_frame_that_comes_byte_by_byte_costs_no_more_than_its_size() -> None:
    wire = encode(EXIT, b"x" * MAX_PAYLOAD)
    for as_is in (False, True):
        decoder = Decoder()
        if as_is:
            decoder.pass_on()
        began = time.process_time()
        for at in range(0, len(wire), 64):
            decoder.feed(wire[at : at + 64])
        assert taken(decoder) == [(EXIT, b"x" * MAX_PAYLOAD)]
        assert time.process_time() - began < 5
