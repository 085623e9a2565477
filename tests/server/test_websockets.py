"""A WebSocket under the same roof as HTTP: the same doors, one shape of refusal, bounds on everything."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server.test_hostile_requests import error, status
from support.echo_terminal import BROKEN, DEAF, ECHO, FLOOD, PLAIN, SLOW
from support.listening_server import Listening
from support.server import wait_until
from support.terminal_viewers import RawViewer, frame, handshake, path_of, said, view, view_by_tcp
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection

from skerry.server.http import websocket


def closing_code(viewer: ClientConnection) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            viewer.recv(timeout=20)
    return viewer.close_code


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_EVERY_S", 0.1)
    monkeypatch.setattr(websocket, "SILENCE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.5)


def test_terminal_works_from_first_to_last_message(listening: Listening) -> None:
    with view(listening, ECHO, "?since=41") as viewer:
        started = said(viewer)
        assert (started["type"], started["offset"], started["process"]["id"]) == ("started", 41, ECHO)
        assert said(viewer) == {"type": "missing", "missing": 3}
        viewer.send(b"\x00\xff\x03")
        assert said(viewer) == b"\x00\xff\x03"
        viewer.send('{"type":"resize","cols":132,"rows":50}')
        assert said(viewer) == b"132x50"
        viewer.send('{"type":"signal","name":"SIGINT"}')
        assert said(viewer) == b"interrupted"
        viewer.send(b"exit")
        ended = said(viewer)
        assert (ended["type"], ended["exit_code"], ended["id"]) == ("exit", 5, ECHO)
        assert closing_code(viewer) == 1000
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (["Origin: https://evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin: http://127.0.0.1"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-site"], 403),
        (["Authorization: Bearer skt_nonsense"], 401),
        (["Host: localhost"], 400),
        ([f"Sec-WebSocket-Key: {'A' * 22}=="], 400),
        (["Sec-WebSocket-Version: 13"], 400),
        (["Upgrade: websocket"], 400),
        (["Content-Length: 3"], 400),
    ],
)
def test_errors_are_sent_before_the_upgrade(listening: Listening, headers: list[str], wanted: int) -> None:
    before = listening.engine.terminals.opened
    body = b"abc" if "Content-Length: 3" in headers else b""
    answer = listening.raw(handshake(path_of(ECHO), *headers) + body, tcp=False)
    assert status(answer) == wanted
    assert error(answer)["message"]
    assert listening.engine.terminals.opened == before


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (handshake(path_of(ECHO), method="POST"), 405),
        (handshake(path_of(ECHO), method="HEAD"), 426),
        (handshake(path_of(ECHO), version="1.0"), 426),
        (handshake(path_of(ECHO)).replace(b"13", b"8"), 426),
        (handshake(path_of(ECHO)).replace(b"Upgrade: websocket", b"Upgrade: h2c"), 426),
        (handshake(path_of(ECHO)).replace(b"Connection: Upgrade", b"Connection: close"), 426),
        (handshake(path_of(ECHO), key="c2hvcnQ="), 400),
        (handshake(path_of(ECHO), key="!"), 400),
        (handshake(path_of(ECHO) + "?replay=-1"), 400),
        (handshake(path_of(ECHO) + "?since=x"), 400),
        (handshake(path_of(ECHO) + "?nonsense=1"), 400),
        (handshake(path_of(ECHO, "another")), 404),
        (handshake(path_of("p-aaaaaaaaaa")), 404),
        (handshake(path_of("..%2f..")), 404),
        (handshake("/v1/nothing"), 404),
        (handshake(path_of(PLAIN)), 409),
    ],
)
def test_invalid_handshake_gets_an_http_error(listening: Listening, asked: bytes, wanted: int) -> None:
    before = listening.engine.terminals.opened
    answer = listening.raw(asked, tcp=False)
    assert status(answer) == wanted
    if not asked.startswith(b"HEAD"):
        assert error(answer)["code"] in ("invalid_request", "not_found", "conflict")
    assert (b"upgrade: websocket" in answer.lower()) == (wanted == 426)
    assert listening.engine.terminals.opened == before


def test_no_other_path_becomes_a_websocket(listening: Listening) -> None:
    answer = listening.raw(handshake("/v1/sandboxes"), tcp=False)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def test_tcp_needs_a_token_of_the_owner(listening: Listening, token: str) -> None:
    assert status(listening.raw(handshake(path_of(ECHO)))) == 401
    assert status(listening.raw(handshake(path_of(ECHO)).replace(b"localhost", b"evil.example"))) == 421
    with listening.unix() as http:
        other = http.post("/v1/tokens", json={"scope": "use", "owner": "bob"}).json()["secret"]
    with pytest.raises(InvalidStatus) as refused:
        view_by_tcp(listening, ECHO, other)
    assert refused.value.response.status_code == 404
    with view_by_tcp(listening, ECHO, token) as viewer:
        assert said(viewer)["type"] == "started"


def test_configured_origin_is_accepted(listening: Listening) -> None:
    with view(listening, ECHO, origin="https://mine.example") as viewer:
        assert said(viewer)["type"] == "started"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ls -l\n", "not JSON"),
        ("", "not JSON"),
        ("[" * 4000, "array"),
        ('"' + "a" * 5000 + '"', "too long"),
        ('{"type":"explode"}', "explode"),
        ('{"cols":1,"rows":1}', "type"),
        ('{"type":"resize","cols":80}', "rows"),
        ('{"type":"resize","cols":"80","rows":24}', "cols"),
        ('{"type":"resize","cols":0,"rows":0}', "cols"),
        ('{"type":"resize","cols":100000,"rows":100000}', "cols"),
        ('{"type":"resize","cols":80,"rows":24,"x":1}', "x"),
        ('{"type":"signal","name":"; rm -rf /"}', "signal"),
        ('{"type":"signal","name":"KILL"}', "no KILL here"),
    ],
)
def test_invalid_control_message_is_reported_and_ends_nothing(listening: Listening, text: str, place: str) -> None:
    with view(listening, ECHO) as viewer:
        assert said(viewer)["type"] == "started"
        assert said(viewer)["type"] == "missing"
        viewer.send(text)
        refusal = said(viewer)
        assert refusal["type"] == "error"
        assert place in refusal["error"]["message"]
        viewer.send(b"still here")
        assert said(viewer) == b"still here"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"a" * ((1 << 20) + 1)), 1009),
        (b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"mask", 1009),
        (frame(b"a" * (1 << 20), fin=False) + frame(b"a", Opcode.CONT), 1009),
        (frame(b"", fin=False) + 1000 * frame(b"", Opcode.CONT, fin=False), 1008),
        (frame(b"", Opcode.CONT), 1002),
        (frame(b"a", fin=False) + frame(b"b"), 1002),
        (b"\x82\x01a", 1002),
        (b"\xf2\x81mask" + b"a", 1002),
        (b"\x83\x80mask", 1002),
        (b"\x89\xfe" + (200).to_bytes(2, "big") + b"mask" + b"p" * 200, 1002),
        (frame(b"\xff\xfe", Opcode.TEXT), 1007),
        (2000 * frame(b"", Opcode.PING), 1008),
        (2000 * frame(b"", Opcode.PONG), 1008),
        (frame((999).to_bytes(2, "big"), Opcode.CLOSE), 1002),
    ],
    ids=[
        "too long",
        "says it is endless",
        "too long in two",
        "a thousand pieces",
        "continues nothing",
        "begins in the middle",
        "not masked",
        "reserved bits",
        "no such kind",
        "a long ping",
        "not UTF-8",
        "2,000 pings",
        "2,000 pongs",
        "closed for no reason",
    ],
)
def test_oversized_excessive_and_invalid_frames_are_rejected(listening: Listening, sent: bytes, code: int) -> None:
    with RawViewer(listening, ECHO) as viewer:
        with contextlib.suppress(ConnectionError):
            viewer.send(sent)
        assert viewer.end() in (code, None)  # None: reset before it was read, because more was on its way
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


def test_frames_before_the_response_are_rejected(listening: Listening) -> None:
    assert status(listening.raw(handshake(path_of(ECHO)) + frame(b"early"), tcp=False)) == 400
    terminals = listening.engine.terminals
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(listening.socket))
        connection.sendall(handshake(path_of(SLOW)))
        wait_until(terminals.waiting.is_set, "the terminal to be asked for")
        connection.sendall(frame(b"early"))
        assert status(connection.recv(65536)) == 400
        assert connection.recv(65536) == b""
    listening.loop.call_soon_threadsafe(terminals.go_on.set)
    wait_until(lambda: terminals.open_now == 0, "the terminal to be let go")


@pytest.mark.parametrize("process", [ECHO, FLOOD])
def test_data_sent_before_the_close_is_received(listening: Listening, process: str) -> None:
    """Also if all of it came before the first message to the viewer could be sent."""
    terminals = listening.engine.terminals
    for number in range(50):
        words = b"last words %d" % number
        with RawViewer(listening, process) as viewer:
            viewer.send(frame(words) + frame((1000).to_bytes(2, "big"), Opcode.CLOSE))
            # The socket stays open meanwhile: a write of the server to a closed one would fail and end the connection
            # before the server has read it.
            wait_until(lambda words=words: words in terminals.typed, "them to be heard")  # type: ignore[misc]


@pytest.mark.usefixtures("impatient")
def test_program_that_does_not_read_blocks_its_viewer(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RawViewer(listening, DEAF) as viewer:
        assert viewer.send_until_it_stands(frame(b"x" * 60000)) < 8 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 << 10
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


def test_control_message_passes_unread_input(listening: Listening) -> None:
    with view(listening, DEAF) as viewer:
        assert said(viewer)["type"] == "started"
        assert said(viewer)["type"] == "missing"
        for _ in range(10):
            viewer.send(b"x" * 10000)
        viewer.send('{"type":"signal","name":"INT"}')
        assert said(viewer) == b"interrupted"


def test_viewer_that_stops_reading_blocks_no_others(listening: Listening) -> None:
    terminals = listening.engine.terminals
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RawViewer(listening, FLOOD), view(listening, ECHO) as other:
        assert said(other)["type"] == "started"
        assert said(other)["type"] == "missing"
        seen = -1

        def stands() -> bool:
            nonlocal seen
            seen, last = terminals.flooded, seen
            other.send(b"ping")
            assert said(other) == b"ping"
            return seen == last

        wait_until(stands, "the flood to stand")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 << 10
    wait_until(lambda: terminals.open_now == 0, "the terminal to be let go")


@pytest.mark.usefixtures("impatient")
def test_viewer_that_never_reads_is_disconnected(listening: Listening) -> None:
    with RawViewer(listening, FLOOD):
        wait_until(lambda: listening.engine.terminals.open_now == 1, "the terminal to be open")
        wait_until(lambda: listening.engine.terminals.open_now == 0, "it to be cut off")


@pytest.mark.usefixtures("impatient")
def test_viewer_that_answers_no_ping_is_disconnected(listening: Listening) -> None:
    with RawViewer(listening, ECHO) as viewer:
        assert viewer.end() is None
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


@pytest.mark.usefixtures("impatient")
def test_quiet_viewer_that_answers_pings_stays_connected(listening: Listening) -> None:
    with view(listening, ECHO, ping_interval=None) as viewer:
        assert said(viewer)["type"] == "started"
        assert said(viewer)["type"] == "missing"
        with pytest.raises(TimeoutError):
            viewer.recv(timeout=1.5)
        viewer.send(b"still here")
        assert said(viewer) == b"still here"


def test_ping_flood_without_reading_pongs_is_bounded(listening: Listening) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RawViewer(listening, FLOOD) as viewer:
        assert viewer.send_until_it_stands(frame(b"p" * 125, Opcode.PING) * 100) < 8 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 << 10
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


def test_hundred_viewers_have_separate_connections(listening: Listening) -> None:
    with contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(view(listening, ECHO)) for _ in range(100)]

        def use(number: int) -> bytes:
            viewer = viewers[number]
            assert said(viewer)["type"] == "started"
            assert said(viewer)["type"] == "missing"
            viewer.send(str(number).encode())
            return bytes(said(viewer))

        with ThreadPoolExecutor(10) as pool:
            assert list(pool.map(use, range(100))) == [str(n).encode() for n in range(100)]
        assert listening.engine.terminals.open_now == 100
    wait_until(lambda: listening.engine.terminals.open_now == 0, "all terminals to be let go")


def test_unexpected_error_reveals_nothing(listening: Listening) -> None:
    with view(listening, BROKEN) as viewer:
        viewer.send(b"x")
        assert closing_code(viewer) == 1011
        assert "secret" not in (viewer.close_reason or "")
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


def test_stop_notifies_viewers_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.5)
    listening = Listening(tmp_path, listen=None).start()
    with view(listening, ECHO) as viewer, RawViewer(listening, FLOOD), RawViewer(listening, DEAF) as deaf:
        deaf.send_until_it_stands(frame(b"x" * 60000))
        code = ThreadPoolExecutor(1).submit(closing_code, viewer)
        listening.stop()
        assert code.result(20) == 1001
    assert listening.engine.terminals.open_now == 0


def test_server_does_not_exit_while_a_terminal_is_open(tmp_path: Path) -> None:
    listening = Listening(tmp_path, idle_exit=0.2, listen=None)
    listening.engine.empty = False  # until a viewer is connected: a late one must not find it gone
    listening.start()
    with view(listening, ECHO) as viewer:
        listening.engine.empty = True
        assert not listening.control.stopping.is_set()
        threading.Event().wait(1)  # five times as long as it may be idle
        viewer.send(b"still here")
        assert [said(viewer) for _ in range(3)][2] == b"still here"
    listening.join()
