"""A batch of attacks (`inside/egress/ways.py`), run in a sandbox and, as a control that they can succeed, on a host of
the tests' world."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world.world import World

from skerry import Result, Sandbox
from support.attack import Outcome
from support.server import Server

WAYS = Path(__file__).parents[1] / "attacks/inside/egress/ways.py"
PLACE = "/opt/egress/ways.py"


@dataclass(frozen=True)
class Try:
    """`told`: the host that the log must report as denied."""

    way: str
    args: list[Any] | dict[str, Any]
    told: str | None = None


@dataclass(frozen=True)
class Tried:
    """The result of a batch: the outcomes, and the traffic that the world saw."""

    outcomes: dict[str, Outcome]
    result: Result | None
    strays: list[str]
    asked: dict[str, int]
    calls: list[dict[str, Any]]

    def failed(self, name: str, attack: Try) -> None:
        outcome = self.outcomes[name]
        assert outcome.repelled, outcome
        assert outcome.failed not in ("silence", "ETIMEDOUT"), outcome
        assert "timed out" not in str(outcome.failed), outcome
        assert self.strays == []
        if attack.told is not None:
            assert self.result is not None
            assert attack.told in {attempt.host for attempt in self.result.denied}


def carry_in(sandbox: Sandbox) -> None:
    sandbox.files.write(PLACE, WAYS.read_bytes(), user="root")


def tried(world: World, sandbox: Sandbox, batch: dict[str, Try], user: str = "user", timeout: float = 90) -> Tried:
    """Run inside, with no other traffic in the world."""
    world.reset()
    result = sandbox.run(["python3", PLACE], stdin=jobs(batch), user=user, timeout=timeout)
    assert result.ok, result.stderr
    return _seen(world, result.stdout, result)


def controlled(world: World, batch: dict[str, Try]) -> Tried:
    """Run on the world's host side."""
    world.reset()
    done = world.run(sys.executable, str(WAYS), input=jobs(batch))
    assert done.returncode == 0, done.stderr
    seen = _seen(world, done.stdout, None)
    world.reset()
    return seen


def door_port(world: World, sandbox: Sandbox) -> int:
    """Return the port of the gateway, as seen from inside."""
    found = tried(world, sandbox, {"ports": Try("own_ports", [])}).outcomes["ports"].gained
    assert found is not None
    return int(json.loads(found)[0])


def worker_of(server: Server) -> int | None:
    assert server.process is not None
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                if "skerry.network.worker" in Path(f"/proc/{child}/cmdline").read_text():
                    return int(child)
            except OSError:
                continue
    return None


def jobs(batch: dict[str, Try]) -> str:
    return json.dumps({name: [one.way, one.args] for name, one in batch.items()})


def _seen(world: World, text: str, result: Result | None) -> Tried:
    outcomes = {name: Outcome(**outcome) for name, outcome in json.loads(text).items()}
    return Tried(outcomes, result, world.strays(), world.asked(), world.calls())
