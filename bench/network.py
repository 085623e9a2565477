"""Through the gateway or direct: the same client program inside a sandbox and on the host, in turns, to the same server
on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.far import address
from bench.measure import Figure, Part, Row, row, side_by_side, timed
from skerry import Handler, Limits, Network, Options, Preset, Sandbox
from skerry.network.messages import Rules
from skerry.network.policy.policy import Policy
from skerry.types.hosts import parse_host

CONNECT, CONNECT_STRAIGHT = "connect and echo, through the gateway", "connect and echo, straight"
BULK, BULK_STRAIGHT = "256 MiB over TCP, through the gateway", "256 MiB over TCP, straight"
HTTP, HTTP_STRAIGHT = "256 MiB over HTTP, through the gateway", "256 MiB over HTTP, straight"
TLS, TLS_STRAIGHT = "256 MiB over HTTPS, inspected", "256 MiB over HTTPS, straight"
OPEN, CLOSED = "create with a policy of 100 rules", "create with no network"
PLAIN, RULE, CALLBACK = "an HTTP request", "a request, header set by a rule", "a request, header set by a callback"
DECIDE = "10,000 hosts: one decision"
AT_ONCE = 500
BULK_BYTES = 256 << 20
COLD = Options(use_pool=False)
CLIENT = r"""
import asyncio, json, os, socket, ssl, sys, time
what, host, port, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def connected():
    made = socket.create_connection((host, port), 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made

def one():
    start = time.perf_counter()
    with connected() as made:
        made.sendall(b"PING\r\n")
        assert made.recv(6) == b"PING\r\n"
        return (time.perf_counter() - start) * 1000

def fetch(made, verb=b"GET"):
    start = time.perf_counter()
    made.sendall(b"%s /%d HTTP/1.1\r\nhost: %s:%d\r\n\r\n" % (verb, number, host.encode(), port))
    buffer, left = bytearray(1 << 20), None
    held = b""
    while b"\r\n\r\n" not in held:
        held += made.recv(4096)
    head, _, rest = held.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    left = number - len(rest)
    while left > 0:
        got = made.recv_into(buffer)
        assert got, "cut off"
        left -= got
    return (time.perf_counter() - start) * 1000

async def talk(index, arrived):
    reader, writer = await asyncio.open_connection(host, port)
    token = b"%08d" % index * 64
    writer.write(token)
    got = await reader.readexactly(len(token))
    arrived.append(got == token)
    while len(arrived) < number:  # all of them are open at once
        await asyncio.sleep(0.01)
    writer.close()

async def many():
    arrived = []
    async with asyncio.timeout(60):
        await asyncio.gather(*(talk(index, arrived) for index in range(number)), return_exceptions=True)
    return sum(arrived)

if what == "connect":
    print(json.dumps([one() for _ in range(number)]))
elif what == "http":
    with connected() as made:
        print(json.dumps([fetch(made)]))
elif what == "requests":
    with connected() as made:
        print(json.dumps([fetch(made) for _ in range(200)][20:]))
elif what == "raw":
    with connected() as made:
        print(json.dumps([fetch(made, b"\0")]))  # which is not HTTP: bytes are carried as they are
elif what == "https":
    context = ssl.create_default_context(cafile=os.environ.get("BENCH_CA") or None)
    with context.wrap_socket(connected(), server_hostname=host) as made:
        print(json.dumps([fetch(made)]))
else:
    print(json.dumps([asyncio.run(many())]))
"""


@dataclass(frozen=True)
class Far:
    """The server of a benchmark. `network` permits a sandbox to reach it, and intercepts TLS of the last port."""

    name: str
    echo: int
    plain: int
    tls: int
    network: Network
    certificate: Path

    def straight(self, what: str, port: int, number: int) -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, what, self.name, str(port), str(number)],
            stdout=subprocess.PIPE, env={"BENCH_CA": str(self.certificate)}, check=True,
        )  # fmt: skip
        times: list[float] = json.loads(done.stdout)
        return times

    def inside(self, sandbox: Sandbox, what: str, port: int, number: int) -> list[float]:
        argv = ["python3", "-c", CLIENT, what, self.name, str(port), str(number)]
        result = sandbox.run(argv, timeout=120)
        if not result.ok:
            sys.exit(f"the client inside failed: {result.stderr[-2000:]}\n{[one.why for one in result.denied]}")
        times: list[float] = json.loads(result.stdout)
        return times


@contextmanager
def far() -> Iterator[Far]:
    name, where = address()
    with tempfile.TemporaryDirectory() as directory:
        serving = subprocess.Popen(
            [sys.executable, "-m", "bench.far", directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert serving.stdout is not None
        assert serving.stdin is not None
        try:
            echo, plain, tls = map(int, serving.stdout.readline().split())
            certificate = Path(directory, "certificate.pem")
            rules = tuple(f"{name}:{port}@{where}" for port in (echo, plain, tls))
            preset = Preset(name="bench", allow=rules, certificates=certificate.read_text())
            network = Network(presets=(preset,), inspect=(f"{name}:{tls}",))
            yield Far(name, echo, plain, tls, network, certificate)
        finally:
            serving.stdin.close()
            serving.wait(10)


def network(count: int) -> Part:
    with far() as there, Sandbox(network=there.network, limits=Limits(cpus=2), options=COLD) as sandbox:
        rows = [
            *_turns(there, sandbox, "connect", there.echo, 20, count, (CONNECT_STRAIGHT, CONNECT)),
            *_turns(there, sandbox, "raw", there.plain, BULK_BYTES, 10, (BULK_STRAIGHT, BULK)),
            *_turns(there, sandbox, "http", there.plain, BULK_BYTES, 10, (HTTP_STRAIGHT, HTTP)),
            *_turns(there, sandbox, "https", there.tls, BULK_BYTES, 4, (TLS_STRAIGHT, TLS)),
        ]
        (right,) = there.inside(sandbox, "many", there.echo, AT_ONCE)
        rows += handlers(there, sandbox, max(3, count // 4))
    rows += [*creates(max(count, 20)), decisions()]
    return rows, figures({one.name: one for one in rows}, int(right))


def _turns(
    there: Far, sandbox: Sandbox, what: str, port: int, number: int, rounds: int, names: tuple[str, str]
) -> list[Row]:
    """In turns, so that a noisy moment of the machine hits both alike; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        works: tuple[Callable[[], list[float]], ...] = (
            lambda: there.straight(what, port, number),
            lambda: there.inside(sandbox, what, port, number),
        )
        for name, work in zip(names, works, strict=True):
            spent = work()
            times[name] += spent if turn else []
    return [row(name, spent) for name, spent in times.items()]


def handlers(there: Far, sandbox: Sandbox, rounds: int) -> list[Row]:
    """Requests on one connection: inspected, with a rule, with a Python function of this process; in turns."""
    host = f"{there.name}:{there.plain}"

    def requests() -> list[float]:
        return there.inside(sandbox, "requests", there.plain, 1)

    def with_rule() -> list[float]:
        sandbox.network.add_handlers(Handler(host=host, set_headers={"X-Team": "blue"}))
        spent = requests()
        sandbox.network.remove_handlers(host)
        return spent

    def with_callback() -> list[float]:
        with sandbox.network.handle(host, lambda request: request.with_header("X-Team", "blue")):
            return requests()

    times: dict[str, list[float]] = {PLAIN: [], RULE: [], CALLBACK: []}
    for _ in range(rounds):
        for name, work in ((PLAIN, requests), (RULE, with_rule), (CALLBACK, with_callback)):
            times[name] += work()
    return [row(name, spent) for name, spent in times.items()]


def creates(count: int) -> list[Row]:
    policy = Network(allow=tuple(f"host-{n}.example.test" for n in range(100)))

    def create(network: Network) -> Callable[[], float]:
        def once() -> float:
            sandbox: list[Sandbox] = []
            spent = timed(lambda: sandbox.append(Sandbox.create(options=COLD, network=network)))
            sandbox[0].delete()
            return spent

        return once

    times: dict[str, list[float]] = {CLOSED: [], OPEN: []}
    for turn in range(count + 2):
        for name, work in ((CLOSED, create(Network())), (OPEN, create(policy))):
            spent = work()
            times[name] += [spent] if turn >= 2 else []
    return [row(name, spent) for name, spent in times.items()]


def decisions() -> Row:
    """Milliseconds of one decision, of a thousand each time: half of them allowed."""
    policy = Policy.compile(Rules(allow=tuple(f"host-{n}.example.test" for n in range(10_000))))
    hosts = [parse_host(f"host-{n * 11}.example.test") for n in range(1000)]

    def thousand() -> None:
        for host in hosts:
            policy.connect(host, 443)

    spent = side_by_side({DECIDE: thousand}, 30)[0]
    return row(DECIDE, [one / len(hosts) for one in spent.times])


def figures(rows: dict[str, Row], right: int) -> list[Figure]:
    def share(name: str, straight: str, ours: str, least: float) -> Figure:
        one, other = rows[straight].p50, rows[ours].p50
        return Figure(name, one / other, f"{one:.0f} ms / {other:.0f} ms", least=least)

    def above(name: str, ours: str, straight: str, most: float) -> Figure:
        one, other = rows[ours].p50, rows[straight].p50
        return Figure(name, one - other, f"{one:.2f} ms, {other:.2f} ms", most=most)

    return [
        above("connecting through the gateway, ms above straight", CONNECT, CONNECT_STRAIGHT, 5),
        share("uninspected bulk, share of straight", BULK_STRAIGHT, BULK, 0.5),
        share("plain HTTP bulk, share of straight", HTTP_STRAIGHT, HTTP, 0.5),
        share("inspected bulk, share of straight TLS", TLS_STRAIGHT, TLS, 0.15),
        Figure(f"{AT_ONCE} connections at once through the gateway, right", right, least=AT_ONCE),
        Figure("a decision of 10,000 hosts, µs", rows[DECIDE].p50 * 1000, most=50),
        above("a handler that changes one header, ms above none", RULE, PLAIN, 2),
        Figure("a Python handler that changes one header, ms above none", rows[CALLBACK].p50 - rows[PLAIN].p50),
        above("create with a policy, ms above one without", OPEN, CLOSED, 5),
    ]
