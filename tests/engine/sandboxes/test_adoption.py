"""A server that starts beside running sandboxes answers at once, and adopts them in the background."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.server import Server, wait_until

from skerry import Sandbox

MANY = 40


@pytest.fixture
def many(own_server: Server) -> Iterator[list[Sandbox]]:
    own_server.start()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: Sandbox.create(server=own_server.address), range(MANY)))
        list(threads.map(lambda sandbox: sandbox.spawn(["sleep", "1234"]), made))
    yield made
    own_server.remove_all()
    assert own_server.leftovers() == []


def test_server_adopts_many_sandboxes_after_a_kill(own_server: Server, many: list[Sandbox]) -> None:
    for _ in range(2):
        own_server.end(signal.SIGKILL)
        own_server.start()
        assert [sandbox.info().state for sandbox in many] == ["running"] * MANY
    with ThreadPoolExecutor(4) as threads:
        counted = list(threads.map(lambda sandbox: sandbox.run("pgrep -xc sleep").stdout, many))
    assert counted == ["1\n"] * MANY


def test_call_waits_for_the_adoption_of_its_sandbox_only(own_server: Server) -> None:
    """A keeper that is silent for a while, longer than one attempt lasts, delays only its own sandbox and does not end
    it."""
    own_server.start()
    slow, other = (Sandbox.create(server=own_server.address) for _ in range(2))
    [(keeper,)] = own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", slow.id)
    own_server.end(signal.SIGKILL)
    os.kill(keeper, signal.SIGSTOP)
    try:
        own_server.start()
        with ThreadPoolExecutor(2) as threads:
            calls = [threads.submit(slow.run, "echo late"), threads.submit(slow.info)]
            assert other.run("echo early").stdout == "early\n"
            with own_server.http() as http:
                listed = {one["id"]: one["state"] for one in http.get("/v1/sandboxes").json()["sandboxes"]}
            assert listed == {slow.id: "running", other.id: "running"}
            wait_until(lambda: "a keeper does not answer yet" in own_server.log.read_text(), "an attempt to fail")
            assert not any(call.done() for call in calls)
            os.kill(keeper, signal.SIGCONT)
            assert calls[0].result(60).stdout == "late\n"  # type: ignore[union-attr]
            assert calls[1].result(60).state == "running"  # type: ignore[union-attr]
    finally:
        os.kill(keeper, signal.SIGCONT)
    own_server.remove_all()


def test_dead_sandbox_is_stopped_in_the_background(own_server: Server) -> None:
    own_server.start()
    sandboxes = [Sandbox.create(server=own_server.address) for _ in range(3)]
    pids = [own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)[0][0] for sandbox in sandboxes]
    own_server.end(signal.SIGKILL)
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
    own_server.start()
    assert [sandbox.info().state for sandbox in sandboxes] == ["stopped", "stopped", "running"]
    assert sandboxes[0].run("echo again").stdout == "again\n"
    own_server.remove_all()
    assert own_server.leftovers() == []
