"""Snapshots of real sandboxes: content, use, owners, deletion."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from support.server import Server, wait_until

from skerry import Client, Sandbox, Snapshot
from skerry.config import instance_of
from skerry.engine.snapshots.capture import FEW_BYTES
from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.runtimes.cgroups import Cgroups
from skerry.runtimes.hierarchies import mounted, root_for


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    """One that runs, for all that does no harm to it."""
    with Sandbox(env={"MODE": "test"}, server=client) as made:
        yield made


def kept(server: Server) -> int:
    """Return the snapshots in the storage, independent of the database."""
    return len(list((server.state_dir / "pool" / "s").iterdir()))


def test_snapshot_writes_out_the_data_that_waits(server: Server, client: Client) -> None:
    """Before it freezes the sandbox, if there is much; a snapshot of an idle sandbox has nothing to write."""
    found = mounted()
    cgroups = Cgroups(root_for(instance_of(server.state_dir), found), found)
    with Sandbox(server=client) as sandbox:
        sandbox.run("head -c 32M /dev/urandom > /workspace/large && sha256sum < /workspace/large > /workspace/sum")
        assert (cgroups.unwritten(sandbox.id) or 0) > FEW_BYTES
        (fork,) = sandbox.fork()
        wait_until(lambda: (cgroups.unwritten(sandbox.id) or 0) <= FEW_BYTES, "the count to show that")
        sandbox.run("echo small > /workspace/small")
        (other,) = sandbox.fork()
        for one in (fork, other):
            assert one.run("sha256sum < /workspace/large | cmp - /workspace/sum").exit_code == 0
        assert other.files.read_text("/workspace/small") == "small\n"
        for one in (fork, other):
            one.delete()


def test_sandbox_from_a_snapshot_shares_no_writes_with_its_source(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("echo one > /workspace/note; mkdir /opt/made; rm /etc/motd; chmod 4755 /workspace/note", user="root")
        snapshot = source.snapshot("deps")
        source.run("echo two > /workspace/note", user="root")
        with Sandbox(snapshot, server=client) as copy, Sandbox("deps", server=client) as other:
            look = (
                "cat /workspace/note; stat -c %a,%U /workspace/note; ls -d /opt/made; test ! -e /etc/motd && echo gone"
            )
            assert copy.run(look).stdout == "one\n4755,root\n/opt/made\ngone\n"
            assert copy.cached_info.image == "deps"
            copy.run("echo three > /workspace/note; rmdir /opt/made", user="root")
            assert other.run("cat /workspace/note; ls -d /opt/made").stdout == "one\n/opt/made\n"
            assert source.run("cat /workspace/note").stdout == "two\n"
    snapshot.delete()


def test_snapshot_survives_its_sandbox_and_dependents_survive_a_server_restart(client: Client, server: Server) -> None:
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


def test_snapshot_of_a_stopped_or_paused_sandbox_keeps_its_state(client: Client) -> None:
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


def test_snapshot_under_load_is_consistent(client: Client) -> None:
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


def test_snapshot_has_no_keeper_files(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.session("work").run("SECRET=hidden")
        source.spawn("echo printed").wait()
        with Sandbox(snapshot := source.snapshot(), server=client) as copy:
            assert copy.sessions.list() == []
            assert copy.processes.list() == []
            search = "grep -rl -e hidde[n] -e printe[d] /var/lib/skerry"  # the list of processes contains this command
            found = copy.run(f"{search} 2>/dev/null | grep -v journal", user="root")
            assert found.stdout == ""
        snapshot.delete()


def test_damaged_snapshot_is_reported_and_not_used(client: Client, server: Server, sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot("worn")
    layer = snapshot.info.layers[0]
    (server.state_dir / "layers" / f"{layer.replace(':', '-')}.damaged").touch()
    for start in (lambda: Sandbox.create("worn", server=client), lambda: sandbox.rollback(snapshot)):
        with pytest.raises(Conflict, match=layer):
            start()
    assert sandbox.run("echo alive").stdout == "alive\n"
    snapshot.delete()
    assert list((server.state_dir / "layers").glob(f"{layer.replace(':', '-')}*")) == []


def test_snapshot_name_is_unique(client: Client, sandbox: Sandbox) -> None:
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


def test_build_step_is_found_by_its_key(server: Server, sandbox: Sandbox) -> None:
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


def test_directory_snapshot_is_restored_into_another_sandbox(client: Client) -> None:
    with Sandbox(server=client) as source, Sandbox(server=client) as target:
        source.run(
            "mkdir -p app/src && cd app && echo one > src/a.txt && ln -s src/a.txt link && ln src/a.txt hard &&"
            " chmod 750 src/a.txt && truncate -s 3M sparse && mkfifo pipe && echo secret > ../outside",
            check=True,
        )
        snapshot = source.snapshot("app", path="app", ttl="1h")
        assert (snapshot.path, snapshot.info.sandbox) == ("/workspace/app", source.id)
        source.run("echo two > app/src/a.txt")
        target.files.write("app/own.txt", "mine")
        assert target.restore(snapshot).files >= 3
        look = "cat app/src/a.txt app/link app/hard app/own.txt; stat -c %a,%U app/src/a.txt; stat -c %s app/sparse"
        assert target.run(look).stdout == "one\none\none\nmine750,user\n3145728\n"
        assert not target.files.exists("/workspace/outside")
        target.restore("app", "/tmp/copy", user="root")
        assert target.run("stat -c %U /tmp/copy/src/a.txt", user="root").stdout == "root\n"
        target.stop()
        stopped = target.snapshot(path="/tmp/copy/src")
        twin = target.snapshot(path="/tmp/copy/src")
        assert source.restore(stopped, "again").files == 1
        stopped.delete()
        assert source.restore(twin, "twice").files == 1, "an equal directory has the same layer"
        twin.delete()

        for wrong in (lambda: Sandbox(snapshot, server=client).start(), lambda: target.rollback(snapshot),
                      lambda: snapshot.changes(), lambda: source.snapshot(path="/nowhere"),
                      lambda: source.snapshot(path="/etc/passwd"), lambda: source.snapshot(ttl=0)):  # fmt: skip
            with pytest.raises(InvalidRequest):
                wrong()
        whole = source.snapshot()
        with pytest.raises(InvalidRequest, match="not of a directory"):
            target.restore(whole)
        with pytest.raises(NotFound):
            target.restore("no-such-snapshot")
        whole.delete()
        snapshot.delete()


def test_directory_snapshot_follows_links_inside_the_sandbox_only(client: Client) -> None:
    with Sandbox(server=client) as source:
        source.run("ln -s / root; ln -s /etc/../../../../proc/1/root/etc up; mkdir real; ln -s real there", check=True)
        inside = source.snapshot(path="/workspace/root/etc/apt")
        assert source.restore(inside, "apt").directories
        assert source.files.exists("apt/apt.conf.d")
        inside.delete()
        with pytest.raises(InvalidRequest, match="not a directory"):
            source.snapshot(path="/workspace/up")  # /proc is empty in the layers
        source.snapshot(path="there").delete()


def test_expired_snapshot_is_removed_unless_a_sandbox_needs_it(own_server: Server) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        source = Sandbox.create(server=client, name="source")
        source.files.write("note", "kept")
        gone, needed = source.snapshot("gone", ttl=3600), source.snapshot("needed", ttl=3600)
        folder = source.snapshot("folder", path="/workspace", ttl=3600)
        stays = source.snapshot("stays")
        user = Sandbox.create("needed", name="user", server=client)
        assert gone.expires_at is not None
        own_server.end()
        own_server.sql(
            "UPDATE snapshots SET body = json_set(body, '$.expires_at', 1.0) WHERE name IN ('gone', 'needed', 'folder')"
        )
        own_server.start()  # also after a restart
        wait_until(lambda: len(Snapshot.list(server=client)) == 2, "the removal", 60)
        assert {one.id for one in Snapshot.list(server=client)} == {needed.id, stays.id}
        assert folder.id not in {one.id for one in Snapshot.list(server=client)}
        with pytest.raises(NotFound, match="expired"):
            Sandbox.create(needed, server=client)
        assert user.run("cat note").stdout == "kept"
        user.stop()
        assert user.run("cat note").stdout == "kept"
        short = source.snapshot(ttl=1)
        wait_until(lambda: short.id not in {one.id for one in Snapshot.list(server=client)}, "a removal in time", 60)
        user.delete()
        source.delete()


@pytest.mark.parametrize("point", ["snapshot.thawed", "snapshot.kept", "import.archive", "import.layer"])
def test_killed_directory_snapshot_leaves_nothing(own_server: Server, point: str) -> None:
    own_server.start()
    with Client(own_server.address) as client:
        source = Sandbox.create(server=client, name="source")
        source.files.write("note", "kept")
        before = kept(own_server)
        own_server.end()
        own_server.start(SKERRY_FAULT=point)
        with own_server.http() as http, pytest.raises(httpx2.TransportError):
            http.post("/v1/sandboxes/source/snapshots", json={"path": "/workspace"}, timeout=60)
        assert own_server.process is not None
        assert own_server.process.wait(60) == -signal.SIGKILL
        own_server.start()
        assert Snapshot.list(server=client) == []
        wait_until(lambda: kept(own_server) == before, "the removal of the layer", 60)
        imports = own_server.state_dir / "cache" / "imports"
        assert not imports.exists() or not list(imports.iterdir())
        snapshot = source.snapshot(path="/workspace")
        assert source.restore(snapshot, "again").files == 1
        snapshot.delete()
        source.delete()
