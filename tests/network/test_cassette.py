"""Recorded HTTP exchanges: served again in the recorded order with the network closed, bounded, and never more than was
recorded."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from support.egress import EgressHarness, echo, random_loopback, read_all, serve_tcp

from skerry.codecs import cassette as codec
from skerry.network.messages import PROXY_IP, PROXY_PORT

ZIPPED = gzip.compress(b"zipped " * 100, mtime=0)
CHUNKED = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (b"first ", b"second ", b"third")) + b"0\r\n\r\n"
RESPONSES = {
    b"/": b"HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nX-One: 1\r\nX-One: 2\r\n\r\nhello",
    b"/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    b"/gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED,
    b"/none": b"HTTP/1.1 204 No Content\r\nX-None: 1\r\n\r\n",
    b"/same": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 77\r\n\r\n",
    b"/end": b"HTTP/1.0 200 OK\r\nX-End: 1\r\n\r\nuntil the end",
    b"/large": b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"l" * 200_000,
    b"/larger": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n" + b"l" * 200_000 + b"\r\n0\r\n\r\n",
}


class Far:
    """A server that counts the requests of each path; the answer to /count has the number."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def __call__(self, sock: socket.socket) -> None:
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                if not (more := sock.recv(65536)):
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
                while len(data) < int(length[1]):
                    data += sock.recv(65536)
                data = data[int(length[1]) :]
            method, path = head.split(b" ")[:2]
            with self._lock:
                self.seen[path] += 1
                count = b"%d" % self.seen[path]
            path = path.partition(b"?")[0]
            response = RESPONSES.get(path, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(count), count))
            sock.sendall(response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else response)
            if path == b"/end":
                return


Reopen = Callable[[str], None]


@contextlib.contextmanager
def far(harness: EgressHarness, server: Callable[[socket.socket], None], port: int = 80) -> Iterator[Reopen]:
    """Serve on this machine; the yielded function opens an egress that records or replays."""
    address = random_loopback()
    with serve_tcp(server, address, port):
        harness.server.hosts |= {"far.example": [address]}

        def reopen(mode: str) -> None:
            harness.open(f"far.example:*@{address}", cassette=mode)

        yield reopen


def request(path: str = "/", method: str = "GET", body: bytes = b"", more: str = "", close: bool = True) -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nHost: far.example\r\n{more}"
    lines += f"Content-Length: {len(body)}\r\n" if body else ""
    return (lines + ("Connection: close\r\n" if close else "") + "\r\n").encode() + body


def talk(harness: EgressHarness, data: bytes, port: int = 80) -> bytes:
    with harness.connect("far.example", port) as sock:
        sock.sendall(data)
        return read_all(sock)


def journal(harness: EgressHarness) -> codec.CassetteContent:
    content = content_of(harness)
    return codec.scan(lambda offset, size: content[offset : offset + size])


def content_of(harness: EgressHarness) -> bytes:
    with open(harness.cassette_file.name, "rb") as file:
        return file.read()


def dechunked(response: bytes) -> tuple[bytes, bytes]:
    """The status line and the headers that matter, and the body without its framing."""
    head, _, body = response.partition(b"\r\n\r\n")
    framing = (b"content-length", b"transfer-encoding", b"connection")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(framing)]
    if b"chunked" in head.lower():
        pieces, rest = b"", body
        while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
            rest = rest.partition(b"\r\n")[2]
            pieces, rest = pieces + rest[:size], rest[size + 2 :]
        body = pieces
    return b"\r\n".join(lines), body


@pytest.mark.parametrize("path", [path.decode() for path in RESPONSES])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_recorded_response_is_served_again(harness: EgressHarness, path: str, method: str) -> None:
    server = Far()
    with far(harness, server) as reopen:
        reopen("record")
        first = talk(harness, request(path, method))
        assert first.startswith(b"HTTP/1.1 ")
        reopen("replay")
        again = talk(harness, request(path, method))
        assert dechunked(again) == dechunked(first)
        if method == "HEAD" or path == "/same":
            assert re.findall(rb"(?i)content-length: \d+", again) == re.findall(rb"(?i)content-length: \d+", first)
        assert sum(server.seen.values()) == 1
        attempt = harness.attempt(lambda one: "served from the cassette" in one.why)
        assert (attempt.decision, attempt.method, attempt.sent, attempt.received) == ("allowed", method, 0, 0)


def test_equal_requests_are_served_in_order_and_no_more_than_recorded(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server) as reopen:
        reopen("record")
        assert [talk(harness, request("/count"))[-1:] for _ in range(3)] == [b"1", b"2", b"3"]
        reopen("replay")
        assert [talk(harness, request("/count"))[-1:] for _ in range(2)] == [b"1", b"2"]
        reopen("replay")  # as after a restart of the worker
        assert talk(harness, request("/count"))[-1:] == b"3"
        refused = talk(harness, request("/count"))
        assert refused.startswith(b"HTTP/1.1 502 Not in the cassette\r\n")
        assert b"the cassette has 3 responses to this request, all used" in refused
        denied = harness.denied_attempt("all used")
        assert (denied.kind, denied.host, denied.path) == ("request", "far.example", "/count")
        assert server.seen[b"/count"] == 3


