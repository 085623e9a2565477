"""What the more generous policies keep closed, and what nobody's answer opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attacks.egress.conftest import TRAPS
from attacks.egress.trying import Try, carry_in, tried
from serving import Server
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
def box(world: World, world_server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=world_server.address) as sandbox:
        carry_in(sandbox)
        yield sandbox


@pytest.fixture
def make(box: Sandbox) -> Make:
    def change(network: Network) -> Sandbox:
        box.network.set(network)
        return box

    return change


def test_learning_opens_no_closed_address(world: World, make: Make) -> None:
    seen = tried(world, make(Network(on_unknown="learn")), CLOSED)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.strays == []


def test_learning_lets_through_what_an_open_network_would(world: World, make: Make) -> None:
    seen = tried(world, make(Network(on_unknown="learn", deny=("a.files.example.test",))), {
        "api": Try("get", ["api.example.test"]), "denied": Try("get", ["a.files.example.test"])})  # fmt: skip
    assert seen.outcomes["api"].gained is not None
    assert seen.outcomes["denied"].gained is None
    assert seen.strays == []


def test_a_question_that_nobody_answers_is_a_no(world: World, make: Make) -> None:
    box = make(Network(on_unknown="ask", ask_timeout=1, allow=("paths.example.test",)))
    batch = {f"{n}": Try("get", [f"host{n}.evil.test"]) for n in range(6)} | {"raw": Try("get", [places.EVIL])}
    seen = tried(world, box, batch | CLOSED)
    assert {name: one for name, one in seen.outcomes.items() if not one.repelled} == {}
    assert seen.asked.keys() <= set(TRAPS)
    assert seen.strays == []


def test_an_address_that_a_rule_names_opens_that_one_and_no_other(world: World, make: Make) -> None:
    box = make(Network(allow=(f"db.internal.test:5432@{places.PRIVATE}", f"turncoat.example.test@{places.PRIVATE}")))
    question = "\0\0\0\x01x"
    batch = {
        "named": Try("raw", ["db.internal.test", 5432, question, "rows:x"]),
        "another port": Try("get", ["db.internal.test", 80]),
        "the bare address": Try("raw", [places.PRIVATE, 5432, question, "rows:x"]),
    }
    seen = tried(world, box, batch)
    assert seen.outcomes["named"].gained is not None, seen.outcomes
    assert seen.outcomes["another port"].gained is None
    assert seen.outcomes["the bare address"].gained is None
    assert seen.strays == [f"tcp to {places.PRIVATE} port 5432, 1×"]
    world.teach("turncoat.example.test", ["10.20.0.6"], [places.METADATA], ["127.0.0.1"], [places.HOST_SIDE])
    seen = tried(world, box, {f"{n}": Try("get", ["turncoat.example.test"]) for n in range(8)})
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


def test_a_range_of_private_addresses_opens_neither_metadata_nor_the_host(world: World, make: Make) -> None:
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
