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
from skerry.errors import NotFound
from skerry.images import recipe_digest
from skerry.storage import ImageStore, LayerStore


@pytest.fixture(scope="session")
def base_store() -> Path:
    """The state directory whose image `base` the tests borrow; `make test` has made it."""
    store = load().state_dir
    if not _has_base(store):
        subprocess.run([sys.executable, "-m", "skerry", "image", "build", "base"], check=True)
        subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
    return store


def _has_base(state: Path) -> bool:
    """As this version makes it."""
    try:
        return ImageStore(state / "images", LayerStore(state / "layers")).get("base").recipe == recipe_digest()
    except (NotFound, OSError):
        return False


def _lend_base(lender: Path, state: Path) -> None:
    """What the image's record names, and no more: a build may be adding or removing layers beside it."""
    layers = LayerStore(lender / "layers")
    with layers.held():
        image = ImageStore(lender / "images", layers).get("base")
        borrowed = LayerStore(state / "layers")
        for digest in image.layers:
            source, target = layers.path(digest).parent, borrowed.path(digest).parent
            subprocess.run(["cp", "-al", str(source), str(target)], check=True)
        ImageStore(state / "images", borrowed).put(image)


@pytest.fixture(scope="session")
def make_server(base_store: Path) -> Iterator[Callable[[], Server]]:
    """Servers on new state directories, beside the borrowed one so that its layers can be hard-linked."""
    made: list[Server] = []

    def make() -> Server:
        state = base_store.parent / f"skerry-test-{os.getpid()}-{len(made)}"
        state.mkdir(mode=0o700)
        _lend_base(base_store, state)
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
