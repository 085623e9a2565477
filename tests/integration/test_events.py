"""What happened is told, in order, once, and to whom it belongs; also across the death of a server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from serving import Server, wait_until

from skerry import Client, Sandbox
from skerry.client.lines import LineDecoder
from skerry.types import Event


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def types(client: Client, sandbox: str, since: int | None = None) -> list[str]:
    return [event.type for event in client.events(sandbox=sandbox, since=since, type="sandbox")]


class Listener:
    """Follows in a thread; `seen` grows."""

    def __init__(self, server: Server, sandbox: str | None = None, type: str | None = None, since: int = 0) -> None:  # noqa: A002
        self.seen: list[Event] = []
        self._follow = Client(server.address).events(follow=True, since=since, sandbox=sandbox, type=type)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for event in self._follow:
            self.seen.append(event)

    def wait_for(self, *wanted: str) -> list[Event]:
        wait_until(lambda: [event.type for event in self.seen][-len(wanted) :] == list(wanted), f"{wanted}")
        return self.seen[-len(wanted) :]


def test_a_life_is_told_step_by_step(server: Server, client: Client) -> None:
    sandbox = Sandbox.create(name="told", server=client)
    sandbox.pause()
    sandbox.resume()
    sandbox.stop()
    sandbox.run("true")
    sandbox.delete()
    assert types(client, sandbox.id) == [
        "sandbox.created", "sandbox.running", "sandbox.paused", "sandbox.running", "sandbox.stopped",
        "sandbox.running", "sandbox.deleted",
    ]  # fmt: skip
    told = list(client.events(sandbox="told", type="sandbox"))
    assert {event.name for event in told} == {"told"}, "also the last, when the name was free again"
    assert [event.reason for event in told if event.type == "sandbox.stopped"] == ["asked for"]
    assert [event.seq for event in told] == sorted({event.seq for event in told})


def test_a_failure_is_told_with_its_reason(server: Server, client: Client) -> None:
    sandbox = Sandbox.create(name="doomed", server=client)
    listener = Listener(server, "doomed")
    ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    os.kill(pid, signal.SIGKILL)
    (failed,) = listener.wait_for("sandbox.failed")
    assert failed.reason
    sandbox.delete()


def test_whoever_follows_is_greeted_first_and_hears_the_rest_as_it_happens(server: Server, client: Client) -> None:
    with server.http() as http, http.stream("GET", "/v1/events?follow=true") as answer:
        lines = answer.iter_lines()
        assert '"hello"' in next(lines)
        with Sandbox(server=client) as sandbox:
            assert "sandbox.created" in next(line for line in lines if sandbox.id in line)


def test_a_follower_goes_on_where_it_was_when_the_server_is_killed(own_server: Server) -> None:
    own_server.start()
    listener = Listener(own_server)
    first = Sandbox.create(server=own_server.address)
    listener.wait_for("sandbox.created", "sandbox.running")
    own_server.end(signal.SIGKILL)
    own_server.start()
    first.delete()
    told = listener.wait_for("sandbox.deleted")
    assert told[0].sandbox == first.id
    seqs = [event.seq for event in listener.seen]
    assert seqs == list(range(1, len(seqs) + 1)), "nothing lost, nothing twice"


def test_a_server_that_stops_does_not_wait_for_followers(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http, http.stream("GET", "/v1/events?follow=true") as answer:
        lines = answer.iter_lines()
        next(lines)
        assert own_server.end() == 0
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)


def test_another_owners_events_are_not_told(own_server: Server) -> None:
    own_server.start("--listen", "127.0.0.1:0")
    with Client(own_server.address) as admin:
        address = next(a for a in admin.info()["addresses"] if a.startswith("http"))
        ann, bob = (admin.tokens.create("use", owner=owner).secret for owner in ("ann", "bob"))
        with Client(address, token=ann) as anns, Client(address, token=bob) as bobs:
            with Sandbox(server=anns) as sandbox:
                pass
            assert types(anns, sandbox.id) == ["sandbox.created", "sandbox.running", "sandbox.deleted"]
            assert list(bobs.events()) == []
            assert list(bobs.events(sandbox=sandbox.id)) == []
            assert types(admin, sandbox.id) == types(anns, sandbox.id)


@pytest.mark.parametrize("query", ["since=-1", "since=x", "type=A", "sandbox=..", "follow=maybe", "other=1"])
def test_a_wish_that_makes_no_sense_is_refused(server: Server, query: str) -> None:
    with server.http() as http:
        assert http.get(f"/v1/events?{query}").status_code == 400


def test_lines_are_events(server: Server) -> None:
    with server.http() as http:
        answer = http.get("/v1/events")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert all(b'"seq":' in line for line in LineDecoder().feed(answer.content))
