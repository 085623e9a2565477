"""Network namespaces that the tests make: lo alone, no uplink."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from network.leaving import Leaving, Loop
from network.namespacing import Place

from skerry.network.netns import Namespaces


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    made = Namespaces()
    yield made
    made.close()


@pytest.fixture
def make_place() -> Iterator[Callable[[], Place]]:
    made: list[Place] = []

    def make() -> Place:
        process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        end = time.monotonic() + 10
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < end
            time.sleep(0.001)
        made.append(Place(process, os.pidfd_open(process.pid)))
        return made[-1]

    yield make
    for place in made:
        place.end()


@pytest.fixture
def place(make_place: Callable[[], Place]) -> Place:
    return make_place()


@pytest.fixture
def leaving(place: Place, namespaces: Namespaces) -> Iterator[Leaving]:
    loop = Loop()
    made = Leaving(place, namespaces, loop)
    yield made
    made.end()
    loop.close()
