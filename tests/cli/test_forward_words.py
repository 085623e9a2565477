"""What `skerry forward` makes of its words."""

from __future__ import annotations

import socket

import pytest

from skerry.cli.previews import Pair, _pair
from skerry.client.connection import listen_on
from skerry.errors import Conflict, InvalidRequest


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        ("8000", Pair("127.0.0.1", 8000, 8000)),
        ("8000:3000", Pair("127.0.0.1", 8000, 3000)),
        ("0:3000", Pair("127.0.0.1", 0, 3000)),
        ("0.0.0.0:8000:3000", Pair("0.0.0.0", 8000, 3000)),
        ("*:8000:3000", Pair("0.0.0.0", 8000, 3000)),
        ("localhost:8000:3000", Pair("127.0.0.1", 8000, 3000)),
        ("127.0.0.2:8000", Pair("127.0.0.2", 8000, 8000)),
        ("[::1]:8000:3000", Pair("::1", 8000, 3000)),
    ],
)
def test_ports_are_read_as_people_write_them(words: str, pair: Pair) -> None:
    assert _pair(words) == pair


@pytest.mark.parametrize(
    "words", ["", "0", "x", "8000:", ":8000", "8000:0", "70000", "1:70000", "1:2:3", "a.b:1:2", "[x]:1:2", "-1"]
)  # fmt: skip
def test_what_names_no_ports_is_refused(words: str) -> None:
    with pytest.raises(InvalidRequest):
        _pair(words)


def test_a_port_that_is_taken_is_told_in_plain_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Conflict) as refused:
        listen_on("127.0.0.1", taken.getsockname()[1])
    assert refused.value.message.endswith(" can't be listened on: Address already in use")
