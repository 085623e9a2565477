"""Ready sandboxes: a claim gives what a cold create gives, only sooner; nothing of one user's is another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from serving import Server, wait_until

from skerry import Limits, Options, Sandbox
from skerry.client._sync.client import Client
from skerry.types import PoolImage


@pytest.fixture(scope="module")
def house(make_server: Callable[[], Server]) -> Iterator[Server]:
    made = make_server().start(SKERRY_POOL_SIZE="2", SKERRY_POOL_IMAGES="base", SKERRY_POOL_MEMORY="64M")
    yield made
    made.retire()


@pytest.fixture
def client(house: Server) -> Iterator[Client]:
    with Client(house.address) as client:
        filled(client)
        yield client


def base(client: Client) -> PoolImage:
    return next(
        (image for image in client.pool.show().images if image.image == "base"),
        PoolImage(image="base", wanted=0, ready=0),
    )


def filled(client: Client, number: int = 2) -> None:
    wait_until(lambda: base(client).ready == number, f"{number} ready sandboxes")


def test_a_create_finds_a_ready_sandbox_and_another_takes_its_place(client: Client) -> None:
    hits = base(client).hits
    with Sandbox(server=client, labels={"a": "1"}) as sandbox:
        assert sandbox.run(["echo", "up"]).stdout == "up\n"
        assert base(client).hits == hits + 1
        filled(client)
        assert [one.id for one in Sandbox.list(server=client)] == [sandbox.id]


def test_a_claimed_sandbox_is_as_a_cold_one(client: Client) -> None:
    looks = (
        "hostname; id; env | sort | grep -v ^SHLVL; ulimit -n; ulimit -u; df --output=size /dev/shm | tail -1;"
        "cat /proc/self/status | grep -E '^(Cap|Seccomp|NoNew)'; cat /proc/mounts | cut -d' ' -f2- | sort; sudo id -u"
    )
    limits = Limits(cpus=0.5, memory="512M", pids=300, open_files=1000, disk="1G")
    seen = []
    for pool in (True, False):
        with Sandbox(
            server=client, name="same", env={"A": "1", "HOME": None}, limits=limits, options=Options(pool=pool)
        ) as sandbox:
            info = sandbox.info()
            seen.append((sandbox.run(looks).stdout, info.limits, info.isolation.guarantees))
            assert info.started_at is not None
            assert info.ends_at == info.started_at + 86400
            sandbox.delete()
    assert seen[0] == seen[1]
