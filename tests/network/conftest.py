"""Network namespaces for tests: only lo, no uplink."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from support.egress import EgressHarness, LoopThread
from support.namespaces import NetworkNamespace

from skerry.network.gateway.netns import Namespaces


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    made = Namespaces()
    yield made
    made.close()


@pytest.fixture
def make_namespace() -> Iterator[Callable[[], NetworkNamespace]]:
    made: list[NetworkNamespace] = []

    def make() -> NetworkNamespace:
        process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        end = time.monotonic() + 10
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < end
            time.sleep(0.001)
        made.append(NetworkNamespace(process, os.pidfd_open(process.pid)))
        return made[-1]

    yield make
    for namespace in made:
        namespace.end()


@pytest.fixture
def namespace(make_namespace: Callable[[], NetworkNamespace]) -> NetworkNamespace:
    return make_namespace()


@pytest.fixture
def harness(namespace: NetworkNamespace, namespaces: Namespaces) -> Iterator[EgressHarness]:
    loop = LoopThread()
    made = EgressHarness(namespace, namespaces, loop)
    yield made
    made.end()
    loop.close()
