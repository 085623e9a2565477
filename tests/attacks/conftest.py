"""One sandbox for all attacks that leave it standing, and the programs that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import go_programs
from support.attack import Attack, Outcome, carry_in, control, plant, raid
from support.attack_targets import bait
from support.server import Server

from skerry import Limits, Sandbox

HERE = Path(__file__).parent
Raid = Callable[[Attack, str], Outcome]


@pytest.fixture(scope="session")
def target_server(make_server: Callable[[], Server]) -> Server:
    """Start the server of the attacked sandbox. It runs as a separate program: an attack reads environments."""
    return make_server().start(PYTHONHASHSEED="1")  # a server with other Python settings is not forked


@pytest.fixture(scope="session")
def target(target_server: Server) -> Iterator[Sandbox]:
    """The sandbox that is attacked from inside."""
    with Sandbox(server=target_server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        plant(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def facts(target_server: Server) -> Iterator[dict[str, Any]]:
    with bait(target_server) as told:
        yield told


@pytest.fixture(scope="session")
def run_attack(target: Sandbox, facts: dict[str, Any]) -> Raid:
    """`run_attack(attack, user)`: the outcome of an attack inside; `user` may also be "host" or "namespace". A script
    runs once for each user, and each of its attacks is a separate test."""
    known: dict[tuple[str, str], dict[str, Outcome]] = {}

    def once(attack: Attack, user: str) -> Outcome:
        key = (attack.script, user)
        if key not in known:
            outside = user in ("host", "namespace")
            known[key] = control(*key, facts) if outside else raid(target, *key, facts)
        return known[key][attack.name]

    return once


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds `tests/attacks/<name>` as the keeper is built: static, nothing but the standard library."""
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            built[name] = go_programs.build(HERE / name, tmp_path_factory.mktemp("go") / name)
        return built[name]

    return build
