"""Snapshots on real sandboxes: what is in them, what starts from them, whose they are, when they go."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import Server, wait_until

from skerry import Client, Sandbox, Snapshot
from skerry.errors import Conflict, InvalidRequest, NotFound


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    """One that runs, for all that does no harm to it."""
    with Sandbox(env={"MODE": "test"}, server=client) as made:
        yield made


def kept(server: Server) -> int:
    """Snapshots in the storage, whatever the database says."""
    return len(list((server.state_dir / "pool" / "s").iterdir()))


def test_a_sandbox_starts_from_a_snapshot_and_shares_no_writes_with_its_source(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("echo one > /workspace/note; mkdir /opt/made; rm /etc/motd; chmod 4755 /workspace/note", user="root")
        snapshot = source.snapshot("deps")
        source.run("echo two > /workspace/note", user="root")
        with Sandbox(snapshot, server=client) as copy, Sandbox("deps", server=client) as other:
            look = (
                "cat /workspace/note; stat -c %a,%U /workspace/note; ls -d /opt/made; test ! -e /etc/motd && echo gone"
            )
            assert copy.run(look).stdout == "one\n4755,root\n/opt/made\ngone\n"
            assert copy.known.image == "deps"
            copy.run("echo three > /workspace/note; rmdir /opt/made", user="root")
            assert other.run("cat /workspace/note; ls -d /opt/made").stdout == "one\n/opt/made\n"
            assert source.run("cat /workspace/note").stdout == "two\n"
    snapshot.delete()


def test_a_snapshot_outlives_its_sandbox_and_what_stands_on_it_its_server(client: Client, server: Server) -> None:
    before = kept(server)
    with Sandbox(server=client) as source:
        source.run("echo kept > /workspace/note")
        snapshot = source.snapshot()
    with Sandbox(snapshot, server=client) as copy:
        assert copy.run("cat /workspace/note").stdout == "kept\n"
        with pytest.raises(Conflict, match=copy.id):
            snapshot.delete()
        above = copy.snapshot("above")
    with pytest.raises(Conflict, match="snapshot above"):
        snapshot.delete()
    assert kept(server) == before + 2
    above.delete()
    snapshot.delete()
    assert kept(server) == before


def test_a_snapshot_of_a_stopped_and_of_a_paused_sandbox_leaves_them_so(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("echo kept > /workspace/note")
        source.pause()
        paused = source.snapshot()
        assert source.info().state == "paused"
        source.stop()
        stopped = source.snapshot()
        assert source.info().state == "stopped"
        for snapshot in (paused, stopped):
            assert snapshot.info.frozen_s is None
            with Sandbox(snapshot, server=client) as copy:
                assert copy.run("cat /workspace/note").stdout == "kept\n"
            snapshot.delete()


def test_a_snapshot_under_load_is_of_one_moment(client: Client) -> None:
    """A writer renames over a file, then counts on in another: never may the second be ahead of the first."""
    loop = "i=0; while :; do i=$((i+1)); echo $i > a.new; mv a.new a; echo $i > b.new; mv b.new b; done"
    with Sandbox(server=client) as source:
        source.spawn(loop, cwd="/workspace")
        wait_until(lambda: source.files.exists("/workspace/b"), "the writer to write")
        with ThreadPoolExecutor() as pool:
            taken = list(pool.map(lambda _: source.snapshot(), range(3)))
        assert source.run("echo alive").stdout == "alive\n"
        for snapshot in taken:
            assert snapshot.info.frozen_s is not None
            with Sandbox(snapshot, server=client) as copy:
                first, second = map(int, copy.run("cat /workspace/a /workspace/b").stdout.split())
                assert first - 1 <= second <= first
            snapshot.delete()


def test_nothing_of_the_keeper_is_in_a_snapshot(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.session("work").run("SECRET=hidden")
        source.spawn("echo printed").wait()
        with Sandbox(snapshot := source.snapshot(), server=client) as copy:
            assert copy.sessions.list() == []
            assert copy.processes.list() == []
            found = copy.run("grep -rl -e hidden -e printed /var/lib/skerry 2>/dev/null | grep -v journal", user="root")
            assert found.stdout == ""
        snapshot.delete()


def test_a_damaged_snapshot_is_named_and_not_served(client: Client, server: Server, sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot("worn")
    layer = snapshot.info.layers[0]
    (server.state_dir / "layers" / f"{layer.replace(':', '-')}.damaged").touch()
    for start in (lambda: Sandbox.create("worn", server=client), lambda: sandbox.rollback(snapshot)):
        with pytest.raises(Conflict, match=layer):
            start()
    assert sandbox.run("echo alive").stdout == "alive\n"
    snapshot.delete()
    assert list((server.state_dir / "layers").glob(f"{layer.replace(':', '-')}*")) == []


def test_a_name_is_given_once(client: Client, sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot("taken")
    with pytest.raises(Conflict, match="taken"):
        sandbox.snapshot("taken")
    with pytest.raises(Conflict, match="image"):
        sandbox.snapshot("base")
    with pytest.raises(InvalidRequest, match="id"):
        sandbox.snapshot("sn-aaaaaaaaaa")
    snapshot.delete()
    sandbox.snapshot("taken").delete()
    with pytest.raises(NotFound):
        Snapshot.get("taken", server=client)


def test_snapshots_are_listed_shown_and_measured(client: Client, sandbox: Sandbox) -> None:
    sandbox.run("head -c 3000000 /dev/urandom > /workspace/data; sync")
    snapshot = sandbox.snapshot("measured")
    assert snapshot.id in [one.id for one in Snapshot.list(server=client)]
    assert [one.id for one in Snapshot.list(sandbox=sandbox, server=client)] == [snapshot.id]
    assert Snapshot.list(kind="auto", server=client) == []
    again = Snapshot.get("measured", server=client)
    assert again.info.own is not None
    assert 3_000_000 <= again.info.own < 4_000_000
    assert (again.info.sandbox, again.info.image, again.info.user) == (sandbox.id, "base", "user")
    snapshot.delete()


def test_a_step_of_a_build_is_found_by_its_key(server: Server, sandbox: Sandbox) -> None:
    with server.http() as http:
        where, wish = f"/v1/sandboxes/{sandbox.id}/snapshots", {"key": "abc1", "env": {"A": "1"}, "cwd": "/tmp"}
        made = http.post(where, json=wish)
        assert made.status_code == 201, made.text
        assert http.post(where, json=wish).json()["id"] == made.json()["id"]
        assert [one["id"] for one in http.get("/v1/snapshots?key=abc1").json()["snapshots"]] == [made.json()["id"]]
        assert http.get("/v1/snapshots?key=other").json()["snapshots"] == []
        assert made.json()["id"] not in [one["id"] for one in http.get("/v1/snapshots").json()["snapshots"]]
        with Sandbox(made.json()["id"], server=server.address) as copy:
            assert copy.run("pwd; echo $A").stdout == "/tmp\n1\n"
        assert http.delete(f"/v1/snapshots/{made.json()['id']}").status_code == 204
