"""The SDK's terminals: over a real socket, across a server that goes and comes, and against servers that lie."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.echo_terminal import DEAF, ECHO, FLOOD, PLAIN
from support.listening_server import Listening
from support.lying_server import SANDBOX
from support.server import wait_until
from websockets.frames import Frame, Opcode

from skerry import AsyncClient, AsyncSandbox, Client, Sandbox
from skerry.client._async.terminal import AsyncTerminal
from skerry.client._sync.terminal import Terminal
from skerry.client.transport import backoff
from skerry.client.transport.responses import decode
from skerry.errors import CommandTimeout, Conflict, InvalidRequest, NotFound, SkerryError
from skerry.server.http import websocket
from skerry.types import SandboxInfo

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path, listen=None).start()
    yield made
    made.stop()


def sandbox_at(address: str) -> Sandbox:
    info = decode(json.dumps({**SANDBOX, "id": "echo"}).encode(), SandboxInfo)
    return Sandbox._of(info, Client(address), shared=False)


def terminal_at(listening: Listening, process: str = ECHO, **options: Any) -> Terminal:
    return Terminal(sandbox_at(f"unix://{listening.socket}"), process, **options)


def test_terminal_returns_typed_input_and_the_end(listening: Listening) -> None:
    with terminal_at(listening, since=100) as terminal:
        terminal.write("é\n")
        assert terminal.read() == "é\n".encode()
        assert (terminal.missing, terminal.offset) == (3, 106)
        assert terminal.process is not None
        assert (terminal.process.id, terminal.process.pty) == (ECHO, True)
        terminal.resize(100, 30)
        assert terminal.read() == b"100x30"
        terminal.write(b"exit")
        assert list(terminal) == []
        assert terminal.result is not None
        assert (terminal.result.exit_code, terminal.result.ok) == (5, False)
        assert terminal.read() == b""
        with pytest.raises(Conflict, match="has ended"):
            terminal.write(b"late")
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


async def test_async_client_reads_and_writes_concurrently(listening: Listening) -> None:
    info = decode(json.dumps({**SANDBOX, "id": "echo"}).encode(), SandboxInfo)
    async with AsyncClient(f"unix://{listening.socket}") as client:
        sandbox = AsyncSandbox._of(info, client, shared=True)
        async with AsyncTerminal(sandbox, ECHO) as terminal:

            async def type_all() -> None:
                for number in range(500):
                    await terminal.write(b"%04d" % number)
                await terminal.write(b"exit")

            async def read_all() -> bytes:
                return b"".join([data async for data in terminal])

            read, _ = await asyncio.gather(read_all(), type_all())
            assert read == b"".join(b"%04d" % number for number in range(500))


def test_two_threads_may_share_a_terminal(listening: Listening) -> None:
    big = b"x" * (1 << 20)
    with terminal_at(listening) as terminal:
        thread = threading.Thread(target=terminal.write, args=(big,))
        thread.start()
        got = b""
        while len(got) < len(big):
            got += terminal.read(timeout=20)
        thread.join(20)
    assert got == big


def test_read_times_out_without_output(listening: Listening) -> None:
    with terminal_at(listening) as terminal:
        with pytest.raises(CommandTimeout, match=r"0\.2 s"):
            terminal.read(timeout=0.2)
        terminal.write(b"later")
        assert terminal.read(timeout=20) == b"later"


@pytest.mark.parametrize(("process", "kind"), [("p-aaaaaaaaaa", NotFound), ("..", NotFound), (PLAIN, Conflict)])
def test_process_without_a_terminal_is_reported(listening: Listening, process: str, kind: type[SkerryError]) -> None:
    with pytest.raises(kind), terminal_at(listening, process):
        pass


def test_invalid_arguments_are_rejected_before_sending(listening: Listening) -> None:
    for options in ({"replay": -1}, {"since": True}, {"replay": "1"}):
        with pytest.raises(InvalidRequest):
            terminal_at(listening, **options)
    with terminal_at(listening) as terminal:
        for size in ((0, 0), (100_000, 100_000)):
            with pytest.raises(InvalidRequest):
                terminal.resize(*size)
    with pytest.raises(InvalidRequest, match="not open"):
        terminal.write(b"x")


def test_server_restart_is_transparent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.3)  # its last message is not read
    first = Listening(tmp_path, listen=None).start()
    with terminal_at(first) as terminal:
        terminal.write(b"before")
        assert terminal.read(timeout=20) == b"before"
        first.stop()
        second = Listening(tmp_path, listen=None).start()
        try:
            terminal.write(b"after")
            assert terminal.read(timeout=20) == b"after"
            assert terminal.offset == 3 + 6 + 3 + 5, (
                "each began with a gap of 3, the second where the first had stopped"
            )
        finally:
            second.stop()


def test_reader_continues_after_a_server_restart(tmp_path: Path) -> None:
    first = Listening(tmp_path, listen=None).start()
    with terminal_at(first) as terminal:
        terminal.write(b"before")
        assert terminal.read(timeout=20) == b"before"
        seen: list[bytes] = []
        reader = threading.Thread(target=lambda: seen.append(terminal.read(timeout=60)))
        reader.start()
        first.stop()
        second = Listening(tmp_path, listen=None).start()
        try:
            wait_until(lambda: second.engine.terminals.open_now == 1, "the reader to come again")
            terminal.write(b"after")
            reader.join(30)
            assert seen == [b"after"]
        finally:
            second.stop()


def test_terminal_reconnects_after_silence(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_EVERY_S", 0.1)
    monkeypatch.setattr(websocket, "SILENCE_TIMEOUT_S", 0.5)
    with terminal_at(listening) as terminal:
        wait_until(lambda: listening.engine.terminals.open_now == 1, "the terminal to be open")
        wait_until(lambda: listening.engine.terminals.open_now == 0, "it to be cut off")
        terminal.write(b"still here")
        assert terminal.read(timeout=20) == b"still here"


def test_close_does_not_wait_for_a_program_that_reads_nothing(listening: Listening) -> None:
    with terminal_at(listening, DEAF) as terminal:
        thread = threading.Thread(target=_write_until_it_fails, args=(terminal,), daemon=True)
        thread.start()
        wait_until(lambda: listening.engine.terminals.open_now == 1, "the terminal to be open")
    thread.join(30)
    assert not thread.is_alive()


def _write_until_it_fails(terminal: Terminal) -> None:
    with pytest.raises(SkerryError):
        terminal.write(b"x" * (64 << 20))


def test_close_wakes_a_reader(listening: Listening) -> None:
    met: list[BaseException] = []

    def read() -> None:
        try:
            list(terminal)
        except BaseException as error:
            met.append(error)

    with terminal_at(listening) as terminal:
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: terminal.missing == 3, "the reader to have come to what there is")
    reader.join(20)
    assert not reader.is_alive()
    assert isinstance(met[0], SkerryError)


def test_close_does_not_wait_for_the_rest_of_a_flood(listening: Listening) -> None:
    with terminal_at(listening, FLOOD) as terminal:
        assert terminal.read(timeout=20)
    wait_until(lambda: listening.engine.terminals.open_now == 0, "the terminal to be let go")


# -- servers that lie -------------------------------------------------------------------------------------------------


@contextmanager
def answering(tmp_path: Path, answer: Callable[[str], bytes]) -> Iterator[str]:
    """Send each connection the result of `answer` for its key, and close it."""
    path = tmp_path / "l.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(path))
        door.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = door.accept()
                except OSError:
                    return
                with connection:
                    asked = b""
                    while not asked.endswith(b"\r\n\r\n"):
                        asked += connection.recv(1)
                    lines = asked.decode().split("\r\n")
                    key = next(line.split(": ")[1] for line in lines if line.lower().startswith("sec-websocket-key"))
                    try:
                        connection.sendall(answer(key))
                        connection.settimeout(0.5)
                        connection.recv(65536)  # a farewell, if there is one
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix://{path}"
        door.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def switched(*frames: bytes) -> Callable[[str], bytes]:
    def answer(key: str) -> bytes:
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        head = f"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        return head.encode() + b"".join(frames)

    return answer


def text(value: str) -> bytes:
    return Frame(Opcode.TEXT, value.encode()).serialize(mask=False)


def closing(code: int) -> bytes:
    return Frame(Opcode.CLOSE, code.to_bytes(2, "big")).serialize(mask=False)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        lambda _: b"HTTP/1.1 302 x\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n",
        lambda _: b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        lambda _: b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: eA==\r\n\r\n",
        lambda _: b"nonsense\r\n\r\n",
    ],
)
def test_response_that_is_not_a_websocket_is_an_error(tmp_path: Path, answer: Callable[[str], bytes]) -> None:
    with answering(tmp_path, answer) as address, pytest.raises(SkerryError), Terminal(sandbox_at(address), ECHO):
        pass


@pytest.mark.parametrize(
    "frames",
    [
        b"\x82\x7f" + (1 << 40).to_bytes(8, "big"),
        b"\xff\xff\xff\xff",
        b"\x02\x00" + 5000 * b"\x00\x00",
        text("not json"),
        text('{"type":"started"}'),
        text('{"type":"error","error":{"code":"sandbox_unavailable","message":"it died"}}') + closing(1011),
        closing(1008),
    ],
)
def test_invalid_messages_are_an_error_and_not_retried(tmp_path: Path, frames: bytes) -> None:
    asked: list[str] = []

    def answer(key: str) -> bytes:
        asked.append(key)
        return switched(frames)(key)

    with answering(tmp_path, answer) as at, Terminal(sandbox_at(at), ECHO) as terminal, pytest.raises(SkerryError):
        terminal.read(timeout=20)
    assert len(asked) == 1


def test_terminal_that_always_disconnects_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "GIVE_UP_AFTER", 0.5)
    for last in (closing(1001), b"\x89\x00" + closing(1001)):
        answer = switched(text('{"type":"unheard-of"}'), last)
        with answering(tmp_path, answer) as at, Terminal(sandbox_at(at), ECHO) as terminal, pytest.raises(SkerryError):
            terminal.read()
        (tmp_path / "l.sock").unlink()
