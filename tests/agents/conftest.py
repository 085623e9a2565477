"""A server in the tests' internet that has the images of agents."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli import skerry
from support.server import Server, wait_until
from world.world import World

from skerry import Network, Sandbox
from skerry.cli.commands.agent_image import MARK, digest_of
from skerry.client.agents.kits import Kit, load_kit
from skerry.engine.database import SCHEMA_VERSION
from skerry.errors import NotFound
from skerry.storage import ImageStore, LayerStore

ALL = "SKERRY_TEST_AGENTS" in os.environ  # make test-agents: a missing agent is a failure
LOCK_TIMEOUT_S = 200
# npm repeats a failed request for minutes.
LOOK = ["npm", "view", "--fetch-retries=0", "--fetch-timeout=10000", "--cache=/tmp/.npm", "{}", "version"]


def _is_installed(state: Path, kit: Kit) -> bool:
    """Return whether the image of this version and recipe is in the store."""
    try:
        found = ImageStore(state / "images", LayerStore(state / "layers")).get(kit.image)
    except NotFound:
        return False
    return found.env.get(MARK) == digest_of(kit)


def _install(server: Server, kit: Kit) -> None:
    """Install the agent, with the hosts that the package managers of this machine use."""
    if not ALL:
        _require_registry(server, kit)
    done = skerry("agent", "update", kit.name, "--version", kit.version, server=server.address, timeout=1500)
    if done.returncode != 0 and not ALL:
        pytest.skip(f"needs a package registry to install {kit.name}: {done.stderr.decode()[-200:]}")
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def _require_registry(server: Server, kit: Kit) -> None:
    if shutil.which("npm") is None:
        pytest.skip("this machine has no npm: its package registry is unknown")
    package = kit.extension.package.removeprefix("npm:")
    words = [word.format(f"{package}@{kit.version}") for word in LOOK]
    with Sandbox(network=Network(presets=("npm",)), server=server.address) as sandbox:
        found = sandbox.run(words, timeout=30)
    if not found.ok:
        pytest.skip(f"needs a package registry with {package} {kit.version}")


def _names(session: pytest.Session) -> list[str]:
    """Return the agents of the selected tests."""
    specs = [
        getattr(item, "callspec", None) for item in session.items if "agent_server" in getattr(item, "fixturenames", ())
    ]
    return sorted({spec.params["name"] for spec in specs if spec is not None and "name" in spec.params})


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Hold the directory: runs of other clones use it too."""
    with file.open("w") as lock:

        def locks() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        try:
            wait_until(locks, "the images of agents, which another run uses", LOCK_TIMEOUT_S)
        except pytest.fail.Exception as error:
            pytest.skip(str(error))
        yield


def _started(server: Server) -> Server:
    try:
        return server.start()
    except pytest.fail.Exception as error:
        if ALL:
            raise
        pytest.skip(f"the images of agents cannot be used: {error}")  # by a server that a killed run left


@pytest.fixture(scope="module")
def agent_server(
    world: World, base_store: Path, make_state: Callable[[], Path], request: pytest.FixtureRequest
) -> Iterator[Server]:
    """Start a server inside the tests' internet that has the images of the selected agents. The internet has no uplink,
    so another server on the same state directory installs them first. The directory stays for the next run: installing
    the agents takes minutes."""
    state = base_store.parent / f"{base_store.name}-test-agents-{SCHEMA_VERSION}"
    with _held(state.with_suffix(".lock")):
        if not state.exists():
            make_state().rename(state)
        missing = [kit for kit in map(load_kit, _names(request.session)) if not _is_installed(state, kit)]
        if missing:
            outside = _started(Server(state))
            try:
                for kit in missing:
                    _install(outside, kit)
            finally:
                outside.remove_all()
                outside.end()
        server = _started(Server(state, world.inside, world.mounts))
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


@pytest.fixture(scope="module")
def worker_server(world: World, base_store: Path, make_state: Callable[[], Path]) -> Iterator[Server]:
    """Start a server inside the tests' internet that has the image of `skerry worker claude`. Another server on the
    same state directory builds it first. The directory stays for the next run."""
    state = base_store.parent / f"{base_store.name}-test-worker-{SCHEMA_VERSION}"
    with _held(state.with_suffix(".lock")):
        if not state.exists():
            make_state().rename(state)
        outside = _started(Server(state))
        try:
            done = skerry("worker", "claude", "--build", "--environment", "env_1", server=outside.address, timeout=400)
        finally:
            outside.remove_all()
            outside.end()
        if done.returncode != 0 and not ALL:
            pytest.skip(f"needs a package registry to install anthropic: {done.stderr.decode()[-300:]}")
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        server = _started(Server(state, world.inside, world.mounts))
        yield server
        server.remove_all()
        server.end()
        server.log.unlink()
        assert server.leftovers() == []
