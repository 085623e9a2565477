"""The tests' internet does what the attacks on the isolation rely on: it serves, it records, and it leads nowhere."""

from __future__ import annotations

import json
import os

import pytest
from support.server import Server
from world import places
from world.world import World

from skerry import Sandbox


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    world.reset()


def test_served_addresses_are_no_strays(world: World) -> None:
    said = json.loads(world.run("curl", "-sS", "https://api.example.test/path?query", check=True).stdout)
    assert (said["target"], said["sni"], said["address"]) == ("/path?query", "api.example.test", places.API)
    assert world.asked().keys() == {"api.example.test"}
    assert world.openings()["tcp", places.API, 443] == 1
    assert world.strays() == []


@pytest.mark.parametrize(
    "address", [*places.CANARIES, places.HOST_SIDE, places.HOST_SIDE_6, "127.0.0.1", "::1", "8.8.8.8", "2600::1"]
)
def test_a_connection_to_any_closed_address_is_noticed(world: World, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    world.run("curl", "-gsS", "--max-time", "5", f"http://{host}/", check=True)
    assert len(world.strays()) == 1
    assert address in world.strays()[0]


@pytest.mark.parametrize("code", [
    pytest.param("s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('198.51.100.10', 443))", id="udp"),
    pytest.param("s.socket(s.AF_INET, s.SOCK_RAW, 1).sendto(b'\\x08' + bytes(7), ('198.51.100.10', 0))", id="icmp"),
    pytest.param(f"s.socket(s.AF_UNIX).connect('\\0{places.ABSTRACT}')", id="abstract unix socket"),
])  # fmt: skip
def test_a_packet_of_another_protocol_is_noticed(world: World, code: str) -> None:
    world.run("python3", "-c", f"import socket as s; {code}", check=True)
    assert len(world.strays()) == 1


def test_a_name_can_change_its_address_between_two_look_ups(world: World) -> None:
    world.teach("turncoat.example.test", [places.API], [places.METADATA])
    said = [world.run("getent", "ahostsv4", "turncoat.example.test", check=True).stdout.split()[0] for _ in range(3)]
    assert said == [places.API, places.METADATA, places.METADATA]


def test_a_service_that_speaks_first_does(world: World) -> None:
    code = f"import socket; print(socket.create_connection(('api.example.test', {places.BANNER})).recv(99))"
    assert "220 the test world is ready" in world.run("python3", "-c", code, check=True).stdout


def test_git_and_ssh_are_served(world: World) -> None:
    heads = world.run("git", "ls-remote", "https://git.example.test/tiny.git", check=True).stdout
    assert "refs/heads/main" in heads
    options = ["-F", "none", "-i", str(world.home / "ssh-key"), "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null"]
    assert world.run("ssh", *options, "root@git.example.test", check=True).stdout == "hello by ssh\n"
    command = " ".join(["ssh", *options])
    again = world.run(
        "git", "ls-remote", "root@git.example.test:tiny.git", env={**os.environ, "GIT_SSH_COMMAND": command}
    )
    assert again.stdout == heads, again.stderr


def test_world_cannot_reach_the_network_of_the_host(world: World) -> None:
    links = {link["ifname"] for link in json.loads(world.run("ip", "-json", "link", check=True).stdout)}
    assert links == {"lo", "near"}


def test_a_whole_server_runs_on_it(world: World, world_server: Server) -> None:
    assert world_server.process is not None
    namespaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in (world_server.process.pid, "self")}
    assert len(namespaces) == 2
    with Sandbox(server=world_server.address) as sandbox:
        assert sandbox.run(["echo", "hello"], check=True).stdout == "hello\n"
    assert world.strays() == []
