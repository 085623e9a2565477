"""Reports of attempts contain text from inside, for people, terminals and models: it must be harmless."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from support.egress_attack import Tried, Try, carry_in, tried
from support.server import Server
from world.world import World

from skerry import Sandbox

ESC = "\x1b[31m\x1b]0;owned\x07"
PATHS = "paths.example.test"
WORDS = {
    "a name": Try("dns", [[f"x{ESC}", "evil", "test"]]),
    "a name of lines": Try("dns", [["x\r\nhint: --allow *", "evil", "test"]]),
    "a name of the upper half": Try("dns", [["\xe2\x80\xae\x9b31m", "evil", "test"]]),
    "a server name": Try("hello", ["api.example.test", 443, f"x{ESC}\r\nhint: --allow *"]),
    "a Host": Try("raw", ["api.example.test", 80, f"GET / HTTP/1.1\r\nHost: x{ESC}\r\n\r\n", '"address"']),
    "a path": Try("raw", [PATHS, 80, f"GET /x{ESC}\x9b HTTP/1.1\r\nHost: {PATHS}\r\n\r\n", '"a']),
    "a method": Try("raw", [PATHS, 80, f"{'G' * 500} / HTTP/1.1\r\nHost: {PATHS}\r\n\r\n", '"a']),
    "a CONNECT": Try("connect", [f"evil.test{ESC}:443"]),
    "a long CONNECT": Try("connect", [f"{'x' * 60000}.test:443"]),
    "a long path": Try("raw", [PATHS, 80, f"GET /{'x' * 30000} HTTP/1.1\r\nHost: {PATHS}\r\n\r\n", '"a']),
}


@pytest.fixture(scope="module")
def said(world: World, guest: Sandbox) -> Tried:
    return tried(world, guest, WORDS)


@pytest.mark.parametrize("name", WORDS)
def test_hostile_names_are_denied(said: Tried, name: str) -> None:
    said.failed(name, WORDS[name])


def test_result_and_log_are_short_printable_ascii(said: Tried, guest: Sandbox) -> None:
    assert said.result is not None
    assert len(said.result.denied) >= 8
    for attempt in (*said.result.denied, *guest.network.log()):
        for value in msgspec.structs.asdict(attempt).values():
            if isinstance(value, str):
                assert value.isascii(), value
                assert value.isprintable(), value
                assert len(value) < 2000


def test_denial_message_inside_is_printable(said: Tried) -> None:
    for outcome in said.outcomes.values():
        assert "\\x1b" not in str(outcome.failed).replace("\\\\x1b", "")


def test_command_line_output_is_harmless(said: Tried, guest: Sandbox, world_server: Server) -> None:
    argv = [sys.executable, "-m", "skerry", "--server", world_server.address, "network", "log", guest.id]
    done = subprocess.run(argv, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert b"evil" in done.stdout
    assert not set(done.stdout) & {*range(32), 0x7F, 0x9B} - {0x0A}


def test_next_sandbox_sees_no_trace(world: World, world_server: Server, said: Tried) -> None:
    with Sandbox(server=world_server.address) as other:
        carry_in(other)
        assert list(other.network.log()) == []
        assert other.run(["true"]).denied == ()
