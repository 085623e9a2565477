"""Connections that are held open without a use: every state of a connection ends by itself, and one source cannot take
the connections of the others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.listening_server import Listening
from support.previews import read_all
from support.server import wait_until

from skerry.server.http.protocol import SLICE, BoundedProtocol, ConnectionLimits

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
DENIED = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SHORT = ConnectionLimits(request_timeout_s=1.0, idle_timeout_s=1.2)
FEW = ConnectionLimits(max_connections=20, max_per_address=8)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    made = Listening(tmp_path_factory.mktemp("server"), limits=SHORT).start()
    yield made
    made.stop()


@pytest.fixture
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    made = Listening(tmp_path_factory.mktemp("server"), limits=FEW).start()
    yield made
    made.stop()


def connect(listening: Listening, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", listening.port), 30, (source, 0))
    connection.settimeout(30)
    return connection


def answer(connection: socket.socket) -> bytes:
    """Read one response with a short body."""
    received = b""
    while not received.endswith(b"}") and (piece := connection.recv(65536)):
        received += piece
    return received


@pytest.mark.parametrize("beginning", [b"", b"\r\n", b"GET", GET[:-2], GET + b"GET /hea", GET + b"\r\nGET /hea"])
def test_head_that_does_not_end_is_answered_with_408(impatient: Listening, beginning: bytes) -> None:
    with connect(impatient) as connection:
        connection.sendall(beginning)
        assert b" 408 " in read_all(connection).rpartition(b"HTTP/1.1")[2].partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET,
        b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n",
        DENIED + b"Content-Length: 10\r\n\r\n",
        DENIED + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
@pytest.mark.parametrize("after", [b"", b"\r\n", b"1"])
def test_connection_is_closed_after_any_response(impatient: Listening, request_bytes: bytes, after: bytes) -> None:
    with connect(impatient) as connection:
        connection.sendall(request_bytes)
        answer(connection)
        connection.sendall(after)
        read_all(connection)


@pytest.mark.parametrize("after", [b"\r\n", b"1"])
def test_dribbled_bytes_do_not_extend_a_connection(impatient: Listening, after: bytes) -> None:
    head = GET if after == b"\r\n" else DENIED + b"Content-Length: 100000\r\n\r\n"
    with connect(impatient) as connection:
        connection.sendall(head)
        answer(connection)
        connection.settimeout(0.05)
        for _ in range(600):
            try:
                connection.sendall(after)
                if connection.recv(1000) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("600 bytes, one at a time, held the connection open")


@pytest.mark.parametrize("begun", [b"", b"{"])
def test_body_that_stops_is_answered_with_408(impatient: Listening, begun: bytes) -> None:
    with impatient.unix() as http:
        secret = http.post("/v1/tokens", json={"scope": "use"}).json()["secret"]
    with connect(impatient) as connection:
        head = DENIED + f"Authorization: Bearer {secret}\r\nContent-Length: 10\r\n\r\n".encode()
        connection.sendall(head + begun)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_input_of_a_process_may_pause(impatient: Listening) -> None:
    with impatient.unix() as http:
        secret = http.post("/v1/tokens", json={"scope": "use"}).json()["secret"]
    path = b"POST /v1/sandboxes/a/processes/p-aaaaaaaaaa/stdin HTTP/1.1\r\nHost: localhost\r\n"
    with connect(impatient) as live, connect(impatient) as silent:
        live.sendall(path + f"Authorization: Bearer {secret}\r\nContent-Length: 2\r\n\r\n1".encode())
        for _ in range(3):  # three times as long as a connection without a caller
            silent.sendall(GET[:10])
            assert b" 408 " in read_all(silent)
            silent.close()
            silent = connect(impatient)
        live.sendall(b"2")
        assert live.recv(100).startswith(b"HTTP/1.1 204 ")
        silent.close()


def test_peer_that_does_not_read_is_cut_off(impatient: Listening) -> None:
    with connect(impatient) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(ConnectionError):
            while True:  # ends when the server resets the connection; else the test fails with a timeout
                connection.sendall(GET * 1000)


def test_half_closed_connection_ends(impatient: Listening) -> None:
    with connect(impatient) as connection:
        connection.sendall(GET[:10])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


def test_flood_from_one_address_leaves_the_others_alone(crowded: Listening) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(crowded)) for _ in range(FEW.max_per_address)]
        for connection in held:
            connection.sendall(GET)
            answer(connection)
        with connect(crowded) as refused:
            assert read_all(refused) == b""
        with connect(crowded, "127.0.0.2") as other, crowded.unix() as http:
            other.sendall(GET)
            assert answer(other).startswith(b"HTTP/1.1 200 ")
            assert http.get("/healthz").status_code == 200
    wait_until(lambda: is_served(crowded), "the address to be served again")


def is_served(listening: Listening) -> bool:
    with connect(listening) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(GET)
        return connection.recv(100).startswith(b"HTTP/1.1 200 ")
    return False


def test_flood_from_all_addresses_leaves_the_unix_socket_alone(crowded: Listening) -> None:
    with contextlib.ExitStack() as stack:
        for n in range(FEW.max_connections):
            stack.enter_context(connect(crowded, f"127.0.0.{2 + n // 4}"))
        with connect(crowded) as refused:
            assert read_all(refused) == b""
        with crowded.unix() as http:
            assert http.get("/healthz").status_code == 200


def test_pipelined_requests_wait_as_bytes(crowded: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []
    start = BoundedProtocol._start_asgi_task

    def counted(self: BoundedProtocol, cycle: Any, app: Any) -> None:
        longest.append(len(self.pipeline))
        start(self, cycle, app)

    monkeypatch.setattr(BoundedProtocol, "_start_asgi_task", counted)
    with connect(crowded) as connection:
        sending = threading.Thread(target=connection.sendall, args=(GET * 20_000,))
        sending.start()
        received = bytearray()
        while received.count(b'{"ok":true}', -20) == 0 or received.count(b'{"ok":true}') < 20_000:
            received += connection.recv(1 << 20)
        sending.join(20)
    assert len(longest) == 20_000
    assert max(longest) <= SLICE // len(GET)
