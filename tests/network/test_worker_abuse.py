"""One sandbox, or one server, that means ill: what it costs the others, and what slips through while rules change."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence

import h11
import pytest
from network.leaving import Leaving, echo, is_reset, read_all, serving
from network.test_http_mode import GET, Far, far, talk

from skerry.network import authority
from skerry.network.hosts import Address, Name
from skerry.network.messages import PROXY, PROXY_PORT, Brokered, Rules
from skerry.network.worker.inspection import Inspector
from skerry.network.worker.limits import Turns
from skerry.network.worker.previews.upstream import HEAD_MOST
from skerry.network.worker.resolve import Resolver, dial

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


# -- rules that change while a connection is being made ---------------------------------------------------------------


@pytest.fixture
def slow_names(leaving: Leaving) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Look-ups that wait: the first event is set when one is asked, the second lets them go on."""
    asked, go = threading.Event(), threading.Event()

    def look_up(name: Name) -> list[Address]:
        asked.set()
        assert go.wait(10)
        return leaving.world.look_up(name)

    leaving.resolver.close()
    leaving.resolver = Resolver(look_up)
    yield asked, go
    go.set()


Slow = tuple[threading.Event, threading.Event]


def test_a_tunnel_that_is_refused_while_it_is_made_is_not_opened(leaving: Leaving, slow_names: Slow) -> None:
    asked, go = slow_names
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect(PROXY, PROXY_PORT) as sock:
            sock.sendall(f"CONNECT far.example:{port} HTTP/1.1\r\nHost: far.example:{port}\r\n\r\n".encode())
            assert asked.wait(10)
            leaving.change(f"far.example:{port}@127.0.0.1", deny=("far.example",))
            go.set()
            with contextlib.suppress(ConnectionResetError):
                assert not read_all(sock).startswith(b"HTTP/1.1 200 ")
    assert leaving.denied("far.example", "denied by")


