"""Real servers on state directories of their own."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ordering
import pytest
from serving import Server, spare_states
from world.world import World

from skerry.config import load
from skerry.errors import NotFound
from skerry.images import recipe_digest
from skerry.storage import ImageStore, LayerStore

os.environ.setdefault("SKERRY_POOL_SIZE", "0")  # a test of the pool asks for one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ordering.sort(items)


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


def _is_lent(lender: Path, state: Path) -> bool:
    """Nothing but that is there, left by a server that is gone."""
    if not state.exists():
        return False
    images = ImageStore(state / "images", LayerStore(state / "layers"))
    base = ImageStore(lender / "images", LayerStore(lender / "layers")).get("base")
    return images.list() == [base] and images.layers.digests() == sorted(base.layers)


@pytest.fixture(scope="session")
def make_state(base_store: Path) -> Iterator[Callable[[], Path]]:
    """New state directories with the image `base`, beside the borrowed one so that its layers can be hard-linked."""
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
    """Servers on new state directories."""
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
    """One server for all tests of a file that do no harm to it. A file whose tests write much at once says in HEADROOM
    how much the pool has to have ready; one that needs an operator's file has its text in OPERATORS."""
    more = {"SKERRY_STORAGE_HEADROOM": request.module.HEADROOM} if hasattr(request.module, "HEADROOM") else {}
    if hasattr(request.module, "OPERATORS"):
        settings = tmp_path_factory.mktemp("etc") / "config.toml"
        settings.write_text(request.module.OPERATORS)
        more["SKERRY_CONFIG"] = str(settings)
    made = make_server().start(**more)
    yield made
    made.retire()


@pytest.fixture
def own_server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """A server for one test, not yet started."""
    server = make_server()
    yield server
    server.retire()


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """An internet of the tests' own, with no uplink; see tests/world."""
    with World() as made:
        yield made


@pytest.fixture(scope="session")
def world_server(world: World, make_state: Callable[[], Path]) -> Iterator[Server]:
    """One server whose host is on that internet, for all tests that do no harm to it."""
    server = Server(make_state(), world.inside, world.mounts).start()
    yield server
    server.retire()


@pytest.fixture
def own_world_server(world: World, make_state: Callable[[], Path]) -> Iterator[Server]:
    """The same for one test, not yet started."""
    server = Server(make_state(), world.inside, world.mounts)
    yield server
    server.retire()
