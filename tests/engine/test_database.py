"""The schema of the database: older ones are brought up to date, newer ones are refused before any change."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.cli import skerry
from support.server import Server

from skerry.engine.database import SCHEMA_VERSION, STEPS, Database, check_schema, migrate
from skerry.errors import HostUnsupported

# The first digits of the SHA-256 of each step. A step that was released never changes: databases went through it.
# A new step is added at the end, here and in STEPS.
RELEASED = ["38481722", "7433bbf7", "aeaaa5b7", "73b2d5d7", "6cdd43bd", "4e9623fb", "c8e7ca7e", "b7a2831b"]
SANDBOX = {"lifecycle": {"idle": "1m", "wake": False}, "options": {"pool": True}, "network": {"total": 5}}


def older(path: Path, version: int) -> None:
    """Write a database of an older version with one sandbox."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, 0, version)
        values = ("sb-aaaaaaaaaa", "me", "old", "stopped", None, msgspec.json.encode(SANDBOX), None, 1.0, *[None] * 6)
        connection.execute(f"INSERT INTO sandboxes VALUES ({', '.join('?' * 14)})", values)


def names(state_dir: Path) -> list[str]:
    """Return all files except those that SQLite makes to read the database."""
    return sorted(str(path) for path in state_dir.rglob("*") if not path.name.startswith("state.db-"))


def test_released_steps_never_change() -> None:
    digests = [hashlib.sha256(step.encode()).hexdigest()[:8] for step in STEPS]
    assert digests[: len(RELEASED)] == RELEASED


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_older_database_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    older(tmp_path / "state.db", version)
    new = Database(tmp_path / "fresh.db")
    database = Database(tmp_path / "state.db")
    schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"
    try:
        assert [tuple(row) for row in database.read(schema)] == [tuple(row) for row in new.read(schema)]
        ((kept, spec),) = (tuple(row) for row in database.read("SELECT id, spec FROM sandboxes"))
    finally:
        database.close()
        new.close()
    assert kept == "sb-aaaaaaaaaa"
    if version < 7:  # the step that renames fields
        assert msgspec.json.decode(spec)["lifecycle"] == {"idle_timeout": "1m", "auto_resume": False}


def test_newer_database_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    older(path, SCHEMA_VERSION)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    for refuse in (check_schema, Database):
        with pytest.raises(HostUnsupported, match=f"newer Skerry \\(schema {SCHEMA_VERSION + 1}"):
            refuse(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
    assert path.read_bytes()[100:] == before[100:]  # the header notes the write-ahead log


def test_server_does_not_start_on_a_newer_state_directory(own_server: Server) -> None:
    own_server.start()
    own_server.end()
    own_server.sql("PRAGMA user_version = 999")
    files = names(own_server.state_dir)
    done = skerry("serve", SKERRY_STATE_DIR=str(own_server.state_dir))
    assert done.returncode == 125
    assert b"was written by a newer Skerry (schema 999, this one knows" in done.stderr
    assert b"hint: use that version" in done.stderr
    assert names(own_server.state_dir) == files
    own_server.sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    own_server.start()
