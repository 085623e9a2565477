"""The proxy's death opens nothing: no network while it is gone, and the same network when it is back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.egress_attack import Try, carry_in, door_port, tried, worker_of
from support.server import Server, wait_until
from world import places
from world.world import World

from skerry import Network, Sandbox

SQUATTER = """
import json, socket, sys, time
held, ends = [], time.monotonic() + 60
print("ready", flush=True)
port = int(sys.argv[1])
while time.monotonic() < ends:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        one = socket.socket(family)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port)); one.listen(); held.append(one)
            print("squatting", host, flush=True)
        except OSError:
            one.close()
    time.sleep(0.005)
"""


@pytest.fixture
def own(world: World, own_world_server: Server) -> Iterator[Sandbox]:
    own_world_server.start()
    network = Network(allow=("api.example.test", "api.example.test:7,8080"), deny=("evil.test",))
    with Sandbox(server=own_world_server.address, network=network) as sandbox:
        carry_in(sandbox)
        yield sandbox


def status_of(pid: int | None) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


def works(world: World, sandbox: Sandbox) -> bool:
    return tried(world, sandbox, {"get": Try("get", ["api.example.test"])}).outcomes["get"].gained is not None


def refused(world: World, sandbox: Sandbox) -> None:
    seen = tried(world, sandbox, {"evil": Try("get", ["evil.test"]), "raw": Try("get", [places.METADATA])})
    assert all(outcome.repelled for outcome in seen.outcomes.values()), seen.outcomes
    assert seen.strays == []


def test_worker_is_unprivileged(own: Sandbox, own_world_server: Server) -> None:
    worker = worker_of(own_world_server)
    wait_until(lambda: status_of(worker)["NoNewPrivs"].strip() == "1", "the worker to have begun")
    status = status_of(worker)
    assert {int(uid) for uid in status["Uid"].split()} & {0} == set()
    assert {int(gid) for gid in status["Gid"].split()} & {0} == set()
    assert status["Groups"].strip() == ""
    assert {int(status[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"].strip() == "1"


def test_killed_worker_means_no_network_until_it_is_replaced(
    world: World, own: Sandbox, own_world_server: Server
) -> None:
    assert works(world, own)
    slow = own.spawn(["curl", "-sS", "--noproxy", "*", "http://api.example.test/slow"])
    wait_until(lambda: any(call["requests"] == ["GET /slow"] for call in world.calls()), "the transfer to begin")
    first = worker_of(own_world_server)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert not slow.wait(timeout=20).ok, "its connection is gone, and it is told"
    wait_until(lambda: worker_of(own_world_server) not in (None, first), "another worker")
    wait_until(lambda: works(world, own), "the network to be back")
    refused(world, own)
    with own_world_server.http() as http:
        assert http.get("/healthz").status_code == 200


def test_port_cannot_be_taken_while_the_worker_is_down(world: World, own: Sandbox, own_world_server: Server) -> None:
    port = door_port(world, own)
    squatter = own.spawn(["python3", "-c", SQUATTER, str(port)], user="root")
    squatter.wait_for_output("ready", timeout=60)
    for _ in range(3):
        pid = worker_of(own_world_server)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda gone=pid: worker_of(own_world_server) not in (None, gone), "another worker")
    wait_until(lambda: works(world, own), "the network to be back")
    assert b"squatting" not in squatter.output().data
    squatter.kill()


def test_port_squatter_gains_nothing_from_a_server_crash(world: World, own: Sandbox, own_world_server: Server) -> None:
    """While no server holds the port the inside can take it; the next server takes a fresh one and turns the rule."""
    port = door_port(world, own)
    squatter = own.spawn(["python3", "-c", SQUATTER, str(port)], user="root")
    squatter.wait_for_output("ready", timeout=60)
    worker = worker_of(own_world_server)
    own_world_server.end(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to die with its server")
    own_world_server.start()
    wait_until(lambda: works(world, own), "the network to be back")
    assert b"squatting" in squatter.output().data, "the control: it could be taken meanwhile"
    refused(world, own)
    squatter.kill()


def test_fake_ips_survive_crashes(world: World, own: Sandbox, own_world_server: Server) -> None:
    """A program that looked a name up before can connect after."""

    def address() -> str:
        outcome = tried(world, own, {"name": Try("look_up", ["api.example.test"])}).outcomes["name"]
        assert outcome.gained is not None, outcome
        return outcome.gained

    before = address()
    own_world_server.end(signal.SIGKILL)
    own_world_server.start()
    assert address() == before
    made_up = json.loads(before.replace("'", '"'))[0]
    seen = tried(world, own, {"old": Try("get", [made_up, 80, "/", "api.example.test"])})
    assert seen.outcomes["old"].gained is not None, seen.outcomes
