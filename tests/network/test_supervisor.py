"""The worker as a process: its privileges, its restarts, and that it cannot harm the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.attack_targets import own_address
from support.descriptors import descriptors, left_over
from support.egress import serve_tcp
from support.namespaces import FLOOD, NetworkNamespace

from skerry.network import supervisor as supervision
from skerry.network.gateway import gateway as doors
from skerry.network.gateway.gateway import Gateway
from skerry.network.gateway.netns import Namespaces
from skerry.network.messages import AttemptMessage, CloseGateway, FromWorker, OpenGateway, Rules
from skerry.network.supervisor import HangWatch, Supervisor, WorkerSample

UID = 0x70000000 + 65536 * 4094 + 7  # beyond the range that the register hands out
LIAR = str(Path(__file__).parents[1] / "support/lying_worker.py")
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
    """A supervisor, the gateways that it sends to each new worker, and the messages received."""

    def __init__(self) -> None:
        self.heard: list[FromWorker] = []
        self.open: dict[str, Gateway] = {}
        self.rules = Rules()
        self.supervisor = Supervisor(UID, self.heard.append, self.ready)

    def ready(self) -> None:
        for sandbox, door in self.open.items():
            self.tell(sandbox, door)

    def tell(self, sandbox: str, door: Gateway) -> None:
        with tempfile.TemporaryFile() as book:
            fds = [*(one.fileno() for one in door.sockets), book.fileno()]
            self.supervisor.send(OpenGateway(sandbox=sandbox, rules=self.rules), fds)

    async def add(self, namespaces: Namespaces, namespace: NetworkNamespace, sandbox: str = "sb-aaaaaaaaaa") -> Gateway:
        self.open[sandbox] = door = await doors.open_gateway(namespaces, namespace.pidfd)
        self.tell(sandbox, door)
        return door

    def tried(self) -> list[str]:
        return [message.attempt.host for message in self.heard if isinstance(message, AttemptMessage)]


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    made = Office()
    made.supervisor.start()
    assert await made.supervisor.wait_ready(20)
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


async def test_worker_has_no_privileges(office: Office) -> None:
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
        namespace = Path(f"/proc/{office.supervisor.pid}/fd")
        held = {int(name): os.readlink(namespace / name) for name in os.listdir(namespace)}
    assert [held.pop(n) for n in (0, 1)] == ["/dev/null"] * 2
    assert held.pop(2).startswith("pipe:")
    assert held.pop(3).startswith("socket:")
    own = ("anon_inode:", "pipe:", "socket:")  # the event loop's
    assert [target for target in held.values() if not target.startswith(own)] == []


async def test_killed_worker_is_back_within_two_seconds_with_its_gateways(
    office: Office, namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    await office.add(namespaces, namespace)
    assert await asyncio.to_thread(namespace.python, TRY, "203.0.113.1") == "ConnectionResetError"
    for round_ in range(2, 5):
        assert office.supervisor.pid is not None
        os.kill(office.supervisor.pid, signal.SIGKILL)
        meanwhile = asyncio.create_task(asyncio.to_thread(namespace.python, TRY, f"203.0.113.{round_}"))
        await until(lambda: office.supervisor.state != "ready", 2)
        assert await office.supervisor.wait_ready(5)
        assert await meanwhile == "ConnectionResetError"
        assert await asyncio.to_thread(namespace.python, TRY, f"198.51.100.{round_}") == "ConnectionResetError"
    await until(lambda: len(office.tried()) == 7)


async def test_closed_gateway_is_not_sent_to_a_new_worker(
    office: Office, namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    door = await office.add(namespaces, namespace)
    office.supervisor.send(CloseGateway(sandbox="sb-aaaaaaaaaa"))
    assert await office.supervisor.sync(10)
    del office.open["sb-aaaaaaaaaa"]
    door.close()
    assert await asyncio.to_thread(namespace.python, TRY, "203.0.113.1") == "ConnectionRefusedError"
    assert office.tried() == []


async def test_the_worker_dies_with_the_server(office: Office) -> None:
    """With its channel; and by PR_SET_PDEATHSIG if that fails in any other way."""
    pid = office.supervisor.pid
    await office.supervisor.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


HOLD = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
one.settimeout(60)
print(one.recv(100).decode(), flush=True)
try:
    print("ended" if one.recv(1) == b"" else "more", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


async def test_stopped_worker_is_replaced_and_open_connections_are_reset(
    office: Office, namespaces: Namespaces, make_namespace: Callable[[], NetworkNamespace]
) -> None:
    """Two sandboxes with an open connection each: both get an error, and neither takes it for the end of its data."""
    address = own_address()

    def greet(sock: socket.socket) -> None:
        sock.sendall(b"hello")
        sock.recv(1)

    with serve_tcp(greet, address) as port, contextlib.ExitStack() as stack:
        office.rules = Rules(allow=(f"{address}:{port}",), ceiling=(f"{address}:{port}",))
        programs = []
        for sandbox in ("sb-aaaaaaaaaa", "sb-bbbbbbbbbb"):
            namespace = make_namespace()
            await office.add(namespaces, namespace, sandbox)
            running = namespace.running(HOLD, address, str(port))
            programs.append(await asyncio.to_thread(stack.enter_context, running))
        assert office.supervisor.pid is not None
        os.kill(office.supervisor.pid, signal.SIGSTOP)
        # far less than the time limit for an answer: the state of the process decides
        await until(lambda: office.supervisor.starts == 2 and office.supervisor.state == "ready", 20)
        for program in programs:
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "ConnectionResetError\n"
        fresh = await asyncio.to_thread(stack.enter_context, namespace.running(HOLD, address, str(port)))
        assert fresh.poll() is None, "the new worker serves the gateway"
    assert supervision.HEARTBEAT_S + supervision.MAX_IDLE_S + 2 * supervision.SAMPLE_S <= 5


@pytest.mark.parametrize("lie", ["sleep", "spin"])
async def test_worker_that_blocks_or_spins_is_replaced(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, lie))
    monkeypatch.setattr(supervision, "HEARTBEAT_TIMEOUT_S", 600.0)
    office = Office()
    office.supervisor.start()
    try:
        await until(lambda: office.supervisor.starts >= 2, 60)
    finally:
        await office.supervisor.close()


def judged(samples: list[WorkerSample | None], every_s: float = 0.5, progress: bool = False) -> str | None:
    watch, reasons = HangWatch(), []
    for number, sample in enumerate(samples):
        reasons.append(watch.add(sample, number if progress else 0, number * every_s))
    return reasons[-1]


def test_worker_that_waits_for_a_cpu_or_a_disk_does_not_hang() -> None:
    """As on a host with a load of 190: not one turn, or a short one now and then."""
    for state in "RD":
        assert judged([WorkerSample(state, 1.0, 7)] * 100) is None
    assert judged([WorkerSample("R", 1.0 + n / 100, 7 + n) for n in range(100)]) is None
    assert judged([WorkerSample("S", 1.0, 7 + n) for n in range(100)]) is None, "it runs between the samples"
    assert judged([WorkerSample("SSRS"[n % 4], 1.0, 7) for n in range(100)]) is None
    assert judged([None] * 100) is None
    assert judged([WorkerSample("R", 1.0 + n, 7 + n) for n in range(100)], progress=True) is None, "it handles messages"
    assert judged([WorkerSample("S", 1.0, 7)] * 2, every_s=60) is None, "two samples of a slow server prove nothing"


def test_worker_that_does_not_run_or_only_runs_hangs() -> None:
    for state in "STt":
        assert "did not run" in (judged([WorkerSample(state, 1.0, 7)] * 5) or "")
    assert "CPU time" in (judged([WorkerSample("R", 1.0 + n, 7 + n) for n in range(4)]) or "")


async def test_a_flood_of_tries_leaves_the_server_free(
    office: Office, namespaces: Namespaces, namespace: NetworkNamespace
) -> None:
    await office.add(namespaces, namespace)
    with namespace.running(FLOOD):
        await until(lambda: sum(m.attempt.count for m in office.heard if isinstance(m, AttemptMessage)) > 100, 20)
    assert await office.supervisor.sync(20)
    assert office.supervisor.starts == 1


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


async def test_flooding_worker_is_read_at_a_limited_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, "flood"))
    monkeypatch.setattr(supervision, "MESSAGE_BURST", 100)
    monkeypatch.setattr(supervision, "MESSAGES_PER_SECOND", 100)
    office = Office()
    office.supervisor.start()
    assert await office.supervisor.wait_ready(20)
    turns, end = 0, asyncio.get_running_loop().time() + 2
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.001)
        turns += 1
    assert 100 < len(office.heard) < 1000
    assert turns > 100  # other tasks ran
    await office.supervisor.close()


async def test_a_worker_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PROGRAM", (LIAR, "silent"))
    monkeypatch.setattr(supervision, "READY_TIMEOUT_S", 0.3)
    office = Office()
    office.supervisor.start()
    await until(lambda: office.supervisor.starts >= 2, 20)
    await office.supervisor.close()
    assert office.supervisor.state == "closed"
