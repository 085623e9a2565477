"""The database is lost or damaged while no server runs: after the next start, or after `skerry server repair`,
everything is there, and running sandboxes still run."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support.cli import skerry
from support.server import FRUGAL, Server, wait_until

from skerry import Client, Sandbox, Volume
from skerry.engine.repair.backup import _restore_audit
from skerry.engine.repair.record_files import LEDGER_RECORD, Key, all_keys, read_record
from skerry.types import Hunk


@dataclass
class Contents:
    """The sandboxes, snapshot, token and review that a test makes, by their ids."""

    named: str
    live: str
    unnamed: str
    snapshot: str
    token: str
    secret: str
    hunks: tuple[Hunk, ...]


def fill(server: Server) -> Contents:
    """A stopped named sandbox with a snapshot; two running sandboxes, of which one has a review with a decision."""
    volume = Volume.create("data", "64M", server=server.address)
    named = Sandbox.create(name="named", volumes={"/data": volume}, server=server.address)
    named.run("echo kept | tee /workspace/note > /data/note", check=True)
    snapshot = named.snapshot("deps").id
    named.stop()
    live = Sandbox.create(name="live", server=server.address)
    live.files.write("/workspace/app.py", "one\n")
    live.review.start()
    live.run("echo two > /workspace/app.py; echo three > /workspace/more.py", check=True)
    live.review.accept(live.review.changes("app.py").hunks[0])
    live.spawn(["sleep", "1234"])
    unnamed = Sandbox.create(server=server.address)
    unnamed.spawn(["sleep", "1234"])
    with server.http() as http:
        token = http.post("/v1/tokens", json={"scope": "use", "owner": "ann", "note": ""}).json()
    return Contents(
        named.id, live.id, unnamed.id, snapshot, token["id"], token["secret"], live.review.changes().hunks
    )  # fmt: skip


def check(server: Server, made: Contents) -> None:
    """Everything of `fill` is there: rows, files, processes, the snapshot, the token and the decisions."""
    with server.http() as http:
        states = {one["id"]: (one["name"], one["state"]) for one in http.get("/v1/sandboxes").json()["sandboxes"]}
        assert states == {
            made.named: ("named", "stopped"), made.live: ("live", "running"), made.unnamed: (None, "running"),
        }  # fmt: skip
        assert [one["id"] for one in http.get("/v1/tokens").json()["tokens"]] == [made.token]
        assert http.get("/v1/snapshots/deps").json()["id"] == made.snapshot
    live = Sandbox.get("live", server=server.address)
    assert live.review.changes().hunks == made.hunks
    assert {hunk.state for hunk in made.hunks} == {"accepted", "open"}
    for ref in (made.live, made.unnamed):
        assert Sandbox.get(ref, server=server.address).run("pgrep -c sleep").stdout == "1\n"
    assert Sandbox.get("named", server=server.address).run("cat /workspace/note /data/note").stdout == "kept\nkept\n"
    assert Volume.get("data", server=server.address).info.sandboxes == ("named",)
    with Sandbox(image="deps", server=server.address) as copy:
        assert copy.run("cat /workspace/note").stdout == "kept\n"
    Sandbox.get("named", server=server.address).stop()


def settle(server: Server) -> None:
    """Wait until the record files have the rows of the database."""

    def written() -> bool:
        with closing(sqlite3.connect(server.state_dir / "state.db")) as connection:
            return all(
                record is not None and record.tables == recorded(server, key)
                for key in all_keys(connection)
                for record in (read_record(connection, key),)
            )

    wait_until(written, "the record files to be written")


def recorded(server: Server, key: Key) -> object:
    kind, name = key
    folder = server.state_dir / "ledgers" / name if kind == "review" else server.state_dir / "pool" / "r"
    file = folder / (LEDGER_RECORD if kind == "review" else f"{name}.json")
    return json.loads(file.read_bytes())["tables"] if file.exists() else None


def clear(server: Server, made: Contents) -> None:
    server.remove_all()
    with server.http() as http:
        http.delete(f"/v1/snapshots/{made.snapshot}").raise_for_status()
        http.delete("/v1/volumes/data").raise_for_status()
    assert server.leftovers() == []
    assert list((server.state_dir / "pool" / "s").iterdir()) == []
    assert list((server.state_dir / "pool" / "u").iterdir()) == []
    assert list((server.state_dir / "ledgers").iterdir()) == []


def quarantined(server: Server) -> list[str]:
    return sorted(path.name for path in (server.state_dir / "quarantine").glob("*"))


def repair(server: Server, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skerry", "server", "repair", *args], capture_output=True, text=True, timeout=100,
        env={**os.environ, **FRUGAL, "SKERRY_STATE_DIR": str(server.state_dir)}, check=False,
    )  # fmt: skip


def remove(database: Path) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm", "state.db-held"):
        (database.parent / name).unlink(missing_ok=True)


def empty(database: Path) -> None:
    remove(database)
    database.touch(0o600)


def remove_file_only(database: Path) -> None:
    database.unlink()


def remove_log(database: Path) -> None:
    """The main file is an older state: a checkpoint has not written the log into it."""
    database.with_name("state.db-wal").unlink()
    database.with_name("state.db-shm").unlink(missing_ok=True)


@pytest.mark.parametrize("lose", [remove, empty, remove_file_only, remove_log])
def test_server_rebuilds_a_lost_database(own_server: Server, lose: Callable[[Path], None]) -> None:
    made = fill(own_server.start())
    settle(own_server)
    own_server.end(signal.SIGKILL)
    lose(own_server.state_dir / "state.db")
    own_server.start()
    check(own_server, made)
    assert "rebuilt the database" in own_server.log.read_text()
    own_server.end()
    own_server.start()  # the rebuilt database is complete: nothing is swept or rebuilt now
    check(own_server, made)
    assert quarantined(own_server) == []
    clear(own_server, made)


def truncate(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(database, database.stat().st_size // 2)


def overwrite(database: Path) -> None:
    remove(database)
    database.write_bytes(os.urandom(100_000))


def break_row(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE sandboxes SET spec = '{\"image\": 1' WHERE name = 'live'")
        connection.execute("UPDATE snapshots SET body = 'x'")


@pytest.mark.parametrize("damage", [truncate, overwrite, break_row])
def test_damaged_database_is_reported_and_repaired(own_server: Server, damage: Callable[[Path], None]) -> None:
    made = fill(own_server.start())
    settle(own_server)
    own_server.end(signal.SIGKILL)
    damage(own_server.state_dir / "state.db")
    own_server.start(wait=False)
    assert own_server.process is not None
    assert own_server.process.wait(30) > 0
    assert "skerry server repair" in own_server.tail()
    assert "Traceback" not in own_server.tail()
    before = sorted(path.name for path in own_server.state_dir.iterdir())
    planned = repair(own_server, "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert sorted(path.name for path in own_server.state_dir.iterdir()) == before
    done = repair(own_server, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["actions"] == json.loads(planned.stdout)["actions"] != []
    own_server.start()
    check(own_server, made)
    if damage is not break_row:
        assert list(own_server.state_dir.glob("state.db.corrupt-*"))
    clear(own_server, made)


def test_data_without_row_and_record_is_quarantined(own_server: Server) -> None:
    """Data of each kind and a running sandbox that nothing describes: none is deleted or killed."""
    made = fill(own_server.start())
    volume = Volume.get("data", server=own_server.address).id
    settle(own_server)
    own_server.end(signal.SIGKILL)
    remove(own_server.state_dir / "state.db")
    pool = own_server.state_dir / "pool"
    for file in (*(pool / "r").iterdir(), *own_server.state_dir.glob("ledgers/*/record.json")):
        file.unlink()
    own_server.start()
    for _ in range(2):
        with own_server.http() as http:
            assert http.get("/v1/sandboxes").json()["sandboxes"] == []
        listed = json.loads(repair(own_server, "--list", "--json").stdout)["quarantine"]
        assert {(one["kind"], one["id"]) for one in listed if one["kind"] != "snapshot"} == {
            ("upper", made.named), ("sandbox", made.live), ("sandbox", made.unnamed), ("ledger", made.live),
            ("volume", volume),
        }  # fmt: skip
        assert [one["kind"] for one in listed].count("snapshot") == 1
        pids = subprocess.run(["pgrep", "-xf", "sleep 1234"], capture_output=True, text=True, check=True).stdout
        assert len(pids.split()) >= 2
        note = next(Path(one["path"]) for one in listed if one["kind"] == "upper") / "upper" / "workspace" / "note"
        assert note.read_text() == "kept\n"
        assert (pool / "q" / f"volume-{volume}" / "upper" / "note").read_text() == "kept\n"
        own_server.end()
        own_server.start()
    done = repair(own_server, "--purge")
    assert done.returncode != 0  # a server is running
    own_server.end()
    assert repair(own_server, "--purge").returncode == 0
    assert quarantined(own_server) == []
    own_server.start()
    assert own_server.leftovers() == []


def test_foreign_database_is_not_used(own_server: Server, make_server: Callable[[], Server]) -> None:
    made = fill(own_server.start())
    settle(own_server)
    own_server.end()
    own_server.state_dir.joinpath("state.db").rename(own_server.state_dir / "state.db.mine")
    other = make_server().start()
    other.end()
    shutil.copyfile(other.state_dir / "state.db", own_server.state_dir / "state.db")
    own_server.start(wait=False)
    assert own_server.process is not None
    assert own_server.process.wait(30) > 0
    assert "skerry server repair" in own_server.tail()
    assert repair(own_server).returncode == 0
    own_server.start()
    check(own_server, made)
    clear(own_server, made)


def answers_patch(http: httpx2.Client, sandbox: str) -> bool:
    try:
        return http.patch(f"/v1/sandboxes/{sandbox}", json={"labels": {"a": "1"}}).is_success
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize("point", ["record.written", "record.renamed", "record.synced"])
def test_kill_at_a_step_of_record_writing_loses_nothing(own_server: Server, point: str) -> None:
    made = fill(own_server.start())
    settle(own_server)
    own_server.end()
    own_server.start(SKERRY_FAULT=point)
    with own_server.http() as http:
        wait_until(lambda: not answers_patch(http, made.live), "the server to be killed")
    assert own_server.process is not None
    assert own_server.process.wait(60) == -9
    remove(own_server.state_dir / "state.db")
    own_server.start()
    check(own_server, made)
    clear(own_server, made)


def test_backup_and_restore(own_server: Server, tmp_path: Path) -> None:
    made = fill(own_server.start())
    settle(own_server)
    archive = tmp_path / "backup.tar"

    def server_command(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skerry", "server", *args], capture_output=True, text=True, timeout=100,
            env={**os.environ, **FRUGAL, "SKERRY_STATE_DIR": str(own_server.state_dir)}, check=False,
        )  # fmt: skip

    done = server_command("backup", str(archive))
    assert done.returncode == 0, done.stderr
    assert archive.stat().st_mode & 0o777 == 0o600
    assert server_command("backup", str(archive)).returncode != 0  # it exists
    assert "server" in server_command("restore", str(archive)).stderr  # it is running
    own_server.end(signal.SIGKILL)
    refused = server_command("restore", str(archive))
    assert refused.returncode != 0
    assert "--force" in refused.stderr
    done = server_command("restore", "--force", str(archive))
    assert done.returncode == 0, done.stderr
    assert list(own_server.state_dir.glob("state.db.replaced-*"))
    own_server.start()
    check(own_server, made)
    own_server.end()
    remove(own_server.state_dir / "state.db")
    (own_server.state_dir / "usage.db").unlink()
    assert server_command("restore", "--force", str(archive)).returncode == 0
    with closing(sqlite3.connect(own_server.state_dir / "usage.db")) as usage:
        assert usage.execute("SELECT count(*) FROM days").fetchone() > (0,)
    own_server.start()
    check(own_server, made)
    clear(own_server, made)


def test_audit_log_is_restored_where_there_is_none_and_verifies(own_server: Server, tmp_path: Path) -> None:
    keys, archive = tmp_path / "keys", tmp_path / "backup.tar"
    environment = {"SKERRY_STATE_DIR": str(own_server.state_dir), "SKERRY_AUDIT_KEY_DIR": str(keys)}

    def restore() -> None:
        done = skerry("server", "restore", "--force", str(archive), **environment)
        assert done.returncode == 0, done.stderr

    def notes() -> set[str]:
        with Client(own_server.address) as client:
            report = client.audit.verify()
            assert report.ok, report
            return {record.params["note"] for record in client.audit.records(type="token.create")}

    def create_token(note: str) -> None:
        with Client(own_server.address) as client:
            client.tokens.create(note=note)

    own_server.start(**environment)
    create_token("before")
    assert skerry("server", "backup", str(archive), **environment).returncode == 0
    create_token("after")
    own_server.end()
    restore()
    own_server.start(**environment)
    assert notes() == {"before", "after"}  # the present log is newer, and stays
    own_server.end()

    shutil.rmtree(own_server.state_dir / "audit")
    restore()
    own_server.start(**environment)
    with Client(own_server.address) as client:
        problems = client.audit.verify().problems
    assert "are missing" in problems[0].problem  # the checkpoint beside the key knows of later records
    own_server.end()

    shutil.rmtree(own_server.state_dir / "audit")
    environment["SKERRY_AUDIT_KEY_DIR"] = str(tmp_path / "other")  # a new host
    restore()
    own_server.start(**environment)
    assert notes() == {"before"}
    own_server.end()


@pytest.mark.parametrize(
    "name", ["audit/../state.db", "audit/0000000000000001.jsonl/x", "/audit/0000000000000001.jsonl"]
)
def test_restore_extracts_no_other_names(tmp_path: Path, name: str) -> None:
    archive, audit = tmp_path / "backup.tar", tmp_path / "audit"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 4
        tar.addfile(member, io.BytesIO(b"data"))
        link = tarfile.TarInfo("audit-keys/link.pub")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    _restore_audit(archive, audit, tmp_path / "keys")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["audit", "backup.tar"]


def test_stopping_server_writes_all_records_before_it_unmounts_the_storage(own_server: Server) -> None:
    own_server.start()
    with own_server.http() as http:
        for _ in range(300):
            http.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).raise_for_status()
    assert own_server.end() == 0
    assert str(own_server.state_dir) not in Path("/proc/self/mounts").read_text()
    for file in own_server.state_dir.glob("state.db*"):
        file.unlink()
    own_server.start()
    with own_server.http() as http:
        assert len(http.get("/v1/tokens").json()["tokens"]) == 300
