"""Forks and rollback on real sandboxes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.server import Server, wait_until

from skerry import Client, Lifecycle, Limits, Options, Sandbox, Secret, Snapshot
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SandboxUnavailable


@pytest.fixture(scope="module")
def narrow(make_server: Callable[[], Server]) -> Iterator[Server]:
    """A server with room for little."""
    made = make_server().start(SKERRY_MAX_SANDBOXES="3", SKERRY_SNAPSHOTS_MAX_AUTO="5", SKERRY_SNAPSHOTS_PER_OWNER="2")
    yield made
    made.retire()


def units(server: Server) -> int:
    return len(list((server.state_dir / "pool" / "u").iterdir()))


def kept(server: Server) -> int:
    return len(list((server.state_dir / "pool" / "s").iterdir()))


def test_forks_equal_their_source_and_share_no_writes(client: Client, server: Server) -> None:
    before = kept(server)
    limits = Limits(memory="300M", disk="100M", pids=100)
    with Sandbox(name="source", env={"A": "1"}, labels={"team": "a"}, limits=limits, server=client) as source:
        source.run("echo one > /workspace/note; rm /etc/motd", user="root")
        beat = source.spawn("while sleep 0.01; do date +%N > /tmp/beat; done")
        forks = source.fork(3)
        assert len({source.id, *(fork.id for fork in forks)}) == 4
        for number, fork in enumerate(forks):
            assert (fork.state, fork.name, dict(fork.labels)) == ("running", None, {"team": "a"})
            assert (fork.cached_info.limits, fork.cached_info.image) == (source.cached_info.limits, "base")
            look = "cat /workspace/note; echo $A; test ! -e /etc/motd && echo gone; ls /proc | grep -c '^[0-9]'"
            *same, processes = fork.run(look).stdout.split()
            assert same == ["one", "1", "gone"]
            assert int(processes) < 8  # none of the source's
            fork.run(f"echo {number} > /workspace/note", user="root")
        assert [fork.run("cat /workspace/note").stdout for fork in forks] == ["0\n", "1\n", "2\n"]
        assert source.run("cat /workspace/note").stdout == "one\n"
        assert source.processes.get(beat.id).state == "running"
        assert kept(server) == before  # their temporary snapshot is deleted
        source.delete()
        for fork in forks:  # which stand on nothing of their source's
            assert fork.run("cat /workspace/note").ok
            fork.delete()


def test_idle_fork_of_a_named_sandbox_is_deleted_and_its_source_stopped(client: Client) -> None:
    with Sandbox(name="idle-source", lifecycle=Lifecycle(idle_timeout="1s"), server=client) as source:
        (fork,) = source.fork()
        assert (source.cached_info.lifecycle.on_idle, fork.cached_info.lifecycle.on_idle) == ("stop", "delete")
        wait_until(lambda: fork.id not in {one.id for one in Sandbox.list(server=client)}, "the fork is deleted")
        wait_until(lambda: source.info().state == "stopped", "its source is stopped")
        source.update(lifecycle=Lifecycle(idle_timeout="1h", on_idle="pause"))
        (paused,) = source.fork()
        assert paused.cached_info.lifecycle.on_idle == "pause", "an explicit request is kept"
        paused.delete()
        source.delete()


def test_stopped_sandbox_is_forked_and_stays_stopped(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("echo kept > /workspace/note")
        source.stop()
        (fork,) = source.fork()
        assert fork.run("cat /workspace/note").stdout == "kept\n"
        assert source.info().state == "stopped"
        fork.delete()


def test_fork_of_a_fork_of_a_snapshot_is_complete(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("echo 1 > /workspace/a")
        snapshot = source.snapshot()
    with Sandbox(snapshot, server=client) as first:
        first.run("echo 2 > /workspace/b")
        (second,) = first.fork()
        second.run("echo 3 > /workspace/c")
        (third,) = second.fork()
        assert third.run("cat /workspace/?").stdout == "1\n2\n3\n"
        third.delete()
        second.delete()
    snapshot.delete()


def test_fork_keeps_the_secret_placeholders_of_its_source(client: Client) -> None:
    secret = Secret("TOKEN", hosts=["api.example.com"], value="x" * 40)
    with Sandbox(secrets=[secret], server=client) as source:
        placeholder = source.run("echo $TOKEN").stdout
        (fork,) = source.fork()
        assert fork.run("echo $TOKEN").stdout == placeholder != ""
        assert fork.cached_info.secrets == source.cached_info.secrets
        fork.delete()


def test_forks_beyond_the_capacity_create_none(narrow: Server) -> None:
    with Client(narrow.address) as client, Sandbox(server=client) as source:
        with pytest.raises(QuotaExceeded, match=r"max\.sandboxes"):
            source.fork(3)
        assert [one.id for one in Sandbox.list(server=client)] == [source.id]
        with ThreadPoolExecutor() as pool:  # two at once, with room for one of them
            results = list(pool.map(lambda _: _tried(lambda: source.fork(2)), range(2)))
        assert sorted(type(result).__name__ for result in results) == ["QuotaExceeded", "list"]
        assert len(Sandbox.list(server=client)) == 3
        narrow.remove_all()
        assert (units(narrow), kept(narrow)) == (0, 0)
    with pytest.raises(InvalidRequest):
        source.fork(0)


def _tried(work: Callable[[], object]) -> object:
    try:
        return work()
    except QuotaExceeded as error:
        return error


def test_idempotency_key_creates_a_fork_once(client: Client, server: Server) -> None:
    with Sandbox(server=client) as source, server.http() as http:
        where, key = f"/v1/sandboxes/{source.id}/fork", {"Idempotency-Key": "fork-once"}
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda _: http.post(where, json={"n": 2}, headers=key).json(), range(3)))
        ids = {tuple(one["id"] for one in answer["sandboxes"]) for answer in answers}
        assert len(ids) == 1
        assert http.post(where, json={"n": 3}, headers=key).status_code == 400
        for sandbox in ids.pop():
            http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def test_rollback_restores_files_and_ends_processes(client: Client, server: Server) -> None:
    with Sandbox(name="project", env={"A": "1"}, server=client) as sandbox:
        sandbox.run("echo good > /workspace/data; mkdir /opt/kept", user="root")
        good = sandbox.snapshot("good")
        before = units(server)
        for bad in (
            "echo bad > /workspace/data; rmdir /opt/kept",
            "rm -r /workspace/*; touch /opt/new",
            "rm -rf /usr/lib",
        ):
            sandbox.spawn("sleep 1000")
            sandbox.run(bad, user="root")
            sandbox.rollback(good)
            assert (sandbox.state, sandbox.name) == ("running", "project")
            look = sandbox.run("cat /workspace/data; ls /opt; echo $A; pgrep -c sleep")
            assert look.stdout == "good\nkept\n1\n0\n"
        assert units(server) == before
        sandbox.delete()
    good.delete()


def test_running_call_is_notified_of_a_rollback(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        snapshot = sandbox.snapshot()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(sandbox.run, "touch /tmp/began; sleep 1000")
            wait_until(lambda: sandbox.files.exists("/tmp/began"), "the command to begin")
            sandbox.rollback(snapshot.id)
            with pytest.raises(SandboxUnavailable, match="rolled back to"):
                waiting.result(20)
        assert sandbox.run("ls /tmp").stdout == ""
    snapshot.delete()


def test_stopped_sandbox_is_rolled_back_and_stays_stopped(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run("echo good > /workspace/data")
        snapshot = sandbox.snapshot()
        sandbox.run("echo bad > /workspace/data")
        sandbox.stop()
        sandbox.rollback(snapshot)
        assert sandbox.info().state == "stopped"
        assert sandbox.run("cat /workspace/data").stdout == "good\n"
        sandbox.run("echo bad > /workspace/data")
        sandbox.pause()
        sandbox.rollback(snapshot)
        assert sandbox.run("cat /workspace/data").stdout == "good\n"
    snapshot.delete()


def test_rollback_to_a_missing_snapshot_changes_nothing(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        beat = sandbox.spawn("sleep 1000")
        for wish in ({"snapshot": "nowhere"}, {"steps": 1}):
            with pytest.raises(NotFound):
                sandbox.rollback(**wish)  # type: ignore[arg-type]
        for wrong in ({}, {"snapshot": "a", "steps": 1}, {"steps": 0}):
            with pytest.raises(InvalidRequest):
                sandbox.rollback(**wrong)  # type: ignore[arg-type]
        assert sandbox.processes.get(beat.id).state == "running"


def test_automatic_snapshots_roll_back_command_by_command(narrow: Server) -> None:
    with Client(narrow.address) as client, Sandbox(options=Options(auto_snapshot=True), server=client) as sandbox:
        session = sandbox.session("work")
        for number in range(4):
            session.run(f"echo {number} >> note", cwd="/workspace")
        sandbox.spawn("echo spawned >> /workspace/note").wait()
        sandbox.run("rm /workspace/note")
        assert [one.info.step for one in Snapshot.list(sandbox=sandbox, server=client)] == [2, 3, 4, 5, 6]

        def note() -> str:
            return sandbox.files.read_text("/workspace/note")

        sandbox.rollback(steps=1)
        assert note() == "0\n1\n2\n3\nspawned\n"
        sandbox.rollback(steps=2)
        assert note() == "0\n1\n2\n"
        sandbox.run("echo other > /workspace/note")
        sandbox.rollback(steps=1)
        assert note() == "0\n1\n2\n"
        with pytest.raises(NotFound, match="2 snapshots"):
            sandbox.rollback(steps=3)
        with ThreadPoolExecutor(6) as pool:  # each has one from before it began
            list(pool.map(lambda number: sandbox.run(f"touch /workspace/made-{number}"), range(6)))
        steps = Snapshot.list(sandbox=sandbox, kind="auto", server=client)
        assert len({one.info.step for one in steps}) == len(steps) >= 5
        wait_until(lambda: kept(narrow) == 5, "those that are too old to go")
        sandbox.rollback(steps=5)
        assert len(sandbox.files.list("/workspace")) <= 2
    assert (units(narrow), kept(narrow)) == (0, 0)  # they went with their sandbox


def test_snapshots_of_an_owner_are_bounded_and_build_steps_are_dropped_first(narrow: Server) -> None:
    with Client(narrow.address) as client, Sandbox(server=client) as sandbox, narrow.http() as http:
        where = f"/v1/sandboxes/{sandbox.id}/snapshots"
        assert http.post(where, json={"key": "step"}).status_code == 201
        taken = [sandbox.snapshot(), sandbox.snapshot()]
        assert http.get("/v1/snapshots?key=step").json() == {"snapshots": []}
        with pytest.raises(QuotaExceeded, match=r"snapshots\.per_owner"):
            sandbox.snapshot()
        assert kept(narrow) == 2
        for snapshot in taken:
            snapshot.delete()


def test_concurrent_deletes_stops_and_snapshots_succeed(client: Client, server: Server) -> None:
    """In any order, each call succeeds or reports that the sandbox is gone."""
    before = (units(server), kept(server))
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            sandbox = Sandbox.create(server=client)
            start = threading.Barrier(5)
            acts: list[Callable[[], object]] = [
                sandbox.snapshot, lambda s=sandbox: s.fork(1)[0].delete(), sandbox.stop, sandbox.pause,
                lambda s=sandbox: client.request(_delete(s.id)),
            ]  # type: ignore[misc]  # fmt: skip
            results = list(pool.map(lambda act, gate=start: _ended(act, gate), acts))  # type: ignore[misc]
            for result in results:
                if isinstance(result, Exception):
                    assert isinstance(result, (NotFound, Conflict, SandboxUnavailable)), result
                elif result is not None and hasattr(result, "as_image"):
                    result.delete()
    assert (units(server), kept(server)) == before


def _ended(act: Callable[[], object], gate: threading.Barrier) -> object:
    gate.wait(30)
    try:
        return act()
    except Exception as error:
        return error


def _delete(ref: str) -> object:
    from skerry.client.transport.requests import sandboxes

    return sandboxes.delete(ref)
