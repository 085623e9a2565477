"""Guests that try to get out, and the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.egress_attack import Tried, Try, carry_in, controlled, jobs, tried
from support.server import Server
from world.world import World

from skerry import Network, Sandbox

# Names at closed addresses: a rule that names them opens none of those.
TRAPS = tuple(
    f"{name}.example.test"
    for name in ("private", "metadata", "loopback", "unspecified", "own", "mixed", "mapped", "nat64", "ula")
)
POLICY = Network(
    allow=(
        "api.example.test",
        "api.example.test:7,2525,5432,8080,8443",
        "both.example.test",
        "six.example.test",
        "*.files.example.test",
        "GET,HEAD paths.example.test/public",
        "GET,HEAD inspected.example.test/public",
        *TRAPS,
        "turncoat.example.test",
    ),
    deny=("denied.files.example.test",),
    inspect=("inspected.example.test",),
)
Raid = Callable[..., Tried]


@pytest.fixture(scope="session")
def guest(world: World, world_server: Server) -> Iterator[Sandbox]:
    """A sandbox that may reach a few hosts."""
    with Sandbox(server=world_server.address, network=POLICY) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def open_guest(world: World, world_server: Server) -> Iterator[Sandbox]:
    """A sandbox that may reach all addresses outside closed ranges."""
    with Sandbox(server=world_server.address, network=Network.open()) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def closed_guest(world: World, world_server: Server) -> Iterator[Sandbox]:
    """A sandbox with default settings."""
    with Sandbox(server=world_server.address) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture(scope="session")
def raid(world: World) -> Raid:
    """`raid(batch, sandbox, user)`: each batch runs once, and each of its attacks is a separate test. Without a
    sandbox: on the host side of the world."""
    known: dict[tuple[str, str, str], Tried] = {}

    def once(batch: dict[str, Try], sandbox: Sandbox | None = None, user: str = "user") -> Tried:
        key = (jobs(batch), sandbox.id if sandbox else "", user)
        if key not in known:
            known[key] = tried(world, sandbox, batch, user) if sandbox else controlled(world, batch)
        return known[key]

    return once
