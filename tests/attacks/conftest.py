"""One sandbox for all attacks that leave it standing, and the programs that they use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks.raid import Outcome, carry_in, control, raid
from serving import Server

from skerry import Limits, Sandbox

HERE = Path(__file__).parent
Raid = Callable[[str, str, dict[str, Any]], dict[str, Outcome]]


@pytest.fixture(scope="session")
def fortress(server: Server) -> Iterator[Sandbox]:
    """The sandbox that is attacked from inside."""
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def raided(fortress: Sandbox) -> Raid:
    """`raided(script, user, facts)`: the script's outcomes inside; `user` may also be "host" or "namespace". A script
    is run once for each user, and each of its attacks is a test of its own."""
    known: dict[tuple[str, str], dict[str, Outcome]] = {}

    def once(script: str, user: str, facts: dict[str, Any]) -> dict[str, Outcome]:
        if (script, user) not in known:
            outside = user in ("host", "namespace")
            known[script, user] = (
                control(script, user, facts) if outside else raid(fortress, script, user, facts)
            )
        return known[script, user]

    return once


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds `tests/attacks/<name>` as the keeper is built: static, nothing but the standard library."""
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            target = tmp_path_factory.mktemp("go") / name
            go = Path(sys.executable).parent / "go"
            settings = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
            subprocess.run(
                [str(go), "build", "-ldflags=-s -w", "-o", str(target), "."],
                cwd=HERE / name, env={**os.environ, **settings}, check=True,
            )  # fmt: skip
            built[name] = target
        return built[name]

    return build
