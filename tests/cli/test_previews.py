"""Port mappings of `skerry forward`."""

from __future__ import annotations

import socket

import pytest

from skerry.cli.commands.previews import PortMapping, _pair
from skerry.client.transport.connection import listen_on
from skerry.errors import Conflict, InvalidRequest


@pytest.mark.parametrize(
    ("words", "pair"),
    [
        ("8000", PortMapping("127.0.0.1", 8000, 8000)),
        ("8000:3000", PortMapping("127.0.0.1", 8000, 3000)),
        ("0:3000", PortMapping("127.0.0.1", 0, 3000)),
        ("0.0.0.0:8000:3000", PortMapping("0.0.0.0", 8000, 3000)),
        ("*:8000:3000", PortMapping("0.0.0.0", 8000, 3000)),
        ("localhost:8000:3000", PortMapping("127.0.0.1", 8000, 3000)),
        ("127.0.0.2:8000", PortMapping("127.0.0.2", 8000, 8000)),
        ("[::1]:8000:3000", PortMapping("::1", 8000, 3000)),
    ],
)
def test_port_mappings_are_parsed(words: str, pair: PortMapping) -> None:
    assert _pair(words) == pair


@pytest.mark.parametrize(
    "words", ["", "0", "x", "8000:", ":8000", "8000:0", "70000", "1:70000", "1:2:3", "a.b:1:2", "[x]:1:2", "-1"]
)  # fmt: skip
def test_invalid_port_mappings_are_rejected(words: str) -> None:
    with pytest.raises(InvalidRequest):
        _pair(words)


def test_taken_port_has_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Conflict) as refused:
        listen_on("127.0.0.1", taken.getsockname()[1])
    assert refused.value.message.endswith(" cannot be used: Address already in use")