@pytest.mark.parametrize("data", [b"\x01", b"GET / HTTP/1.1\r\nHost: far.example\r\n\r\n"])
def test_an_address_that_is_denied_while_it_is_dialled_is_not_used(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    dialled, go = threading.Event(), threading.Event()

    async def slowly(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
        found = await dial(addresses, port)
        dialled.set()
        await asyncio.to_thread(go.wait, 10)
        return found

    monkeypatch.setattr("skerry.network.worker.reach.dial", slowly)
    with serving(echo) as port:
        leaving.world.names["far.example"] = ["127.0.0.1"]
        leaving.open(f"far.example:{port}@127.0.0.1")
        with leaving.connect("far.example", port) as sock:
            sock.sendall(data)
            assert dialled.wait(10)
            leaving.change(f"far.example:{port}@127.0.0.1", deny=("127.0.0.0/8",))
            go.set()
            assert is_reset(sock)
    assert leaving.denied("denied by 127.0.0.0/8")


def test_a_yes_holds_for_requests_too(leaving: Leaving) -> None:
    async def yes(host: str, port: int | None) -> tuple[bool, str]:
        return True, "the owner said so"

    leaving.world.answer = yes
    server = Far()
    with far(leaving, server):
        address = leaving.world.names["far.example"][0]
        leaving.open(f"{address}:80", on_unknown="ask")
        assert talk(leaving, GET).startswith(b"HTTP/1.1 200 ")
        client = http.client.HTTPConnection("far.example")
        client.sock = leaving.connect("far.example", 80)
        for _ in range(2):
            client.request("GET", "/")
            assert client.getresponse().read() == b"ok"
        leaving.change(f"{address}:80", deny=("far.example",), on_unknown="ask")
        assert is_reset(client.sock)
        client.close()


# -- limits and repeats -----------------------------------------------------------------------------------------------


def test_the_total_holds_for_requests_on_a_kept_connection(leaving: Leaving) -> None:
    server = Far()
    with far(leaving, server):
        address = leaving.world.names["far.example"][0]
        leaving.open(f"far.example@{address}", total=20_000)
        with contextlib.suppress(ConnectionError):
            talk(leaving, GET.replace(b"Connection: close", b"X-Out: " + b"x" * 5_000) * 20)
        assert sum(map(len, server.requests)) < 30_000
        assert leaving.denied("total of 20,000 bytes is used up")


def test_a_request_that_must_not_happen_twice_is_not_repeated(leaving: Leaving) -> None:
    def once(request: bytes, sock: socket.socket) -> None:
        if b"/second" in request:
            sock.close()
        else:
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = Far(once)
    with far(leaving, server):
        client = http.client.HTTPConnection("far.example")
        client.sock = leaving.connect("far.example", 80)
        client.request("GET", "/first")
        assert client.getresponse().read() == b"ok"
        client.request("POST", "/second")
        assert client.getresponse().status == 502
        client.close()
    assert len([one for one in server.requests if b"/second" in one]) == 1


def test_a_request_goes_by_the_secrets_of_the_moment_it_leaves(leaving: Leaving, slow_names: Slow) -> None:
    """Not by those of the moment it came: what was taken away or given while its host was looked up counts."""
    asked, go = slow_names
    server = Far()
    with far(leaving, server):
        address = leaving.world.names["far.example"][0]
        secret = Brokered(name="TOKEN", hosts=("api.example",), placeholder="skerry-secret-TOKEN-abc", value="v" * 20)
        with leaving.connect("far.example", 80) as sock:
            sock.sendall(GET.replace(b"Connection: close", b"X: skerry-secret-TOKEN-abc"))
            assert asked.wait(10)
            leaving.inspection = Inspector(Rules(secrets=(secret,)))
            leaving.change(f"far.example@{address}", secrets=(secret,))
            go.set()
            assert read_all(sock).startswith(b"HTTP/1.1 403 ")
    assert server.requests == []
    assert leaving.denied("placeholder of secret TOKEN")


def test_greetings_that_have_to_be_opened_wait_for_their_turn(leaving: Leaving) -> None:
    """Each is work for a loop on which all sandboxes are."""
    inside = authority.make("sb-aaaaaaaaaa", 3600)
    leaving.inspection = Inspector(Rules(authority=inside))
    leaving.open("far.example", inspect=("far.example",))
    assert leaving.egress is not None
    room = leaving.egress._room
    context = ssl.create_default_context(cadata=inside.certificate)

    def greet(limit_s: float) -> None:
        with leaving.connect("far.example", 443) as sock:
            sock.settimeout(limit_s)
            context.wrap_socket(sock, server_hostname="far.example").close()

    room.shakes = Turns(0, 1)
    greet(10)
    with pytest.raises(TimeoutError):
        greet(0.5)
    room.shakes = Turns(100, 100)
    greet(10)


def test_an_upstream_proxy_is_not_reached_by_another_name_or_its_address(leaving: Leaving) -> None:
    """Also where no rule tells which address is the proxy's."""
    asked: list[bytes] = []

    def proxy(sock: socket.socket) -> None:
        asked.append(sock.recv(4096).split(b"\r\n")[0])
        sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        echo(sock)

    with serving(proxy, "127.0.0.9") as port:
        leaving.world.names |= {"proxy.internal": ["127.0.0.9"], "alias.internal": ["127.0.0.9"]}
        leaving.open(
            "far.example:7000", f"proxy.internal:{port}", f"alias.internal:{port}", f"127.0.0.0/8:{port}",
            proxies=((("far.example:7000",), f"http://proxy.internal:{port}"),),
        )  # fmt: skip
        with leaving.connect("far.example", 7000) as sock:
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
        for way in ("alias.internal", "proxy.internal"):
            assert leaving.refused(way, port)
        with leaving.connect(PROXY, PROXY_PORT) as sock:
            sock.sendall(f"CONNECT 127.0.0.9:{port} HTTP/1.1\r\nHost: 127.0.0.9:{port}\r\n\r\n".encode())
            assert read_all(sock).startswith(b"HTTP/1.1 403 ")
    assert asked == [b"CONNECT far.example:7000 HTTP/1.1"]
    assert leaving.denied("upstream proxy")
