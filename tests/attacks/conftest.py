"""One sandbox for all attacks that leave it standing, and the programs that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import golang
import pytest
from attacks.bait import bait
from attacks.raid import Attack, Outcome, carry_in, control, plant, raid
from serving import Server

from skerry import Limits, Sandbox

HERE = Path(__file__).parent
Raid = Callable[[Attack, str], Outcome]


@pytest.fixture(scope="session")
def realm(make_server: Callable[[], Server]) -> Server:
    """Whose sandbox is attacked from inside. Its process is a program's own: an attack reads environments."""
    made = make_server()
    made.before = ("env",)
    return made.start()


@pytest.fixture(scope="session")
def fortress(realm: Server) -> Iterator[Sandbox]:
    """The sandbox that is attacked from inside."""
    with Sandbox(server=realm.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        plant(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def facts(realm: Server) -> Iterator[dict[str, Any]]:
    with bait(realm) as told:
        yield told


@pytest.fixture(scope="session")
def raided(fortress: Sandbox, facts: dict[str, Any]) -> Raid:
    """`raided(attack, user)`: what came of an attack inside; `user` may also be "host" or "namespace". A script is run
    once for each user, and each of its attacks is a test of its own."""
    known: dict[tuple[str, str], dict[str, Outcome]] = {}

    def once(attack: Attack, user: str) -> Outcome:
        key = (attack.script, user)
        if key not in known:
            outside = user in ("host", "namespace")
            known[key] = control(*key, facts) if outside else raid(fortress, *key, facts)
        return known[key][attack.name]

    return once


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds `tests/attacks/<name>` as the keeper is built: static, nothing but the standard library."""
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            built[name] = golang.build(HERE / name, tmp_path_factory.mktemp("go") / name)
        return built[name]

    return build
