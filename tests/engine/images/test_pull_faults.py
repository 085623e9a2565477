"""The server is killed with -9 after every step of a pull, or closed in the middle of one: complete or gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import httpx2
import pytest
from support.archives import Item, tar
from support.registry import Fake, Handler, Made, digest, stall
from support.server import Server

from skerry.engine import faults
from skerry.storage import ImageStore, LayerStore


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake().running() as registry:
        yield registry


def scratch(server: Server) -> list[str]:
    place = server.state_dir / "cache/blobs"
    return [name for name in os.listdir(place) if name.startswith("tree-")] if place.exists() else []


def test_server_killed_at_any_step_of_a_pull_leaves_it_complete_or_absent(own_server: Server, fake: Fake) -> None:
    """Each restarted server dies at the next point, so that one start serves two points."""
    store = ImageStore(own_server.state_dir / "images", LayerStore(own_server.state_dir / "layers"))
    base = set(store.get("base").layers)
    shared = tar(Item("shared", os.urandom(200_000)))
    tags = {point: point.replace(".", "-") for point in faults.PULL}
    for tag in tags.values():
        fake.push(Made([shared, tar(Item(tag, os.urandom(50_000)))]), tag)
    expected = {"base"}
    for point in (*faults.PULL, ""):
        own_server.start(SKERRY_FAULT=point)
        assert {image.name for image in store.list()} == expected, point
        named = {layer for image in store.list() for layer in image.layers}
        assert set(store.layers.digests()) == named | base
        assert all(store.layers.verify(layer) for layer in named - base)
        assert scratch(own_server) == []
        assert [name for name in os.listdir(store.layers.root) if name.startswith(".")] == []
        if not point:
            break
        with own_server.http() as http, pytest.raises(httpx2.TransportError):
            http.post("/v1/images/pull", json={"reference": f"{fake.host}/app:{tags[point]}", "name": tags[point]})
        assert own_server.process is not None
        assert own_server.process.wait(20) == -9
        if point == "pull.image":
            expected.add(tags[point])
    with own_server.http() as http:
        for tag in tags.values():
            told = http.post("/v1/images/pull", json={"reference": f"{fake.host}/app:{tag}", "name": tag}).text
            assert '"image"' in told.splitlines()[-1], told
            http.delete(f"/v1/images/{tag}").raise_for_status()
    assert set(store.layers.digests()) == base


def test_stalled_pulls_block_nothing_and_end_with_the_server(own_server: Server, fake: Fake) -> None:
    image = Made([tar(Item("f", b"1"))])
    fake.push(image)
    waits = threading.Event()

    def hold(handler: Handler) -> bool:
        waits.set()
        return stall(handler)

    fake.manners[digest(image.layers[0])] = hold
    own_server.start(SKERRY_REGISTRY_STALL_TIMEOUT="10m")
    with own_server.http() as http:
        for number in range(12):  # more than a small machine's event loop has threads
            body = {"reference": f"{fake.host}/app", "name": f"late{number}"}
            with http.stream("POST", "/v1/images/pull", json=body) as answer:
                assert number >= 4 or "progress" in next(answer.iter_lines())
        assert waits.wait(20)
        made = http.post("/v1/sandboxes", json={})
        assert made.status_code == 201, made.text
        http.delete(f"/v1/sandboxes/{made.json()['id']}").raise_for_status()
    assert own_server.end() == 0
    assert scratch(own_server) == []
