"""A server in the tests' internet that has the images of agents."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server
from world.world import World

from skerry import Client
from skerry.client.agents.kits import load_kit
from skerry.errors import NotFound


def _install(server: Server, name: str) -> None:
    """Install the agent, with the hosts that the package managers of this machine use."""
    version = load_kit(name).version
    with Client(server.address) as client:
        try:
            client.images.get(load_kit(name).image)
        except NotFound:
            done = skerry("agent", "update", name, "--version", version, server=server.address, timeout=1500)
            if done.returncode != 0 and "SKERRY_TEST_AGENTS" not in os.environ:
                pytest.skip(f"needs a package registry to install {name}: {done.stderr.decode()[-200:]}")
            assert done.returncode == 0, done.stderr.decode()[-2000:]


def _names(session: pytest.Session) -> list[str]:
    """Return the agents of the selected tests."""
    specs = [
        getattr(item, "callspec", None) for item in session.items if "agent_server" in getattr(item, "fixturenames", ())
    ]
    return sorted({spec.params["name"] for spec in specs if spec is not None and "name" in spec.params})


@pytest.fixture(scope="module")
def agent_server(
    world: World, base_store: Path, make_state: Callable[[], Path], request: pytest.FixtureRequest
) -> Iterator[Server]:
    """Start a server inside the tests' internet that has the images of the selected agents. The internet has no uplink,
    so another server on the same state directory installs them first. The directory stays for the next run: installing
    the agents takes minutes."""
    state = base_store.parent / f"{base_store.name}-test-agents"
    if not state.exists():
        make_state().rename(state)
    outside = Server(state).start()
    try:
        for name in _names(request.session):
            _install(outside, name)
    finally:
        outside.remove_all()
        outside.end()
    server = Server(state, world.inside, world.mounts).start()
    yield server
    server.remove_all()
    server.end()
    server.log.unlink()
    assert server.leftovers() == []
    assert os.path.isdir(state)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "calc"
    top.mkdir()
    (top / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (top / "test_calc.py").write_text(
        "import unittest\n\nfrom calc import add\n\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    for words in (
        ["init", "-q"], ["config", "user.name", "Ada"], ["config", "user.email", "ada@example.com"], ["add", "."],
        ["commit", "-qm", "first"],
    ):  # fmt: skip
        subprocess.run(["git", *words], cwd=top, check=True)
    return top
