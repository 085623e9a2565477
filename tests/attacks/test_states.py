"""Attacks by what is left in a snapshot, for those who start from it, fork it, or go back to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from attacks.test_roots import DEEP, LIMITS
from serving import Server

from skerry import Client, Sandbox, Secret, Snapshot
from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable
from skerry.storage import LayerStore


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def test_a_link_above_a_mount_is_refused_wherever_the_tree_comes_to_life_again(client: Client, server: Server) -> None:
    with Sandbox(limits=LIMITS, server=client) as sandbox:
        before = {one.id for one in Sandbox.list(server=client)}
        good = sandbox.snapshot()
        sandbox.run("mv /run /run-old && ln -s /etc /run", user="root", check=True)
        bad = sandbox.snapshot()
        for act in (lambda: Sandbox.create(bad, server=client), lambda: sandbox.fork(2), lambda: sandbox.rollback(bad)):
            with pytest.raises(SandboxUnavailable, match="/run"):
                act()
        assert {one.id for one in Sandbox.list(server=client)} == before
        assert sandbox.info().state == "stopped"
        sandbox.rollback(good)
        sandbox.resume()
        assert sandbox.run("test ! -L /run && echo there").stdout == "there\n"
    for snapshot in (good, bad):
        snapshot.delete()


def test_no_tree_is_too_deep_to_be_kept_copied_and_dropped(client: Client, server: Server) -> None:
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


def test_a_secret_does_not_travel_in_a_snapshot(client: Client) -> None:
    secret = Secret("TOKEN", hosts=["api.example.com"], value="x" * 40)
    with Sandbox(secrets=[secret], server=client) as sandbox:
        placeholder = sandbox.run("echo $TOKEN > /workspace/kept; echo $TOKEN").stdout
        snapshot = sandbox.snapshot()
        with Sandbox(snapshot, server=client) as other:
            assert other.run("env | grep TOKEN").stdout == ""
            assert other.known.secrets == ()
            assert other.run("cat /workspace/kept").stdout == placeholder  # which is worth nothing there
    snapshot.delete()


def test_many_imports_that_fail_while_a_great_one_is_stored_hold_up_nobody(
    client: Client, server: Server, tmp_path: Path
) -> None:
    """What they leave is collected when the store is free; until then they must not sit on the server's threads."""
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"no archive" * 100)

    def fail(_: int) -> None:
        with Client(server.address) as own, pytest.raises((InvalidRequest, QuotaExceeded)):
            Snapshot.import_(junk, server=own)

    with ThreadPoolExecutor(40) as pool:
        with LayerStore(server.state_dir / "layers").held():  # as one who adds a layer does
            failing = list(map(pool.submit, [fail] * 40, range(40)))
            wait(failing, timeout=2)
            began = time.monotonic()
            with Sandbox(limits=LIMITS, server=client) as sandbox:
                assert sandbox.run("echo still here").stdout == "still here\n"
            assert time.monotonic() - began < 20
        for one in failing:
            one.result(60)
