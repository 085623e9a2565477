"""Shared fixtures: servers on temporary state directories, sandboxes and clients."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from support import file_order
from support.server import Server, spare_states
from world.world import World

from skerry import Client, Sandbox
from skerry.config import load
from skerry.errors import NotFound
from skerry.images import recipe_digest
from skerry.storage import ImageStore, LayerStore

os.environ.setdefault("SKERRY_POOL_PER_IMAGE", "0")  # a test of the pool asks for one
if "SKERRY_AUDIT_KEY_DIR" not in os.environ:  # the keys of all servers of the tests
    os.environ["SKERRY_AUDIT_KEY_DIR"] = tempfile.mkdtemp(prefix="skerry-test-keys-")
    atexit.register(shutil.rmtree, os.environ["SKERRY_AUDIT_KEY_DIR"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    file_order.sort(items)


@pytest.fixture(scope="session")
def base_store() -> Path:
    """Return the state directory whose image `base` the tests borrow; `make test` builds it."""
    store = load().state_dir
    if not _has_base(store):
        subprocess.run([sys.executable, "-m", "skerry", "image", "build", "base"], check=True)
        subprocess.run([sys.executable, "-m", "skerry", "server", "stop"], check=True)
    return store


def _has_base(state: Path) -> bool:
    """Return whether the image `base` is built from the recipe of this version."""
    try:
        return ImageStore(state / "images", LayerStore(state / "layers")).get("base").recipe == recipe_digest()
    except (NotFound, OSError):
        return False


def _lend_base(lender: Path, state: Path) -> None:
    """Link only the layers that the image record names: a build may add or remove others at the same time."""
    layers = LayerStore(lender / "layers")
    with layers.held():
        image = ImageStore(lender / "images", layers).get("base")
        borrowed = LayerStore(state / "layers")
        for digest in image.layers:
            source, target = layers.path(digest).parent, borrowed.path(digest).parent
            subprocess.run(["cp", "-al", str(source), str(target)], check=True)
        ImageStore(state / "images", borrowed).put(image)


def _is_lent(lender: Path, state: Path) -> bool:
    """Return whether a state directory that an ended server left holds only the image `base`."""
    if not state.exists():
        return False
    images = ImageStore(state / "images", LayerStore(state / "layers"))
    base = ImageStore(lender / "images", LayerStore(lender / "layers")).get("base")
    return images.list() == [base] and images.layers.digests() == sorted(base.layers)


@pytest.fixture(scope="session")
def make_state(base_store: Path) -> Iterator[Callable[[], Path]]:
    """Create state directories with the image `base`, next to the lender so that layers can be hard-linked."""
    made = itertools.count()
    spares = spare_states(base_store.parent)

    def make() -> Path:
        state = base_store.parent / f"skerry-test-{os.getpid()}-{next(made)}"
        for spare in filter(Path.exists, spares):
            if _is_lent(base_store, spare):
                return spare.rename(state)
            shutil.rmtree(spare)
        state.mkdir(mode=0o700)
        _lend_base(base_store, state)
        return state

    yield make
    for spare in spares:
        shutil.rmtree(spare, ignore_errors=True)


@pytest.fixture(scope="session")
def make_server(make_state: Callable[[], Path]) -> Iterator[Callable[[], Server]]:
    """Create servers on new state directories."""
    made: list[Server] = []

    def make() -> Server:
        made.append(Server(make_state()))
        return made[-1]

    yield make
    for server in made:
        if server.state_dir.exists():
            server.retire()


@pytest.fixture(scope="module")
def server(
    make_server: Callable[[], Server], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Start a server that all tests of a file share. A file whose tests write much at once sets HEADROOM to the size
    that the pool preallocates; a file that needs an operator's configuration sets OPERATORS to its text."""
    more = {"SKERRY_STORAGE_PREALLOCATE": request.module.HEADROOM} if hasattr(request.module, "HEADROOM") else {}
    if hasattr(request.module, "OPERATORS"):
        settings = tmp_path_factory.mktemp("etc") / "config.toml"
        settings.write_text(request.module.OPERATORS)
        more["SKERRY_CONFIG"] = str(settings)
    made = make_server().start(**more)
    yield made
    made.retire()


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    """Start a sandbox that all tests of a file share. A file that needs other options overrides this fixture."""
    with Sandbox(server=server.address) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    """Connect a client that all tests of a file share."""
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    """Connect a plain HTTP client that all tests of a file share."""
    with server.http() as client:
        yield client


@pytest.fixture
def own_server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Create a server for one test, not yet started."""
    server = make_server()
    yield server
    server.retire()


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Start a simulated internet without an uplink; see tests/world."""
    with World() as made:
        yield made


@pytest.fixture(scope="session")
def world_server(world: World, make_state: Callable[[], Path]) -> Iterator[Server]:
    """Start a server inside that internet, shared by all tests."""
    server = Server(make_state(), world.inside, world.mounts).start()
    yield server
    server.retire()


@pytest.fixture
def own_world_server(world: World, make_state: Callable[[], Path]) -> Iterator[Server]:
    """Create a server inside that internet for one test, not yet started."""
    server = Server(make_state(), world.inside, world.mounts)
    yield server
    server.retire()
