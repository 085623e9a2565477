"""Changes between snapshots, sandboxes and images, with real sandboxes."""

from __future__ import annotations

import os

import pytest
from support.server import Server

from skerry import Client, Sandbox, Snapshot
from skerry.errors import Conflict, NotFound
from skerry.results import SnapshotDiff


def told(found: SnapshotDiff) -> dict[str, str]:
    assert not found.truncated
    return {one.path: one.kind for one in found}


def in_storage(server: Server) -> set[str]:
    pool = server.state_dir / "pool"
    return {f"{place}/{name}" for place in ("s", "t") for name in os.listdir(pool / place)}


def test_changes_are_listed_between_any_two_points(client: Client, server: Server) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run("mkdir /opt/app; echo 1 > /opt/app/one; echo 1 > /opt/app/two; mkfifo /opt/pipe", user="root")
        first = sandbox.snapshot()
        before = in_storage(server)
        assert len(first.changes()) == 0
        script = (
            "echo 2 > /opt/app/one; rm /opt/app/two; touch $'/opt/\\377'; rm /etc/motd; touch /opt/pipe; mv /srv /s"
        )
        sandbox.run(["bash", "-c", script], user="root")
        expected = {
            "/etc/motd": "deleted", "/opt/app/one": "modified", "/opt/app/two": "deleted",
            os.fsdecode(b"/opt/\xff"): "added", "/s": "added", "/srv": "deleted",
        }  # fmt: skip
        assert told(first.changes()) == expected  # through a snapshot that is gone again
        sandbox.pause()
        assert told(first.changes(sandbox)) == expected
        assert sandbox.info().state == "paused"
        assert in_storage(server) == before
        second = sandbox.snapshot()
        assert told(first.changes(second)) == expected
        assert second.changes(sandbox.id).changes == ()
        assert told(second.changes("base")).items() >= {"/opt/app": "deleted", "/etc/motd": "added"}.items()
        types = {one.path: one.type for one in second.changes("base").changes}
        assert (types["/opt/app"], types["/opt/pipe"], types["/opt/app/one"]) == ("directory", "other", "file")
    with pytest.raises(Conflict, match="its sandbox was deleted"):
        first.changes()
    for snapshot in (second, first):
        snapshot.delete()


def test_sandboxes_of_one_snapshot_are_compared_by_content(client: Client) -> None:
    """Written at the same moment, of the same size, under the same inode number: times say nothing here."""
    with Sandbox(server=client) as source:
        snapshot = source.snapshot()
    with Sandbox(snapshot, server=client) as one, Sandbox(snapshot, server=client) as other:
        for sandbox, text in ((one, "a"), (other, "b")):
            sandbox.run(f"echo {text} > /workspace/x; echo same > /workspace/y; touch -d @1 /workspace/?")
        mine = one.snapshot()
        assert told(mine.changes(other)) == {"/workspace/x": "modified"}
        mine.delete()
    snapshot.delete()


def test_rollback_is_shown_as_the_undone_changes(client: Client) -> None:
    with Sandbox(server=client) as sandbox:
        sandbox.run("echo 1 > x")
        first = sandbox.snapshot()
        sandbox.run("echo 2 > x; echo 2 > y")
        second = sandbox.snapshot()
        sandbox.rollback(first)
        assert first.changes().changes == ()
        assert told(second.changes()) == {"/workspace/x": "modified", "/workspace/y": "deleted"}
    for snapshot in (second, first):
        snapshot.delete()


def test_unknown_and_foreign_snapshots_are_not_found(client: Client, server: Server) -> None:
    token = client.tokens.create(scope="use").secret
    with Sandbox(server=client) as sandbox, Client(server.address, token=token) as stranger:
        snapshot = sandbox.snapshot("mine")
        for ref in ("nothing", "sb-aaaaaaaaaa", "..", "a b"):
            with pytest.raises(NotFound, match=r"to: .* not found"):
                snapshot.changes(ref)
        with pytest.raises(NotFound):
            Snapshot(stranger, snapshot.info).changes("base")
        snapshot.delete()
