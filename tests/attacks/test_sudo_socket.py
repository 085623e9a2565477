"""Attacks on the sudo socket, the only socket of PID 1 inside a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.attack import PLACE, Attack, attacks, carry_in, raid
from support.server import Server

from skerry import Limits, Options, Sandbox

SCRIPT = "sudo_socket.py"
FLOODS = ("flood_the_socket", "leave_sockets_that_linger")  # each in a separate sandbox


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    """Start a sandbox whose sudo socket other users attack."""
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        yield sandbox


def other_attacks(user: str) -> list[Attack]:
    return [a for a in attacks(SCRIPT) if user in a.by and a.name not in FLOODS]


def test_socket_accepts_the_user_of_the_sandbox(sandbox: Sandbox) -> None:
    """Control: the same request from the permitted user succeeds."""
    code = f"import sys; sys.path.insert(0, {PLACE!r}); import sudo_socket; print(sudo_socket.ask('sudo-own'))"
    assert sandbox.run(["python3", "-c", code], check=True).stdout == "sudo-own\n"


@pytest.mark.parametrize(
    ("attack", "user"),
    [
        pytest.param(attack, user, id=f"{attack}-by_{user}")
        for user in ("nobody", "user")
        for attack in other_attacks(user)
    ],
)
def test_socket_denies_other_users(sandbox: Sandbox, attack: Attack, user: str) -> None:
    outcome = raid(sandbox, SCRIPT, user, {}, attack.name)[attack.name]
    assert outcome.repelled, outcome


@pytest.mark.parametrize("attack", FLOODS)
def test_connection_flood_does_not_end_the_keeper(server: Server, attack: str) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="512M", pids=256)) as sandbox:
        carry_in(sandbox)
        assert raid(sandbox, SCRIPT, "user", {}, attack)[attack].repelled
        for _ in range(20):
            assert sandbox.run(["echo", "still there"], check=True).stdout == "still there\n"
        assert sandbox.files.read_text("/etc/hostname") is not None
        assert sandbox.state == "running"


def test_sandbox_without_sudo_has_no_socket(server: Server) -> None:
    with Sandbox(server=server.address, options=Options(sudo=False)) as sandbox:
        assert sandbox.run("find / -xdev -type s; find /run -type s").stdout == ""
        assert not sandbox.run(["sudo", "id"]).ok
        assert not sandbox.run(["/run/skerry/bin/skerry-keeper", "sudo", "id"]).ok
        assert sandbox.run("exec -a sudo /run/skerry/bin/skerry-keeper id -u").stdout == ""
