"""Local ports that lead to ports inside: transparent TCP."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.server import Server, wait_until

from skerry import AsyncSandbox, Client, Forward, InvalidRequest, NotFound, Sandbox, SkerryError

# Reply to each connection with its input reversed, after the other side has finished; `B`: the same as it comes.
PROGRAM = """
import socket, sys, threading
def serve(family, address, port, talk):
    listener = socket.create_server((address, port), family=family)
    def each(c):
        with c: talk(c)
    while True:
        c, _ = listener.accept()
        threading.Thread(target=each, args=(c,), daemon=True).start()
def all_at_the_end(c):
    got = b""
    while piece := c.recv(65536): got += piece
    c.sendall(got[::-1])
def as_it_comes(c):
    while piece := c.recv(65536): c.sendall(piece)
def breaks_off(c):
    c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
def tells_how_it_ended(c):
    try: end = "orderly" if not c.recv(65536) else "?"
    except ConnectionError: end = "reset"
    open("/tmp/ended", "w").write(end)
def speaks_first(c):
    c.sendall(b"hello"); c.recv(1)
def never_reads(c):
    threading.Event().wait()
def floods(c):
    sent = 0
    while sent < 1 << 30:
        sent += c.send(b"x" * 65536)
        open("/tmp/sent", "w").write(str(sent))
for number, talk in enumerate((all_at_the_end, as_it_comes, breaks_off, tells_how_it_ended, speaks_first, never_reads,
                               floods)):
    threading.Thread(target=serve, args=(socket.AF_INET, "127.0.0.1", 7000 + number, talk), daemon=True).start()
serve(socket.AF_INET6, "::1", 7010, as_it_comes)
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.write("/workspace/program.py", PROGRAM)
        sandbox.spawn("exec python3 program.py")
        sandbox.wait_for_port(7010)
        sandbox.wait_for_port(7006)
        yield sandbox


def connected(forward: Forward) -> socket.socket:
    return socket.create_connection((forward.host, forward.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_half_closed_connection_still_gets_its_response(sandbox: Sandbox) -> None:
    with sandbox.forward(7000) as forward, connected(forward) as connection:
        connection.sendall(b"abc")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"cba"


def test_program_that_sends_first_is_received(sandbox: Sandbox) -> None:
    with sandbox.forward(7004) as forward, connected(forward) as connection:
        assert connection.recv(5) == b"hello"


def test_bulk_data_passes_in_both_directions_at_once(sandbox: Sandbox) -> None:
    data = os.urandom(16 << 20)
    with sandbox.forward(7001) as forward, connected(forward) as connection:
        sending = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        sending.start()
        assert read_all(connection) == data
        sending.join()


def test_program_listening_only_on_ipv6_is_reached(sandbox: Sandbox) -> None:
    with sandbox.forward(7010) as forward, connected(forward) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"


def test_many_concurrent_connections_work(sandbox: Sandbox) -> None:
    with sandbox.forward(7001) as forward, contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(forward)) for _ in range(40)]
        for number, connection in enumerate(many):
            connection.sendall(b"%02d" % number)
        assert [connection.recv(2) for connection in many] == [b"%02d" % number for number in range(40)]


def test_reset_inside_is_a_reset_outside(sandbox: Sandbox) -> None:
    with sandbox.forward(7002) as forward, connected(forward) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_reset_outside_is_a_reset_inside(sandbox: Sandbox) -> None:
    sandbox.run("rm -f /tmp/ended")
    with sandbox.forward(7003) as forward:
        connection = connected(forward)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        there = "grep ':1B5B ' /proc/net/tcp | grep -q ' 01 '"
        wait_until(lambda: sandbox.run(there).ok, "the connection inside")
        connection.close()
        wait_until(lambda: sandbox.run("cat /tmp/ended").stdout == "reset", "the reset to arrive")


def test_program_that_does_not_read_slows_its_sender(sandbox: Sandbox) -> None:
    with sandbox.forward(7005) as forward, connected(forward) as connection:
        connection.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 256 << 20:
                sent += connection.send(b"x" * 65536)
        assert sent < 64 << 20


def test_closed_port_is_a_reset_and_reported(sandbox: Sandbox) -> None:
    told: list[SkerryError] = []
    with sandbox.forward(7999, on_error=told.append) as forward:
        with pytest.raises(ConnectionResetError), connected(forward) as connection:
            connection.recv(1)
        wait_until(lambda: told, "the word about it")
    assert "nothing listens on port 7999" in str(told[0])


def test_closing_a_forward_ends_its_connections(sandbox: Sandbox) -> None:
    with sandbox.forward(7001) as forward:
        connection = connected(forward)
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        port = forward.port
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


