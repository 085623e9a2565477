"""Nearly valid random input to every listener: the worker survives, and nothing passes."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest
from attacks.egress.test_smuggling import request_lines
from support.egress_attack import WAYS, Try, tried, worker_of
from support.server import Server, wait_until
from world import places
from world.world import World

from skerry import Sandbox

PLACE = "/opt/egress/garbage.py"


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_garbage_is_rejected(world: World, world_server: Server, guest: Sandbox, seconds: int) -> None:
    guest.files.write(PLACE, (WAYS.parent / "garbage.py").read_bytes(), user="root")
    assert tried(world, guest, {"before": Try("get", ["api.example.test"])}).outcomes["before"].gained is not None
    worker = worker_of(world_server)
    before = _weight(worker)
    world.reset()
    seeds = [secrets.randbelow(1 << 30) for _ in range(3)]
    throwers = [guest.spawn(["python3", PLACE, str(seed), str(seconds)]) for seed in seeds]
    assert all(int(thrower.wait(timeout=seconds + 30).stdout) > 5 * seconds for thrower in throwers)
    assert worker_of(world_server) == worker
    assert world.strays() == []
    assert set(world.asked()) <= {"api.example.test", "paths.example.test", "inspected.example.test"}
    for call in world.calls():
        assert call["address"] == places.API
        if "paths.example.test" in call["raw"]:
            lines = request_lines(call["raw"])
            assert all(re.match(r"(GET|HEAD) /+public(/|\?| |$)", line) for line in lines), (seeds, lines)
    assert "Traceback" not in world_server.log.read_text(errors="replace")
    wait_until(lambda: _weight(worker)[0] < before[0] + 40, "the worker to close what it opened", 20)
    assert _weight(worker)[1] < before[1] + (128 << 10)
    assert tried(world, guest, {"after": Try("get", ["api.example.test"])}).outcomes["after"].gained is not None


def _weight(worker: int | None) -> tuple[int, int]:
    """Its descriptors, and the kilobytes of its memory."""
    memory = re.search(r"VmRSS:\s*([0-9]+)", Path(f"/proc/{worker}/status").read_text())
    assert memory is not None
    return len(list(Path(f"/proc/{worker}/fd").iterdir())), int(memory[1])