def test_unrecorded_request_fails_and_nothing_leaves(harness: EgressHarness) -> None:
    server = Far()
    with far(harness, server) as reopen:
        reopen("record")
        talk(harness, request("/count", "POST", b"one"))
        reopen("replay")
        counted = len(harness.server.traffic)
        for asked, why in (
            (request("/other"), b"no response to this request"),
            (request("/count", "POST", b"two"), b"only with another body"),
            (request("/count"), b"no response to this request"),
        ):
            refused = talk(harness, asked)
            assert refused.startswith(b"HTTP/1.1 502 Not in the cassette\r\n")
            assert why in refused
            assert b"--record-network" in refused
        assert talk(harness, request("/count", "POST", b"one"))[-1:] == b"1"
        assert sum(server.seen.values()) == 1
        harness.close()
        assert harness.server.traffic[counted:] == []


def test_kept_and_pipelined_connections_are_recorded_request_by_request(harness: EgressHarness) -> None:
    server = Far()
    chunked = b"POST /chunked HTTP/1.1\r\nHost: far.example\r\nContent-Length: 3\r\n\r\nabc"
    asked = request("/a", close=False) + chunked + request("/b", close=False) + request("/none", close=False)
    asked += request("/c", "PUT", b"x" * 100_000)
    with far(harness, server) as reopen:
        reopen("record")
        first = talk(harness, asked)
        assert first.count(b"HTTP/1.1 ") == 5
        reopen("replay")
        again = talk(harness, asked)
        assert again.count(b"HTTP/1.1 ") == 5
        assert len(journal(harness).complete()) == 5
        assert sum(server.seen.values()) == 5


def test_body_is_matched_however_it_is_framed(harness: EgressHarness) -> None:
    with far(harness, Far()) as reopen:
        reopen("record")
        talk(harness, request("/count", "POST", b"abcdef"))
        reopen("replay")
        framed = b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
        more = "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
        reply = talk(harness, request("/count", "POST", more=more) + framed)
        assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_accept_and_range_belong_to_the_key(harness: EgressHarness) -> None:
    with far(harness, Far()) as reopen:
        reopen("record")
        talk(harness, request("/count", more="Accept: text/html\r\n"))
        talk(harness, request("/count", more="Range: bytes=0-9\r\n"))
        reopen("replay")
        assert talk(harness, request("/count", more="Range: bytes=0-9\r\nUser-Agent: other\r\n"))[-1:] == b"2"
        assert b"another body, Accept or Range" in talk(harness, request("/count"))
        assert talk(harness, request("/count", more="Accept: text/html\r\n"))[-1:] == b"1"


