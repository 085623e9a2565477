"""Attacks by the content of a snapshot, on sandboxes that start from it, fork it, or roll back to it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from attacks.test_root_file_system import DEEP, LIMITS
from support.server import Server

from skerry import Client, Sandbox, Secret, Snapshot
from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable
from skerry.storage import LayerStore


def test_link_above_a_mount_point_is_rejected_in_forks_and_snapshots(client: Client, server: Server) -> None:
    with Sandbox(limits=LIMITS, server=client) as sandbox:
        before = {one.id for one in Sandbox.list(server=client)}
        good = sandbox.snapshot()
        sandbox.run("mv /run /run-old && ln -s /etc /run", user="root", check=True)
        bad = sandbox.snapshot()
        with pytest.raises(InvalidRequest, match="/run"):
            Sandbox.create(bad, server=client)
        for act in (lambda: sandbox.fork(2), lambda: sandbox.rollback(bad)):
            with pytest.raises(SandboxUnavailable, match="/run"):
                act()
        assert {one.id for one in Sandbox.list(server=client)} == before
        assert sandbox.info().state == "stopped"
        sandbox.rollback(good)
        sandbox.resume()
        assert sandbox.run("test ! -L /run && echo there").stdout == "there\n"
    for snapshot in (good, bad):
        snapshot.delete()


def test_deep_trees_are_saved_copied_and_deleted(client: Client, server: Server) -> None:
    before = {path.name for path in (server.state_dir / "pool" / "s").iterdir()}
    with Sandbox(limits=LIMITS, server=client) as sandbox:
        assert sandbox.run(["python3", "-c", DEEP], user="root").ok
        snapshot = sandbox.snapshot("deep")
        assert Snapshot.get("deep", server=client).id == snapshot.id  # which measures it, as far as that goes
        (fork,) = sandbox.fork()
        assert fork.run("ls -d /var/tmp/d* | wc -l").stdout == "1\n"
        fork.delete()
    snapshot.delete()
    assert {path.name for path in (server.state_dir / "pool" / "s").iterdir()} == before


def test_snapshot_contains_no_secret(client: Client) -> None:
    secret = Secret("TOKEN", hosts=["api.example.com"], value="x" * 40)
    with Sandbox(secrets=[secret], server=client) as sandbox:
        placeholder = sandbox.run("echo $TOKEN > /workspace/kept; echo $TOKEN").stdout
        snapshot = sandbox.snapshot()
        with Sandbox(snapshot, server=client) as other:
            assert other.run("env | grep TOKEN").stdout == ""
            assert other.cached_info.secrets == ()
            assert other.run("cat /workspace/kept").stdout == placeholder  # which is worth nothing there
    snapshot.delete()


def test_failing_imports_during_a_large_one_block_no_others(client: Client, server: Server, tmp_path: Path) -> None:
    """Their leftovers are collected when the store is free; until then they must not block the server's threads."""
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"no archive" * 100)

    def fail(_: int) -> None:
        with Client(server.address) as own, pytest.raises((InvalidRequest, QuotaExceeded)):
            Snapshot.import_(junk, server=own)

    with ThreadPoolExecutor(40) as pool:
        with LayerStore(server.state_dir / "layers").held():  # like a process that adds a layer
            failing = list(map(pool.submit, [fail] * 40, range(40)))
            wait(failing, timeout=2)
            began = time.monotonic()
            with Sandbox(limits=LIMITS, server=client) as sandbox:
                assert sandbox.run("echo still here").stdout == "still here\n"
            assert time.monotonic() - began < 20
        for one in failing:
            one.result(60)
