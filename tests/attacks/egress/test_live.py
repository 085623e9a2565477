"""A policy that changes under load, its limits, and the separation of gateways."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.egress_attack import Try, carry_in, door_port, tried
from support.server import Server, wait_until
from world import places
from world.world import World

from skerry import Network, Sandbox

HOLD = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
one.sendall(b"hello"); assert one.recv(5) == b"hello"
print("open", flush=True)
one.settimeout(20)
try:
    print("ended", one.recv(5))
except OSError as error:
    print("ended", error)
"""


@pytest.fixture
def make(world: World, world_server: Server) -> Iterator[object]:
    made: list[Sandbox] = []

    def create(**words: object) -> Sandbox:
        sandbox = Sandbox.create(server=world_server.address, network=Network(**words))  # type: ignore[arg-type]
        made.append(sandbox)
        carry_in(sandbox)
        return sandbox

    yield create
    for sandbox in made:
        sandbox.delete()


def test_live_deny_closes_open_connections(world: World, make: object) -> None:
    sandbox = make(allow=("api.example.test:7", "a.files.example.test:7"))  # type: ignore[operator]
    gone, kept = (
        sandbox.spawn(["python3", "-c", HOLD, host, "7"]) for host in ("api.example.test", "a.files.example.test")
    )
    for one in (gone, kept):
        one.wait_for_output("open", timeout=60)
    sandbox.network.deny("api.example.test")
    result = gone.wait(timeout=60)
    assert "ended" in result.stdout
    assert kept.state == "running" or "ended" not in kept.output().text
    seen = tried(world, sandbox, {"again": Try("raw", ["api.example.test", 7, "x", "x"])})
    assert seen.outcomes["again"].gained is None
    kept.kill()


def test_live_allow_opens_only_the_named_host(world: World, make: object) -> None:
    sandbox = make()  # type: ignore[operator]
    batch = {"api": Try("get", ["api.example.test"]), "evil": Try("get", ["evil.test"])}
    assert all(outcome.gained is None for outcome in tried(world, sandbox, batch).outcomes.values())
    sandbox.network.allow("api.example.test")
    seen = tried(world, sandbox, batch)
    assert seen.outcomes["api"].gained is not None, seen.outcomes
    assert seen.outcomes["evil"].gained is None
    assert seen.strays == []


def test_deleted_sandbox_leaves_no_connection(world: World, make: object, world_server: Server) -> None:
    def upstream() -> int:
        return len(world.run("ss", "-Htn", "state", "established", "dport", "=", "7", check=True).stdout.splitlines())

    wait_until(lambda: upstream() == 0, "those of other tests to end")
    with Sandbox(server=world_server.address, network=Network(allow=("api.example.test:7",))) as sandbox:
        sandbox.spawn(["python3", "-c", HOLD, "api.example.test", "7"]).wait_for_output("open", timeout=60)
        assert upstream() == 1
    wait_until(lambda: upstream() == 0, "its connection to end")


def test_resumed_sandbox_keeps_its_policy(world: World, make: object) -> None:
    sandbox = make(allow=("api.example.test",))  # type: ignore[operator]
    sandbox.stop()
    seen = tried(world, sandbox, {"api": Try("get", ["api.example.test"]), "evil": Try("get", ["evil.test"])})
    assert seen.outcomes["api"].gained is not None, seen.outcomes
    assert seen.outcomes["evil"].gained is None
    assert seen.strays == []


def test_number_of_connections_is_limited(world: World, make: object) -> None:
    sandbox = make(allow=("api.example.test:7",), max_connections=3)  # type: ignore[operator]
    holders = [sandbox.spawn(["python3", "-c", HOLD, "api.example.test", "7"]) for _ in range(3)]
    for holder in holders:
        holder.wait_for_output("open", timeout=60)
    seen = tried(world, sandbox, {"fourth": Try("raw", ["api.example.test", 7, "x", "x"])})
    assert seen.outcomes["fourth"].gained is None
    assert seen.result is not None
    assert any("connections" in attempt.why for attempt in seen.result.denied)
    for holder in holders:
        holder.kill()
        holder.wait()
    wait_until(
        lambda: tried(world, sandbox, {"x": Try("raw", ["api.example.test", 7, "x", "x"])}).outcomes["x"].gained,
        "room for a connection",
    )


def test_total_traffic_is_limited(world: World, make: object) -> None:
    sandbox = make(allow=("api.example.test",), max_bytes="256K")  # type: ignore[operator]
    done = sandbox.run("curl -sS --noproxy '*' -o /tmp/big http://api.example.test/bytes/4000000; stat -c %s /tmp/big")
    assert int(done.stdout) < 1 << 20
    seen = tried(world, sandbox, {"after": Try("get", ["api.example.test"])})
    assert seen.outcomes["after"].gained is None
    assert seen.result is not None
    assert any("limit of" in attempt.why for attempt in seen.result.denied), seen.result.denied


def test_bandwidth_is_limited(world: World, make: object) -> None:
    """A megabyte at 200 KB a second can't be there in two seconds, whichever way it is asked for."""
    sandbox = make(allow=("api.example.test",), bytes_per_second="200K")  # type: ignore[operator]
    fetch = "timeout 2 curl -sS --noproxy '*' http://api.example.test/bytes/1000000"
    done = sandbox.run(f"for n in 1 2 3 4; do {fetch} & done | wc -c; wait")
    assert int(done.stdout.split()[0]) < 1_000_000


def test_sandboxes_are_not_confused(world: World, make: object) -> None:
    """Each has a separate gateway: no header, source address or name of the other makes any difference."""
    rich = make(allow=("api.example.test",))  # type: ignore[operator]
    poor = make()  # type: ignore[operator]
    assert tried(world, rich, {"get": Try("get", ["api.example.test"])}).outcomes["get"].gained is not None
    port = door_port(world, rich)
    looked = tried(world, rich, {"n": Try("look_up", ["api.example.test"])}).outcomes["n"].gained
    assert looked is not None
    made_up = json.loads(looked.replace("'", '"'))[0]
    proxied = "PROXY TCP4 {0} {1} 1234 80\r\nGET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"
    batch = {
        "the other's name": Try("get", ["api.example.test"]),
        "the other's made-up address": Try("get", [made_up, 80, "/", "api.example.test"]),
        "the other's port": Try("get", ["127.0.0.1", port]),
        "a PROXY header": Try("raw", [places.API, 80, proxied.format("198.18.0.5", places.API), '"address"']),
        "a forwarding header": Try(
            "absolute", ["http://api.example.test/", "api.example.test", "GET",
                         f"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nX-Sandbox: {rich.id}\r\n"
                         f"Proxy-Authorization: Basic {rich.id}\r\n"]),
        "a source address": Try("source", [places.API, 80, "127.0.0.99"]),
    }  # fmt: skip
    for user in ("user", "root"):
        seen = tried(world, poor, batch, user)
        assert {name: one.gained for name, one in seen.outcomes.items() if not one.repelled} == {}
        assert seen.calls == []
        assert seen.strays == []
    assert {attempt.decision for attempt in poor.network.log()} == {"denied"}
