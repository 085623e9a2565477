"""Secrets are found and masked however a stream is cut."""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable
from urllib.parse import quote

import pytest

from skerry.network.worker.secrets.masking import SecretPatterns, StreamMask, TextDetector, echoed_spellings, in_base64

SECRET = 's3cr3t/+=&"value'


def masked(pieces: list[bytes], *patterns: bytes) -> bytes:
    mask = StreamMask(SecretPatterns(patterns))
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


def test_stream_is_masked_the_same_at_any_cut() -> None:
    chance = random.Random(4)
    for _ in range(3000):
        patterns = [bytes(chance.choices(b"ab", k=chance.randint(1, 6))) for _ in range(chance.randint(1, 3))]
        body = bytes(chance.choices(b"abc", k=chance.randint(0, 40)))
        cuts = sorted(chance.randint(0, len(body)) for _ in range(4))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert masked(pieces, *patterns) == SecretPatterns(patterns).mask(body)


def test_overlapping_occurrences_leave_no_byte_of_either() -> None:
    assert masked([b"xaba", b"bay"], b"aba") == b"x*****y"
    assert masked([b"x-secret-", b"more-y"], b"-secret-", b"secret-more") == b"x" + b"*" * 12 + b"-y"


def test_line_passes_at_once_and_a_word_waits_for_the_next_piece() -> None:
    mask = StreamMask(SecretPatterns([b"s3cr3t-value"]))
    assert mask.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert mask.feed(b"data: s3cr") == b"data: "
    assert mask.feed(b"et\n") == b"s3cret\n"
    assert mask.feed(b"x" * 100) == b"x" * 89, "no more than could be of a secret"


def test_a_right_guess_is_held_back_no_longer_than_a_wrong_one() -> None:
    for guess in (b"s3cr3t", b"s3cr3x", b"xxxxxx"):
        mask = StreamMask(SecretPatterns([b"s3cr3t-value"]))
        assert mask.feed(b"echo: " + guess) == b"echo: "
        assert mask.feed(b"\n") == guess + b"\n"


def test_a_secret_with_blanks_in_it_is_masked_too() -> None:
    assert masked([b"my long", b" secret phrase here"], b"long secret phrase") == b"my " + b"*" * 18 + b" here"


def test_partial_match_at_the_end_of_the_stream_is_sent_unchanged() -> None:
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
    assert b"cr3t" not in masked([b"<" + echo + b">"], *echoed_spellings(SECRET))


SPECIAL = "s3c r3t/+=&~*'()!value"
JS, JAVA = "s3c%20r3t%2F%2B%3D%26~*'()!value", "s3c+r3t%2F%2B%3D%26%7E*%27%28%29%21value"


@pytest.mark.parametrize(
    "echo",
    [
        JS, JAVA, JS.replace("%20", "+"), JS.lower(), JAVA.lower(), quote(JS, safe=""), quote(JAVA, safe="").lower(),
        "".join(f"%{ord(char):02x}" for char in SPECIAL), "".join(f"%u{ord(char):04X}" for char in SPECIAL),
        "".join(f"\\u{ord(char):04X}" for char in SPECIAL), "".join(f"\\u{ord(char):04x}" for char in SPECIAL),
        "".join(f"\\x{ord(char):02x}" for char in SPECIAL), "".join(f"\\{ord(char):03o}" for char in SPECIAL),
        "".join(f"\\u{{{ord(char):x}}}" for char in SPECIAL), "".join(f"&#{ord(char)};" for char in SPECIAL),
        "".join(f"&#x{ord(char):X};" for char in SPECIAL), "".join(f"&#X{ord(char):04x};" for char in SPECIAL),
        "".join(f"&#{ord(char):04}" for char in SPECIAL), SPECIAL.replace("/", "\\/").replace("'", "\\'"),
        "s3c r3t/\\u002B=\\u0026~*'()!value", "s3c r3t/&#43;=&amp;~*&#39;()!value",
        "s3c r3t&#x2F;+=&#38;~*&#x27;()!value",
        "s3c r3t&sol;&plus;&equals;&amp;~&ast;&apos;&lpar;&rpar;&excl;value",
        json.dumps("".join(f"\\u{ord(char):04x}" for char in SPECIAL)),
        html.escape("".join(f"&#{ord(char)};" for char in SPECIAL)), json.dumps(JAVA).replace("%", "\\u0025"),
    ],
)  # fmt: skip
def test_an_echo_with_any_characters_escaped_is_masked_wherever_it_is_cut(echo: str) -> None:
    body = b'["' + echo.encode() + b'"]'
    expected = masked([body], *echoed_spellings(SPECIAL))
    assert b"value" not in expected
    assert b"r3t" not in expected
    assert expected[3:-3].strip(b'"\\') == b"*" * len(expected[3:-3].strip(b'"\\'))
    for cut in range(len(body)):
        assert masked([body[:cut], body[cut:]], *echoed_spellings(SPECIAL)) == expected


