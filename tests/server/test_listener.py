"""Sockets, their rights, and how a server comes and goes."""

from __future__ import annotations

import grp
import http.client
import os
import socket
import stat
import threading
from pathlib import Path

import httpx2
import pytest
from support.listening_server import Listening
from support.server import wait_until

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.network.listen import bind_tcp, parse_listen
from skerry.server.sockets import bind_unix, is_answering, url_of


def rights(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_socket_is_accessible_only_to_its_owner(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with bind_unix(tmp_path / "s", None):
            assert rights(tmp_path / "s") == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(old)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a socket to a group")
def test_socket_of_a_group_is_accessible_to_the_group(tmp_path: Path) -> None:
    group = grp.getgrnam("daemon")
    with bind_unix(tmp_path / "s", "daemon"):
        assert rights(tmp_path / "s") == 0o660
        assert (tmp_path / "s").lstat().st_gid == group.gr_gid
    assert os.getegid() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a socket to a group")
def test_setgid_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.chown(tmp_path / "d", 0, grp.getgrnam("bin").gr_gid)
    os.chmod(tmp_path / "d", 0o2755)
    with pytest.raises(Conflict):
        bind_unix(tmp_path / "d" / "s", "daemon")
    assert not (tmp_path / "d" / "s").exists()


def test_unknown_group_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no-such-group"):
        bind_unix(tmp_path / "s", "no-such-group")
    assert not (tmp_path / "s").exists()


def test_socket_of_a_dead_server_is_replaced_and_of_a_live_one_is_not(tmp_path: Path) -> None:
    first = bind_unix(tmp_path / "s", None)
    assert is_answering(tmp_path / "s")
    with pytest.raises(Conflict, match="another server"):
        bind_unix(tmp_path / "s", None)
    first.close()
    assert not is_answering(tmp_path / "s")
    bind_unix(tmp_path / "s", None).close()


def test_file_that_is_not_a_socket_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    for name in ("s", "link"):
        with pytest.raises(Conflict):
            bind_unix(tmp_path / name, None)
    assert (tmp_path / "s").read_text() == "precious"


@pytest.mark.parametrize("path", ["x" * 200, "missing/s"])
def test_invalid_socket_path_is_reported(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidRequest):
        bind_unix(tmp_path / path, None)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7070", ("127.0.0.1", 7070)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:1", ("127.0.0.1", 1)),
        (":80", ("0.0.0.0", 80)),
        ("[0:0:0:0:0:0:0:1]:65535", ("::1", 65535)),
    ],
)
def test_listen_address_is_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text", ["", "7070", "127.0.0.1", "127.0.0.1:x", "1.2.3.4:70000", "example.org:80", "::1:80", "[::1]"]
)
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_listen(text)


def test_port_in_use_is_reported() -> None:
    with bind_tcp("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(Conflict, match=str(port)):
            bind_tcp("127.0.0.1", port)


def test_stopped_server_leaves_no_socket(tmp_path: Path) -> None:
    listening = Listening(tmp_path).start()
    with listening.unix() as http_client:
        assert http_client.post("/v1/server/stop").status_code == 202
    listening.join()
    assert not listening.socket.exists()


def test_stop_waits_for_running_requests(tmp_path: Path) -> None:
    listening = Listening(tmp_path).start()
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(listening.socket))
    connection.putrequest("POST", "/v1/sandboxes/a/processes/p-aaaaaaaaaa/stdin?close=true")
    connection.putheader("Content-Length", "6")
    connection.endheaders(b"abc")
    wait_until(lambda: listening.engine.calls == ["3"], "the first half of the body")
    listening.loop.call_soon_threadsafe(listening.control.stop)
    wait_until(lambda: not listening.socket.exists(), "the socket's name to go")
    with pytest.raises((httpx2.TransportError, ConnectionError, FileNotFoundError)), listening.unix() as late:
        late.get("/healthz")
    connection.send(b"def")
    assert connection.getresponse().status == 204
    listening.join()
    assert listening.engine.calls == ["3", "3"]


def test_idle_server_exits(tmp_path: Path) -> None:
    listening = Listening(tmp_path, idle_exit=0.2, listen=None).start()
    listening.join()
    assert not listening.socket.exists()


def test_server_with_sandboxes_does_not_exit(tmp_path: Path) -> None:
    listening = Listening(tmp_path, idle_exit=0.05, listen=None)
    looked = threading.Event()

    class Busy(type(listening.engine)):  # type: ignore[misc]
        count = 0

        @property
        def empty(self) -> bool:
            self.count += 1
            if self.count > 3:
                looked.set()
            return False

    listening.engine.__class__ = Busy
    listening.start()
    assert looked.wait(20)
    with listening.unix() as http_client:
        assert http_client.get("/healthz").status_code == 200
    listening.stop()


def test_input_is_read_at_the_pace_of_the_engine(tmp_path: Path) -> None:
    listening = Listening(tmp_path, listen=None).start()
    with listening.unix() as http_client:
        body = (b"x" * 65536 for _ in range(1000))
        assert http_client.post("/v1/sandboxes/a/processes/p-aaaaaaaaaa/stdin", content=body).status_code == 204
    assert sum(map(int, listening.engine.calls)) == 65536 * 1000
    assert max(map(int, listening.engine.calls)) < 2 << 20
    listening.stop()


def test_dead_peer_is_noticed_on_an_idle_connection() -> None:
    with bind_tcp("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, every, times = (
                accepted.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
    assert idle + every * times <= 120