async def test_async_client_forwards(server: Server, sandbox: Sandbox) -> None:
    import asyncio

    twin = await AsyncSandbox.get(sandbox.id, server=server.address)
    async with twin.forward(7000) as forward:
        reader, writer = await asyncio.open_connection(forward.host, forward.port)
        writer.write(b"abc")
        writer.write_eof()
        assert await reader.read() == b"cba"
        writer.close()
    await twin.aclose()


def test_invalid_port_is_rejected(sandbox: Sandbox) -> None:
    for wrong in (0, 65536, -1):
        with pytest.raises(InvalidRequest):
            sandbox.forward(wrong)
    with pytest.raises(InvalidRequest, match="not open"):
        _ = sandbox.forward(80).port


def test_ports_of_another_owner_are_not_found(server: Server, sandbox: Sandbox) -> None:
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).json()["secret"]
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                   "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
        path = f"/v1/sandboxes/{sandbox.id}/ports/7000/connect"
        assert http.get(path, headers={"Authorization": f"Bearer {token}", **upgrade}).status_code == 404
        assert http.get(path).status_code == 426
        assert http.get(f"/v1/sandboxes/{sandbox.id}/ports/7999/connect", headers=upgrade).status_code == 409
        assert http.get(f"/v1/sandboxes/{sandbox.id}/ports/0/connect", headers=upgrade).status_code == 400


def test_forward_resumes_a_stopped_sandbox_and_fails_for_a_deleted_one(server: Server) -> None:
    sandbox = Sandbox.create(server=server.address, name=f"woken-{os.getpid()}")
    told: list[SkerryError] = []
    with sandbox.forward(22, on_error=told.append) as forward:
        sandbox.stop()
        with contextlib.suppress(ConnectionResetError), connected(forward) as connection:
            connection.recv(1)
        wait_until(lambda: told, "the word about it")
        assert "nothing listens" in str(told[0])
        assert sandbox.info().state == "running"
        with server.http() as http:
            http.delete(f"/v1/sandboxes/{sandbox.id}").raise_for_status()
        with contextlib.suppress(ConnectionResetError), connected(forward) as connection:
            connection.recv(1)
        wait_until(lambda: len(told) > 1, "the word about the second")
        assert isinstance(told[1], NotFound)


def test_forward_command_runs_until_interrupted(server: Server, sandbox: Sandbox) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "skerry", "--server", server.address, "forward", sandbox.id, "0:7000", "0:7999"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    ports = [int(re.fullmatch(r"127\.0\.0\.1:(\d+) -> \d+\n", line)[1]) for line in lines]  # type: ignore[index]
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=30) as connection:
        connection.sendall(b"abc")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"cba"
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", ports[1]), timeout=30)
        with connection, pytest.raises(ConnectionResetError):
            connection.recv(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.count("nothing listens on port 7999") == 1  # printed once


def test_forward_works_over_tcp_with_a_token(own_server: Server) -> None:
    own_server.start("--listen", "127.0.0.1:0")
    with own_server.http() as http:
        secret = http.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).json()["secret"]
        url = next(one for one in http.get("/v1/server").json()["addresses"] if one.startswith("http"))
    with Client(url, token=secret) as client, Sandbox(server=client) as sandbox:
        sandbox.spawn(["python3", "-m", "http.server", "8000"])
        sandbox.wait_for_port(8000)
        with sandbox.forward(8000) as forward, connected(forward) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.0 200")


def test_local_program_that_does_not_read_slows_the_program_inside(sandbox: Sandbox) -> None:
    with sandbox.forward(7006) as forward, connected(forward) as connection:
        connection.sendall(b"x")
        sent = [-1]

        def stands() -> bool:
            sent.append(int(sandbox.run("cat /tmp/sent").stdout or 0))
            return sent[-1] == sent[-2] > 0

        wait_until(stands, "the program inside to be held")
        assert sent[-1] < 64 << 20


def test_keeper_socket_is_not_a_port(sandbox: Sandbox) -> None:
    """The keeper listens on a unix socket: no port leads to it."""
    listening = sandbox.run("cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"0A\" {print $2, $8}'").stdout.split("\n")
    ports = {int(line.split()[0].rpartition(":")[2], 16) for line in listening if line}
    assert {7000, 7001, 7002, 7003, 7004, 7005, 7006, 7010} <= ports
    ours = ports - {7000, 7001, 7002, 7003, 7004, 7005, 7006, 7010}
    for port in ours:  # the door's, if it is there: redirected connections only
        with (
            sandbox.forward(port) as forward,
            contextlib.suppress(ConnectionResetError),
            connected(forward) as connection,
        ):
            assert connection.recv(1) == b""
