"""Real servers on state directories of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving import Server

from skerry.config import load, run_dir


@pytest.fixture(scope="session")
def base_store() -> Path:
    """The state directory whose image `base` the tests borrow; `make test` has made it."""
    store = load().state_dir
    if not (store / "images").is_dir() or not any((store / "images").iterdir()):
        subprocess.run([sys.executable, "-m", "skerry", "image", "build", "base"], check=True)
        subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
    return store


@pytest.fixture(scope="session")
def make_server(base_store: Path) -> Iterator[Callable[[], Server]]:
    """Servers on new state directories, beside the borrowed one so that its layers can be hard-linked."""
    made: list[Server] = []

    def make() -> Server:
        state = base_store.parent / f"skerry-test-{os.getpid()}-{len(made)}"
        state.mkdir(mode=0o700)
        for part in ("layers", "images"):
            subprocess.run(["cp", "-al", str(base_store / part), str(state / part)], check=True)
        made.append(Server(state))
        return made[-1]

    yield make
    for server in made:
        if server.process is None or server.process.poll() is not None:
            server.start()
        server.remove_all()
        server.end()
        left = server.leftovers()
        shutil.rmtree(run_dir(server.state_dir), ignore_errors=True)
        shutil.rmtree(server.state_dir)
        server.log.unlink(missing_ok=True)
        assert left == []


@pytest.fixture(scope="session")
def server(make_server: Callable[[], Server]) -> Server:
    """One server for all tests that do no harm to it."""
    return make_server().start()


@pytest.fixture
def own_server(make_server: Callable[[], Server]) -> Server:
    """A server for one test, not yet started."""
    return make_server()
