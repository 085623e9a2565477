"""Addresses that generous policies keep closed, and unanswered approval requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attacks.egress.conftest import TRAPS
from support.egress_attack import Try, carry_in, tried
from support.server import Server
from world import places
from world.world import World

from skerry import Network, Sandbox

CLOSED = {
    **{f"get {address}": Try("get", [address]) for address in (*places.CANARIES[2:], places.HOST_SIDE, "2852039166")},
    **{f"get {name}": Try("get", [name]) for name in TRAPS},
    **{f"connect {name}": Try("connect", [f"{name}:80", name]) for name in (*TRAPS, places.METADATA, "0xa9fea9fe")},
}
Make = Callable[[Network], Sandbox]


@pytest.fixture(scope="module")
def sandbox(world: World, world_server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=world_server.address) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture
def make(sandbox: Sandbox) -> Make:
    def change(network: Network) -> Sandbox:
        sandbox.network.set(network)
        return sandbox

    return change


def test_learning_opens_no_closed_address(world: World, make: Make) -> None:
    seen = tried(world, make(Network(on_unknown="learn")), CLOSED)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


def test_learning_allows_the_same_as_an_open_network(world: World, make: Make) -> None:
    seen = tried(world, make(Network(on_unknown="learn", deny=("a.files.example.test",))), {
        "api": Try("get", ["api.example.test"]), "denied": Try("get", ["a.files.example.test"])})  # fmt: skip
    assert seen.outcomes["api"].gained is not None
    assert seen.outcomes["denied"].gained is None
    assert seen.strays == []


def test_unanswered_approval_request_is_denied(world: World, make: Make) -> None:
    sandbox = make(Network(on_unknown="ask", approval_timeout=1, allow=("paths.example.test",)))
    batch = {f"{n}": Try("get", [f"host{n}.evil.test"]) for n in range(6)} | {"raw": Try("get", [places.EVIL])}
    seen = tried(world, sandbox, batch | CLOSED)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.asked.keys() <= set(TRAPS)
    assert seen.strays == []


def test_address_rule_opens_only_that_address(world: World, make: Make) -> None:
    sandbox = make(
        Network(allow=(f"db.internal.test:5432@{places.PRIVATE}", f"turncoat.example.test@{places.PRIVATE}"))
    )
    question = "\0\0\0\x01x"
    batch = {
        "named": Try("raw", ["db.internal.test", 5432, question, "rows:x"]),
        "another port": Try("get", ["db.internal.test", 80]),
        "the bare address": Try("raw", [places.PRIVATE, 5432, question, "rows:x"]),
    }
    seen = tried(world, sandbox, batch)
    assert seen.outcomes["named"].gained is not None, seen.outcomes
    assert seen.outcomes["another port"].gained is None
    assert seen.outcomes["the bare address"].gained is None
    assert seen.strays == [f"tcp to {places.PRIVATE} port 5432, 1×"]
    world.teach("turncoat.example.test", ["10.20.0.6"], [places.METADATA], ["127.0.0.1"], [places.HOST_SIDE])
    seen = tried(world, sandbox, {f"{n}": Try("get", ["turncoat.example.test"]) for n in range(8)})
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


@pytest.mark.parametrize(
    "rule", ["*", "0.0.0.0/0", "*.example.test", "[::/0]", "128.0.0.0/1", "metadata.example.test", "0.0.0.0/0:80"]
)
def test_no_wide_rule_opens_a_closed_address(world: World, make: Make, rule: str) -> None:
    words = ("metadata", places.METADATA, "own")
    batch = {name: one for name, one in CLOSED.items() if any(word in name for word in words)}
    seen = tried(world, make(Network(allow=(rule,))), batch)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


def test_private_range_opens_neither_metadata_nor_the_host(world: World, make: Make) -> None:
    network = Network(allow=("10.0.0.0/8", "169.254.0.0/16", "192.0.2.0/24", "127.0.0.0/8", "*.example.test"))
    batch = {
        "metadata": Try("get", [places.METADATA]),
        "metadata by name": Try("get", ["metadata.example.test"]),
        "the host": Try("get", [places.HOST_SIDE]),
        "the host by name": Try("get", ["own.example.test"]),
    }
    seen = tried(world, make(network), batch)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


def test_rules_that_name_addresses_of_the_host_open_none_without_the_operator(world: World, make: Make) -> None:
    """A token of scope `use` may write such rules."""
    rules = (places.METADATA, places.HOST_SIDE, "127.0.0.1", "0.0.0.0", "169.254.0.0/16", "[::1]",
             "[64:ff9b::a9fe:a9fe]", f"metadata.example.test@{places.METADATA}", "loopback.example.test@127.0.0.1",
             f"own.example.test@{places.HOST_SIDE}", "unspecified.example.test@0.0.0.0",
             f"mapped.example.test@{places.METADATA}", "nat64.example.test@64:ff9b::a9fe:a9fe")  # fmt: skip
    names = ("metadata", "loopback", "own", "unspecified", "mapped", "nat64")
    batch = {name: Try("get", [f"{name}.example.test"]) for name in names}
    batch |= {f"get {address}": Try("get", [address]) for address in (places.METADATA, places.HOST_SIDE)}
    proxied = (places.METADATA, places.HOST_SIDE, "127.0.0.1", "2130706433", "0.0.0.0", "localhost", "[::1]")
    batch |= {f"proxy {host}": Try("connect", [f"{host}:80", host]) for host in proxied}
    seen = tried(world, make(Network(allow=rules)), batch)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


def test_the_operator_opens_an_address_of_the_host_by_naming_it(world: World, own_world_server: Server) -> None:
    server = own_world_server.start(SKERRY_MAX_NETWORK=f"*,{places.HOST_SIDE}:80")
    network = Network(allow=(f"own.example.test@{places.HOST_SIDE}", f"{places.HOST_SIDE}:22"))
    with Sandbox(server=server.address, network=network) as sandbox:
        carry_in(sandbox)
        seen = tried(world, sandbox, {"80": Try("get", ["own.example.test"]), "22": Try("get", [places.HOST_SIDE, 22])})
    assert (seen.outcomes["80"].repelled, seen.outcomes["22"].repelled) == (False, True), seen.outcomes


@pytest.mark.parametrize("network", [Network(cassette="replay"), Network.open(cassette="replay")], ids=["bare", "open"])
def test_replay_lets_nothing_out(world: World, make: Make, network: Network) -> None:
    """With an empty cassette: not to allowed hosts, not by the proxy, not by another protocol."""
    allowed = {
        "http": Try("get", ["api.example.test"]),
        "tls": Try("raw_tls", ["api.example.test", 443, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "address"]),
        "connect": Try("connect", ["api.example.test:80", "api.example.test"]),
        "address": Try("get", [places.API]),
        "evil": Try("get", ["evil.test"]),
    }
    seen = tried(world, make(network), allowed | CLOSED)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert (seen.calls, seen.strays, seen.asked) == ([], [], {})
