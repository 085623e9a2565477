"""Events are sent in order, once, and only to their owner; also across a server crash."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.server import Server, wait_until

from skerry import Client, Sandbox
from skerry.codecs.ndjson import LineDecoder
from skerry.errors import ServerUnreachable
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
        with contextlib.suppress(ServerUnreachable):  # its server may end before it does
            for event in self._follow:
                self.seen.append(event)

    def wait_for(self, *wanted: str) -> list[Event]:
        wait_until(lambda: [event.type for event in self.seen][-len(wanted) :] == list(wanted), f"{wanted}")
        return self.seen[-len(wanted) :]


def test_lifecycle_is_reported_step_by_step(server: Server, client: Client) -> None:
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
    assert [event.reason for event in told if event.type == "sandbox.stopped"] == ["requested"]
    assert [event.seq for event in told] == sorted({event.seq for event in told})


def test_failure_is_reported_with_its_reason(server: Server, client: Client) -> None:
    sandbox = Sandbox.create(name="doomed", server=client)
    listener = Listener(server, "doomed")
    ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
    os.kill(pid, signal.SIGKILL)
    (failed,) = listener.wait_for("sandbox.failed")
    assert failed.reason
    sandbox.delete()


def test_follower_gets_a_hello_and_then_live_events(server: Server, client: Client) -> None:
    with server.http() as http, http.stream("GET", "/v1/events?follow=true") as answer:
        lines = answer.iter_lines()
        assert '"hello"' in next(lines)
        with Sandbox(server=client) as sandbox:
            assert "sandbox.created" in next(line for line in lines if sandbox.id in line)


def test_follower_continues_after_a_server_crash(own_server: Server) -> None:
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


def test_stopping_server_does_not_wait_for_followers(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http, http.stream("GET", "/v1/events?follow=true") as answer:
        lines = answer.iter_lines()
        next(lines)
        assert own_server.end() == 0
        with pytest.raises(httpx2.RemoteProtocolError):
            list(lines)


def test_events_of_another_owner_are_not_sent(own_server: Server) -> None:
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
def test_invalid_request_is_rejected(server: Server, query: str) -> None:
    with server.http() as http:
        assert http.get(f"/v1/events?{query}").status_code == 400


def test_ndjson_lines_are_events(server: Server) -> None:
    with server.http() as http:
        answer = http.get("/v1/events")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert all(b'"seq":' in line for line in LineDecoder().feed(answer.content))


# -- processes --------------------------------------------------------------------------------------------------------


def told_of(client: Client, sandbox: Sandbox) -> list[tuple[str, str]]:
    """Return the processes of start and exit events, in order."""
    found = client.events(sandbox=sandbox.id, type="process")
    return [(event.type, event.process.id) for event in found if event.process is not None]


def test_starts_and_exits_of_all_processes_are_reported(server: Server, client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        listener = Listener(server, sandbox.id, "process")
        run = sandbox.run("exit 3")
        process = sandbox.spawn("sleep 600", env={"SECRET": "of-a-variable"})
        process.kill()
        process.wait(30)
        *_, killed = listener.wait_for("process.started", "process.ended", "process.started", "process.ended")
        first = listener.seen[1].process
        assert first is not None
        assert (first.id, first.state, first.exit_code, first.cmd) == (run.id, "exited", 3, "exit 3")
        assert killed.process is not None
        assert (killed.process.id, killed.process.signal, killed.process.exit_code) == (process.id, "KILL", None)
        assert b"of-a-variable" not in server.http().get("/v1/events").content


def test_event_truncates_a_long_command(server: Server, client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run(["true", *["x" * 100_000] * 10])
        sandbox.run(": " + "y" * 100_000)
        listener = Listener(server, sandbox.id, "process.ended")
        listener.wait_for("process.ended", "process.ended")
        for event in listener.seen:
            assert event.process is not None
            assert len("".join(event.process.cmd)) < 1100


def test_exit_without_a_server_is_reported_once(own_server: Server) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        sandbox = Sandbox.create(server=client)
        listener = Listener(own_server, sandbox.id, "process")
        ended = [sandbox.spawn("true") for _ in range(3)]
        waiting = [sandbox.spawn("until [ -e go ]; do sleep 0.02; done; touch gone-$$; exit 4") for _ in range(5)]
        staying = sandbox.spawn("echo on; sleep 600")
        staying.wait_for_output("on")
        ((pid,),) = own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        own_server.end(signal.SIGKILL)
        inside = Path(f"/proc/{pid}/root/workspace")
        (inside / "go").touch()
        wait_until(lambda: len(list(inside.glob("gone-*"))) == 5, "their ends, of which no server hears")
        own_server.start()
        for process in waiting:
            assert process.wait(30).exit_code == 4
        wait_until(lambda: len(listener.seen) >= 2 * 8 + 1, "all to be told")
        told = told_of(client, sandbox)
        assert len(set(told)) == len(told), "nothing twice"
        for process in (*ended, *waiting):
            assert ("process.started", process.id) in told
            assert ("process.ended", process.id) in told
        assert ("process.ended", staying.id) not in told
        seqs = [event.seq for event in listener.seen]
        assert seqs == sorted(set(seqs))
        assert [(e.type, e.process.id) for e in listener.seen if e.process] == told
        sandbox.delete()
        assert told_of(client, sandbox)[-1] == ("process.ended", staying.id), "it ended with its sandbox"
        assert types(client, sandbox.id)[-1] == "sandbox.deleted"


@pytest.mark.parametrize("how", ["stop", "delete", "fail"])
def test_process_exits_precede_the_end_of_their_sandbox(server: Server, client: Client, how: str) -> None:
    sandbox = Sandbox.create(server=client)
    process = sandbox.spawn("trap '' TERM; echo on; while :; do sleep 1; done")
    gentle = sandbox.spawn("trap 'exit 6' TERM; echo on; while :; do sleep 0.05; done")
    for one in (process, gentle):
        one.wait_for_output("on")
    if how == "fail":
        ((pid,),) = server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: types(client, sandbox.id)[-1] == "sandbox.failed", "its failure")
    else:
        getattr(sandbox, how)()
    events = list(client.events(sandbox=sandbox.id))
    last = {
        event.process.id: (event, n)
        for n, event in enumerate(events)
        if event.type == "process.ended" and event.process
    }
    assert set(last) == {process.id, gentle.id}
    end = next(n for n, event in enumerate(events) if event.type.endswith((".stopped", ".deleted", ".failed")))
    assert all(n < end for _, n in last.values())
    ended = last[gentle.id][0].process
    assert ended is not None
    if how == "stop":
        assert ended.exit_code == 6, "it told its own end"
    if how != "delete":
        sandbox.delete()


def test_pause_neither_loses_nor_repeats_events(server: Server, client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        process = sandbox.spawn("echo on; sleep 0.3")
        process.wait_for_output("on")
        sandbox.pause()
        assert sandbox.info().state == "paused"
        sandbox.resume()
        process.wait(30)
        sandbox.run("true")
        listener = Listener(server, sandbox.id, "process")
        wait_until(lambda: len(listener.seen) == 4, "both to be told")
        told = told_of(client, sandbox)
        assert told[:2] == [("process.started", process.id), ("process.ended", process.id)]
        assert len(set(told)) == 4


def test_sandbox_found_paused_reports_events_after_resume(own_server: Server) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        sandbox = Sandbox.create(server=client)
        process = sandbox.spawn("echo on; cat; exit 5")
        process.wait_for_output("on")
        sandbox.pause()
        own_server.end(signal.SIGKILL)
        own_server.start()
        assert sandbox.info().state == "paused"
        process.stdin.close()
        assert process.wait(30).exit_code == 5
        wait_until(lambda: ("process.ended", process.id) in told_of(client, sandbox), "its end to be told")
        assert len(told_of(client, sandbox)) == 2


def test_events_beyond_the_keeper_buffer_are_reported_lost_and_exits_recovered(own_server: Server) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        sandbox = Sandbox.create(server=client)
        process = sandbox.spawn("echo on; read line; exit 5")
        process.wait_for_output("on")
        wait_until(lambda: told_of(client, sandbox), "its start to be told")
        own_server.end(signal.SIGKILL)
        own_server.sql("UPDATE heard SET seq = 0")
        own_server.start()
        process.stdin.write("\n")
        assert process.wait(30).exit_code == 5
        wait_until(lambda: ("process.ended", process.id) in told_of(client, sandbox), "its end to be told")


def test_exits_of_a_sandbox_that_died_without_a_server_are_reported_later(own_server: Server) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        sandbox = Sandbox.create(server=client)
        process = sandbox.spawn("sleep 600")
        wait_until(lambda: told_of(client, sandbox), "its start to be told")
        ((pid,),) = own_server.sql("SELECT pid FROM sandboxes WHERE id = ?", sandbox.id)
        own_server.end(signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        own_server.start()
        wait_until(lambda: sandbox.info().state == "stopped", "its end to be noticed")
        assert told_of(client, sandbox) == [("process.started", process.id), ("process.ended", process.id)]
        last = [event.type for event in client.events(sandbox=sandbox.id)][-2:]
        assert last == ["process.ended", "sandbox.stopped"]
