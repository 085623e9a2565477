"""A guest that shouts does not drown others: the API answers, and another sandbox gets through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.egress_attack import PLACE, Try, carry_in, jobs, tried, worker_of
from support.server import Server, wait_until
from world import places
from world.world import World

from skerry import Limits, Network, Process, Sandbox


@pytest.fixture(scope="module")
def loud(world: World, world_server: Server) -> Iterator[Sandbox]:
    network = Network(allow=("api.example.test", "api.example.test:7"))
    with Sandbox(server=world_server.address, network=network, limits=Limits(pids=128)) as sandbox:
        carry_in(sandbox)
        yield sandbox


def shout(sandbox: Sandbox, batch: dict[str, Try]) -> Process:
    process = sandbox.spawn(["python3", PLACE])
    process.stdin.write(jobs(batch))
    process.stdin.close()
    return process


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays_open(world_server: Server, guest: Sandbox, loud: Sandbox) -> Iterator[None]:
    """No opened descriptor is left in the worker, and it was not restarted."""
    worker = worker_of(world_server)
    descriptors = Path(f"/proc/{worker}/fd")
    before = len(list(descriptors.iterdir()))
    yield
    wait_until(lambda: len(list(descriptors.iterdir())) < before + 40, "the worker to close what it opened", 20)
    assert worker_of(world_server) == worker


def others_still_can(world: World, world_server: Server, guest: Sandbox) -> None:
    """The API answers, and a well-behaved sandbox reaches its allowed hosts."""
    with world_server.http() as http:
        assert http.get("/healthz").status_code == 200
        assert http.get(f"/v1/sandboxes/{guest.id}").status_code == 200
    seen = tried(world, guest, {f"{n}": Try("get", ["api.example.test"]) for n in range(3)})
    assert [outcome for outcome in seen.outcomes.values() if outcome.gained is None] == []


def test_half_open_connections_do_not_block_others(
    world: World, world_server: Server, guest: Sandbox, loud: Sandbox
) -> None:
    process = shout(loud, {f"{n}": Try("half_open", ["api.example.test", 80, 3000, 6]) for n in range(2)})
    wait_until(lambda: _connections(loud) > 300, "the flood to rise")
    others_still_can(world, world_server, guest)
    process.kill()
    process.wait()
    wait_until(lambda: _connections(loud) < 50, "the flood to fall")
    seen = tried(world, loud, {"after": Try("get", ["api.example.test"])})
    assert seen.outcomes["after"].gained is not None
    assert seen.strays == []


def _connections(sandbox: Sandbox) -> int:
    return sandbox.run(["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 01 '"]).stdout.strip() and int(
        sandbox.run(["sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 01 '"]).stdout
    )


def test_thousands_of_denied_connections_do_not_block_others(
    world: World, world_server: Server, guest: Sandbox, loud: Sandbox
) -> None:
    process = shout(loud, {f"{n}": Try("many", ["get", 400, [places.EVIL]]) for n in range(8)})
    for _ in range(3):
        others_still_can(world, world_server, guest)
    result = process.wait(timeout=60)
    assert result.ok, result.stderr
    ends = [outcome.get("gained") for outcome in json.loads(result.stdout).values()]
    assert all(end and "gained" not in end for end in ends), ends
    refused = sum(attempt.count for attempt in result.denied if attempt.host == places.EVIL)
    assert refused == 3200
    assert len(result.denied) <= 1000
    assert world.strays() == []


def test_thousands_of_denied_names_do_not_block_others(
    world: World, world_server: Server, guest: Sandbox, loud: Sandbox
) -> None:
    process = shout(loud, {f"{n}": Try("many", ["dns", 500, [[f"secret-{n}", "evil", "test"]]]) for n in range(8)})
    others_still_can(world, world_server, guest)
    result = process.wait(timeout=60)
    assert result.ok, result.stderr
    assert "evil" not in " ".join(world.asked())