@pytest.mark.parametrize("path", ["/large", "/larger"])
def test_response_above_the_bound_passes_and_is_not_recorded(
    harness: EgressHarness, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(codec, "MAX_BODY", 100_000)
    with far(harness, Far()) as reopen:
        reopen("record")
        assert dechunked(talk(harness, request(path)))[1] == b"l" * 200_000
        assert "not recorded: its response is larger than" in harness.attempt(lambda one: "not recorded" in one.why).why
        assert [one.url for one in journal(harness).omitted] == [f"http://far.example{path}"]
        assert len(content_of(harness)) < 150_000
        reopen("replay")
        assert b"this request was not recorded: its response is larger" in talk(harness, request(path))


@pytest.mark.parametrize(("bound", "value"), [("MAX_EXCHANGES", 3), ("MAX_SIZE", 5000), ("MAX_LINES", 10)])
def test_flood_of_requests_fills_the_cassette_and_no_more(
    harness: EgressHarness, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(codec, bound, value)
    server = Far()
    with far(harness, server) as reopen:
        reopen("record")
        for number in range(12):
            assert talk(harness, request(f"/{number}")).endswith(b"1"), "the program is not disturbed"
        found = journal(harness)
        assert found.full is not None
        assert found.full.startswith("the cassette is full")
        assert 0 < len(found.complete()) < 12
        assert len(content_of(harness)) <= 5000
        harness.attempt(lambda one: "not recorded: the cassette is full" in one.why)
        reopen("record")  # a full one stays full
        talk(harness, request("/more"))
        assert len(journal(harness).complete()) == len(found.complete())
        reopen("replay")
        assert talk(harness, request("/0")).endswith(b"1")
        assert b"the cassette is full" in talk(harness, request("/11"))


def test_websocket_is_not_recorded(harness: EgressHarness) -> None:
    def serve(sock: socket.socket) -> None:
        head = sock.recv(65536)
        key = re.search(rb"Sec-Websocket-Key: (\S+)", head)
        assert key is not None
        accept = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        sock.sendall(
            b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        sock.recv(100)

    key = base64.b64encode(random.randbytes(16)).decode()
    more = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    with far(harness, serve) as reopen:
        reopen("record")
        with harness.connect("far.example", 80) as sock:
            sock.sendall(request("/ws", more=more, close=False))
            assert sock.recv(1000).startswith(b"HTTP/1.1 101")
            sock.sendall(b"bye")
        harness.wait_idle()
        assert [one.why for one in journal(harness).omitted] == ["it is a WebSocket"]
        reopen("replay")
        assert b"not recorded: it is a WebSocket" in talk(harness, request("/ws", more=more, close=False))


def test_other_protocols_pass_while_recording_and_are_denied_in_a_replay(harness: EgressHarness) -> None:
    with far(harness, echo, port=7) as reopen:
        reopen("record")
        with harness.connect("far.example", 7) as sock:
            sock.sendall(b"\x00binary")
            assert sock.recv(100) == b"\x00binary"
        harness.wait_idle()
        assert [(one.url, one.method) for one in journal(harness).omitted] == [("far.example:7", "")]
        reopen("replay")
        with harness.connect("far.example", 7) as sock, contextlib.suppress(ConnectionResetError):
            sock.sendall(b"\x00binary")
            assert read_all(sock) == b""
        harness.denied_attempt("neither HTTP nor TLS")


def test_forward_proxy_records_and_replays(harness: EgressHarness) -> None:
    server = Far()

    def through_proxy(data: bytes) -> bytes:
        with harness.connect(PROXY_IP, PROXY_PORT) as sock:
            sock.sendall(data)
            return read_all(sock)

    absolute = request("http://far.example/count")
    tunnel = b"CONNECT far.example:80 HTTP/1.1\r\nHost: far.example:80\r\n\r\n" + request("/count")
    with far(harness, server) as reopen:
        reopen("record")
        assert through_proxy(absolute).endswith(b"1")
        assert through_proxy(tunnel).endswith(b"2")
        reopen("replay")
        assert through_proxy(tunnel).endswith(b"1"), "the same URL, by another way"
        assert through_proxy(absolute).endswith(b"2")
        assert server.seen[b"/count"] + server.seen[b"http://far.example/count"] == 2


def test_cassette_cut_at_any_byte_serves_its_whole_exchanges(harness: EgressHarness) -> None:
    with far(harness, Far()) as reopen:
        reopen("record")
        for path in ("/", "/gzip", "/count"):
            talk(harness, request(path))
        harness.close()
        content = content_of(harness)
        whole = [
            len(codec.scan(lambda offset, size, cut=cut: content[:cut][offset : offset + size]).complete())  # type: ignore[misc]
            for cut in range(len(codec.MAGIC), len(content) + 1)
        ]
        assert sorted(whole) == whole
        assert (whole[0], whole[-2], whole[-1]) == (0, 2, 3)
        with open(harness.cassette_file.name, "r+b") as file:
            file.truncate(len(content) - 3)
        reopen("record")  # continues after the last whole line
        talk(harness, request("/count"))
        reopen("replay")
        assert talk(harness, request("/")).endswith(b"hello")
        assert talk(harness, request("/count")).endswith(b"2")


LINE = codec.encode(codec.ExchangeHead(number=1, method="GET", url="http://a/", status=200))


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n",
        b"\x00" * 100 + b"\n",
        codec.MAGIC + b"not json\n",
        codec.MAGIC + b'{"line":"other"}\n',
        codec.MAGIC + LINE + LINE,
        codec.MAGIC + codec.encode_data(1, b"no head"),
        codec.MAGIC + codec.encode(codec.End(number=1)),
        codec.MAGIC + LINE + codec.encode(codec.Data(number=1, length=3)) + b"abcdef\n",
        codec.MAGIC + LINE + codec.encode(codec.Data(number=1, length=-3)) + b"abc\n",
        codec.MAGIC + LINE + codec.encode(codec.Data(number=1, length=1 << 40)) + b"abc\n",
        codec.MAGIC + LINE.replace(b"200", b"101"),
        codec.MAGIC + LINE.replace(b"}", b',"headers":[["a","b\\r\\nc: d"]]}'),
        codec.MAGIC + LINE.replace(b"}", b',"headers":[["a b","c"]]}'),
        codec.MAGIC + LINE.replace(b"}", b',"more":1}'),
        codec.MAGIC + b"x" * (codec.MAX_LINE + (1 << 17)),
        codec.MAGIC + b"[" * 100_000 + b"\n",
    ],
    ids=range(16),
)
def test_bytes_that_no_recorder_writes_are_rejected(content: bytes) -> None:
    with pytest.raises(codec.DamagedCassette):
        codec.scan(lambda offset, size: content[offset : offset + size])


def test_random_bytes_never_break_the_reader() -> None:
    choice = random.Random(7)
    content = codec.MAGIC + LINE + codec.encode_data(1, b"abc" * 99) + codec.encode(codec.End(number=1))
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(choice.randint(1, 5)):
            changed[choice.randrange(len(changed))] = choice.randrange(256)
        cut = bytes(changed[: choice.randrange(len(changed) + 1)])
        with contextlib.suppress(codec.DamagedCassette):
            found = codec.scan(lambda offset, size, cut=cut: cut[offset : offset + size])  # type: ignore[misc]
            list(codec.export(lambda offset, size, cut=cut: cut[offset : offset + size], found))  # type: ignore[misc]
