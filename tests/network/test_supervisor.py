"""The worker as a process: what it is, that it comes back, and that nothing it does harms the server."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from counting import descriptors, left_over
from network.namespacing import FLOOD, Place

from skerry.network import door as doors
from skerry.network import supervisor as supervision
from skerry.network.door import Door
from skerry.network.messages import Close, FromWorker, Open, Rules, Tried
from skerry.network.netns import Namespaces
from skerry.network.supervisor import Supervisor

UID = 0x70000000 + 65536 * 4094 + 7  # beyond what the register gives out
TRY = """
import socket, sys
one = socket.socket()
one.settimeout(10)
try:
    one.connect((sys.argv[1], 443))
    print(one.recv(1))
except OSError as error:
    print(type(error).__name__)
"""


class Office:
    """A supervisor, the doors that each new worker is told of, and what it said."""

    def __init__(self) -> None:
        self.heard: list[FromWorker] = []
        self.open: dict[str, Door] = {}
        self.supervisor = Supervisor(UID, self.heard.append, self.ready)

    def ready(self) -> None:
        for sandbox, door in self.open.items():
            self.tell(sandbox, door)

    def tell(self, sandbox: str, door: Door) -> None:
        with tempfile.TemporaryFile() as book:
            fds = [*(one.fileno() for one in door.sockets), book.fileno()]
            self.supervisor.send(Open(sandbox=sandbox, rules=Rules()), fds)

    async def add(self, namespaces: Namespaces, place: Place, sandbox: str = "sb-aaaaaaaaaa") -> Door:
        self.open[sandbox] = door = await doors.make(namespaces, place.pidfd)
        self.tell(sandbox, door)
        return door

    def tried(self) -> list[str]:
        return [message.attempt.host for message in self.heard if isinstance(message, Tried)]


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    made = Office()
    made.supervisor.start()
    assert await made.supervisor.up(20)
    yield made
    await made.supervisor.close()
    for door in made.open.values():
        door.close()


async def until(what: Callable[[], object], limit_s: float = 10) -> None:
    async with asyncio.timeout(limit_s):
        while not what():
            await asyncio.sleep(0.01)


def status(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: line.split(":")[1].split() for line in lines}


async def test_the_worker_is_nobody(office: Office) -> None:
    pid = office.supervisor.pid
    assert pid is not None
    what = status(pid)
    assert what["Uid"] == [str(UID)] * 4
    assert what["Gid"] == [str(UID)] * 4
    assert what["Groups"] == []
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert what[kind] == ["0" * 16]
    assert what["NoNewPrivs"] == ["1"]
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert {line.split(b"=")[0] for line in environment} <= {
        b"", b"PATH", b"LC_ALL", b"SSL_CERT_FILE", b"SSL_CERT_DIR", b"RES_OPTIONS", b"LOCALDOMAIN",
    }  # fmt: skip


async def test_the_worker_inherits_its_channel_and_nothing_else(office: Office, tmp_path: Path) -> None:
    with open(tmp_path / "canary", "w") as canary:
        os.set_inheritable(canary.fileno(), True)
        assert office.supervisor.pid is not None
        os.kill(office.supervisor.pid, signal.SIGKILL)
        await until(lambda: office.supervisor.starts == 2 and office.supervisor.state == "ready")
        place = Path(f"/proc/{office.supervisor.pid}/fd")
        held = {int(name): os.readlink(place / name) for name in os.listdir(place)}
    assert [held.pop(n) for n in (0, 1)] == ["/dev/null"] * 2
    assert held.pop(2).startswith("pipe:")
    assert held.pop(3).startswith("socket:")
    own = ("anon_inode:", "pipe:", "socket:")  # the event loop's
    assert [target for target in held.values() if not target.startswith(own)] == []


async def test_a_killed_worker_is_back_within_two_seconds_and_knows_its_doors(
    office: Office, namespaces: Namespaces, place: Place
) -> None:
    await office.add(namespaces, place)
    assert await asyncio.to_thread(place.python, TRY, "203.0.113.1") == "ConnectionResetError"
    for round_ in range(2, 5):
        assert office.supervisor.pid is not None
        os.kill(office.supervisor.pid, signal.SIGKILL)
        meanwhile = asyncio.create_task(asyncio.to_thread(place.python, TRY, f"203.0.113.{round_}"))
        await until(lambda: office.supervisor.state != "ready", 2)
        assert await office.supervisor.up(5)
        assert await meanwhile == "ConnectionResetError"
        assert await asyncio.to_thread(place.python, TRY, f"198.51.100.{round_}") == "ConnectionResetError"
    await until(lambda: len(office.tried()) == 7)


async def test_nothing_is_told_of_a_door_that_was_closed(office: Office, namespaces: Namespaces, place: Place) -> None:
    door = await office.add(namespaces, place)
    office.supervisor.send(Close(sandbox="sb-aaaaaaaaaa"))
    assert await office.supervisor.sync(10)
    del office.open["sb-aaaaaaaaaa"]
    door.close()
    assert await asyncio.to_thread(place.python, TRY, "203.0.113.1") == "ConnectionRefusedError"
    assert office.tried() == []


async def test_the_worker_dies_with_the_server(office: Office) -> None:
    """With its channel, that is; and by PR_SET_PDEATHSIG where that is cut in any other way."""
    pid = office.supervisor.pid
    await office.supervisor.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


async def test_a_worker_that_hangs_is_replaced(
    monkeypatch: pytest.MonkeyPatch, namespaces: Namespaces, place: Place
) -> None:
    monkeypatch.setattr(supervision, "PULSE_S", 0.1)
    monkeypatch.setattr(supervision, "SILENT_S", 0.5)
    office = Office()
    office.supervisor.start()
    try:
        assert await office.supervisor.up(20)
        assert office.supervisor.pid is not None
        os.kill(office.supervisor.pid, signal.SIGSTOP)
        await until(lambda: office.supervisor.starts == 2 and office.supervisor.state == "ready", 20)
    finally:
        await office.supervisor.close()


async def test_a_flood_of_tries_leaves_the_server_free(office: Office, namespaces: Namespaces, place: Place) -> None:
    await office.add(namespaces, place)
    with place.running(FLOOD):
        await until(lambda: sum(m.attempt.count for m in office.heard if isinstance(m, Tried)) > 100, 20)
    assert await office.supervisor.sync(20)
    assert office.supervisor.starts == 1


LIAR = str(Path(__file__).with_name("liar.py"))


@pytest.mark.parametrize("lie", ["early", "twice", "long", "fds", "exit"])
async def test_a_worker_that_does_not_keep_to_the_protocol_is_ended_and_replaced(
    monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, lie))
    before = descriptors()
    office = Office()
    office.supervisor.start()
    await until(lambda: office.supervisor.starts >= 3, 30)
    await office.supervisor.close()
    assert office.heard == []
    assert left_over(before) == 0


async def test_a_worker_that_floods_is_heard_no_faster_than_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, "flood"))
    monkeypatch.setattr(supervision, "BURST", 100)
    monkeypatch.setattr(supervision, "A_SECOND", 100)
    office = Office()
    office.supervisor.start()
    assert await office.supervisor.up(20)
    turns, end = 0, asyncio.get_running_loop().time() + 2
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.001)
        turns += 1
    assert 100 < len(office.heard) < 1000
    assert turns > 100  # others had the loop
    await office.supervisor.close()


async def test_a_worker_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, "silent"))
    monkeypatch.setattr(supervision, "READY_S", 0.3)
    office = Office()
    office.supervisor.start()
    await until(lambda: office.supervisor.starts >= 2, 20)
    await office.supervisor.close()
    assert office.supervisor.state == "closed"
