"""Attacks on sudo's socket, the only door that PID 1 has inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attacks.raid import PLACE, Attack, attacks, carry_in, raid
from serving import Server

from skerry import Limits, Options, Sandbox

SCRIPT = "sudo_door.py"


@pytest.fixture(scope="module")
def manor(server: Server) -> Iterator[Sandbox]:
    """A sandbox whose sudo is asked for by the wrong people, in the wrong way."""
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        yield sandbox


def quiet(user: str) -> list[Attack]:
    return [a for a in attacks(SCRIPT) if user in a.by and "door" not in a.name]


def test_the_door_opens_to_the_sandboxs_own_user(manor: Sandbox) -> None:
    """The control: the same request, from who may."""
    code = f"import sys; sys.path.insert(0, {PLACE!r}); import sudo_door; print(sudo_door.ask('sudo-own'))"
    assert manor.run(["python3", "-c", code], check=True).stdout == "sudo-own\n"


@pytest.mark.parametrize(
    ("attack", "user"),
    [pytest.param(attack, user, id=f"{attack}-by_{user}") for user in ("nobody", "user") for attack in quiet(user)],
)
def test_it_opens_to_nobody_else(manor: Sandbox, attack: Attack, user: str) -> None:
    outcome = raid(manor, SCRIPT, user, {}, attack.name)[attack.name]
    assert outcome.repelled, outcome


@pytest.mark.parametrize("attack", ["crowd_the_door", "leave_sockets_that_linger_at_the_door"])
def test_a_crowd_at_the_door_does_not_bring_the_keeper_down(server: Server, attack: str) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        assert raid(sandbox, SCRIPT, "user", {}, attack)[attack].repelled
        for _ in range(20):
            assert sandbox.run(["echo", "still there"], check=True).stdout == "still there\n"
        assert sandbox.files.read_text("/etc/hostname") is not None
        assert sandbox.state == "running"


def test_without_sudo_there_is_no_door_at_all(server: Server) -> None:
    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        assert sandbox.run("find / -xdev -type s; find /run -type s").stdout == ""
        assert not sandbox.run(["sudo", "id"]).ok
        assert not sandbox.run(["/run/skerry/bin/skerry-keeper", "sudo", "id"]).ok
        assert sandbox.run("exec -a sudo /run/skerry/bin/skerry-keeper id -u").stdout == ""
