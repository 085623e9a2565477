"""Secrets are found and starred out however a stream is cut."""

from __future__ import annotations

import random

import pytest

from skerry.network.worker.masking import Mask, Patterns, Tripwire, in_base64, spellings

SECRET = 's3cr3t/+=&"value'


def masked(pieces: list[bytes], *patterns: bytes) -> bytes:
    mask = Mask(Patterns(patterns))
    return b"".join([mask.feed(piece) for piece in pieces] + [mask.end()])


def test_a_secret_is_masked_wherever_the_pieces_are_cut() -> None:
    body = b"before s3cr3t-value after"
    for first in range(len(body)):
        for second in range(first, len(body)):
            pieces = [body[:first], body[first:second], body[second:]]
            assert masked(pieces, b"s3cr3t-value") == b"before ************ after"


def test_a_secret_that_comes_byte_by_byte_is_masked() -> None:
    body = b"xx s3cr3t-value s3cr3t-value yy"
    assert masked([bytes([byte]) for byte in body], b"s3cr3t-value") == b"xx ************ ************ yy"


def test_any_cut_of_any_stream_is_masked_as_the_whole_is() -> None:
    chance = random.Random(4)
    for _ in range(3000):
        patterns = [bytes(chance.choices(b"ab", k=chance.randint(1, 6))) for _ in range(chance.randint(1, 3))]
        body = bytes(chance.choices(b"abc", k=chance.randint(0, 40)))
        cuts = sorted(chance.randint(0, len(body)) for _ in range(4))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert masked(pieces, *patterns) == Patterns(patterns).mask(body)


def test_overlapping_occurrences_leave_no_byte_of_either() -> None:
    assert masked([b"xaba", b"bay"], b"aba") == b"x*****y"
    assert masked([b"x-secret-", b"more-y"], b"-secret-", b"secret-more") == b"x" + b"*" * 12 + b"-y"


def test_a_line_goes_on_at_once_and_a_word_with_what_follows() -> None:
    mask = Mask(Patterns([b"s3cr3t-value"]))
    assert mask.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert mask.feed(b"data: s3cr") == b"data: "
    assert mask.feed(b"et\n") == b"s3cret\n"
    assert mask.feed(b"x" * 100) == b"x" * 89, "no more than could be of a secret"


def test_a_right_guess_is_held_back_no_longer_than_a_wrong_one() -> None:
    for guess in (b"s3cr3t", b"s3cr3x", b"xxxxxx"):
        mask = Mask(Patterns([b"s3cr3t-value"]))
        assert mask.feed(b"echo: " + guess) == b"echo: "
        assert mask.feed(b"\n") == guess + b"\n"


def test_a_secret_with_blanks_in_it_is_masked_too() -> None:
    assert masked([b"my long", b" secret phrase here"], b"long secret phrase") == b"my " + b"*" * 18 + b" here"


def test_a_beginning_that_the_end_of_the_stream_cuts_off_comes_out_as_it_is() -> None:
    assert masked([b"ends with s3cr3t-va"], b"s3cr3t-value") == b"ends with s3cr3t-va"


def test_the_length_of_a_stream_stays() -> None:
    body = b"s3cr3t-value" * 100
    assert len(masked([body[:7], body[7:]], b"s3cr3t-value")) == len(body)


@pytest.mark.parametrize(
    "echo",
    [
        b's3cr3t/+=&"value',
        b"s3cr3t%2F%2B%3D%26%22value",
        b"s3cr3t%2f%2b%3d%26%22value",
        b's3cr3t/+=&\\"value',
        b's3cr3t\\/+=&\\"value',
        b"s3cr3t/+=&amp;&quot;value",
    ],
)
def test_an_echo_in_a_url_in_json_or_in_html_is_masked(echo: bytes) -> None:
    assert b"cr3t" not in masked([b"<" + echo + b">"], *spellings(SECRET))


def test_a_login_in_base64_is_masked_with_and_without_its_padding() -> None:
    for echo in (b"dXNlcjpzM2NyM3Q=", b"dXNlcjpzM2NyM3Q"):
        assert b"dXNl" not in masked([echo], *in_base64("user:s3cr3t"))


def test_a_long_secret_in_a_body_made_to_look_like_its_beginning_is_masked() -> None:
    secret = b"a" * 16000 + b"b"
    body = b"a" * 100_000 + secret
    assert masked([body[:50_000], body[50_000:]], secret).endswith(b"*" * len(secret))


def test_a_wire_is_tripped_wherever_the_pieces_are_cut() -> None:
    body = b"x skerry-secret-TOKEN-abc y"
    for cut in range(len(body)):
        wire = Tripwire({b"skerry-secret-TOKEN-abc": "TOKEN"})
        assert "TOKEN" in (wire.feed(body[:cut]), wire.feed(body[cut:]))


def test_a_wire_is_not_tripped_by_less() -> None:
    wire = Tripwire({b"skerry-secret-TOKEN-abc": "TOKEN"})
    assert wire.feed(b"skerry-secret-TOKEN-ab") is None
    assert wire.feed(b"d skerry-secret-OTHER-abc") is None