def test_random_mixtures_of_escapes_are_masked_at_any_cut() -> None:
    chance = random.Random(15)
    ways: list[Callable[[str], str]] = [
        lambda c: c, lambda c: f"%{ord(c):02X}", lambda c: f"%{ord(c):02x}", lambda c: f"\\u{ord(c):04X}",
        lambda c: f"&#{ord(c)};", lambda c: f"&#x{ord(c):x};", lambda c: f"%25{ord(c):02X}",
        lambda c: f"&amp;#{ord(c)};", lambda c: f"\\\\u{ord(c):04x}", lambda c: f"%5Cu{ord(c):04x}",
    ]  # fmt: skip
    for _ in range(1500):
        secret = "".join(chance.choices("abcXYZ019-_./+=~ ", k=chance.randint(8, 40))).replace(" ", "x")
        echo = "".join(chance.choice(ways)(char) for char in secret).encode()
        before, after = (bytes(chance.choices(b'<"[ %\\&;', k=chance.randint(0, 3))) for _ in range(2))
        body = before + b" " + echo + b" " + after
        cuts = sorted(chance.randint(0, len(body)) for _ in range(6))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert masked(pieces, *echoed_spellings(secret)) == before + b" " + b"*" * len(echo) + b" " + after


def test_a_value_that_has_escapes_in_it_is_masked_in_all_usual_forms() -> None:
    value = "p&#65;ss%41wo\\u0041rd%252B"
    for echo in (value, quote(value, safe=""), json.dumps(value), html.escape(value), quote(quote(value, safe=""))):
        assert b"ss" not in masked([echo.encode()], *echoed_spellings(value))
        assert b"wo" not in masked([echo.encode()], *echoed_spellings(value))


def test_escapes_are_held_back_whether_they_could_be_the_secret_or_not() -> None:
    """The delay tells nothing, and a plain word is held back no longer than before."""
    for guess in ("s3cr3t", "xxxxxx"):
        mask = StreamMask(SecretPatterns([b"s3cr3t-value"]))
        escaped = "".join(f"%{ord(char):02x}" for char in guess).encode()
        assert mask.feed(b"echo: " + escaped) == b"echo: "
        assert mask.feed(b"\n") == escaped + b"\n"


def test_a_body_full_of_escapes_is_decoded_a_bounded_number_of_times() -> None:
    """However deep they are nested: `%25252525…` is decoded twice."""
    body = b"%" + b"25" * 200_000
    assert masked([body[n : n + 65536] for n in range(0, len(body), 65536)], b"s3cr3t-value") == body


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
        wire = TextDetector({b"skerry-secret-TOKEN-abc": "TOKEN"})
        assert "TOKEN" in (wire.feed(body[:cut]), wire.feed(body[cut:]))


def test_a_wire_is_not_tripped_by_less() -> None:
    wire = TextDetector({b"skerry-secret-TOKEN-abc": "TOKEN"})
    assert wire.feed(b"skerry-secret-TOKEN-ab") is None
    assert wire.feed(b"d skerry-secret-OTHER-abc") is None
