"""One sandbox, or one server, that means ill: what it costs the others, and what slips through while rules change."""

from __future__ import annotations

import h11
import pytest
from network.leaving import Leaving, is_reset
from network.test_http_mode import GET, Far, far, talk

from skerry.network.worker.previews.upstream import HEAD_MOST

BLANKS = b" " * 60_000  # with a quadratic pattern, half a minute in which nobody else is served


@pytest.mark.parametrize("line", [b"GET " + BLANKS[:16_000], b"GET \t" + b"\t " * 8_000])
def test_a_first_line_of_blanks_costs_nobody_anything(leaving: Leaving, line: bytes) -> None:
    with far(leaving, Far()), leaving.connect("far.example", 80) as sock:
        sock.sendall(line)
        sock.sendall(b"x" * 2_000)
        assert is_reset(sock)


def test_a_header_of_blanks_costs_nobody_anything(leaving: Leaving) -> None:
    with far(leaving, Far()):
        assert talk(leaving, GET[:-2] + b"X:" + BLANKS + b"\x01\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_an_answer_with_a_header_of_blanks_costs_nobody_anything(leaving: Leaving) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX:" + BLANKS + b"\0\r\n\r\n"
    with far(leaving, Far(lambda request, sock: sock.sendall(answer))):
        assert talk(leaving, GET).startswith(b"HTTP/1.1 502 ")


def test_h11_takes_headers_as_before() -> None:
    def read(line: bytes) -> object:
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
        reader.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n")
        event = reader.next_event()
        assert isinstance(event, h11.Request)
        return list(event.headers)[1:]

    for blanks in (b"", b" ", b" \t "):
        assert read(b"X:" + blanks + b"a b" + blanks) == [(b"x", b"a b")]
        assert read(b"X:" + blanks) == [(b"x", b"")]
    for bad in (b"X : a", b"X:a\0", b": a", b"X"):
        with pytest.raises(h11.RemoteProtocolError):
            read(bad)
