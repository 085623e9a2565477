"""The rebuild of a database from record files, without a server: names, half-made sandboxes, damaged files, growth."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from skerry.config import load
from skerry.engine.database import migrate
from skerry.engine.events import Events
from skerry.engine.host import Host
from skerry.engine.repair.quarantine import Quarantine, read_entries
from skerry.engine.repair.rebuild import examine, open_database, record_files
from skerry.engine.repair.record_files import RecordFile, read_record
from skerry.engine.sandboxes.record import RecordState, SandboxRecord, SandboxSpec, SandboxTable
from skerry.errors import Conflict, HostUnsupported
from skerry.storage.driver import PlainDriver
from skerry.types import CreateRequest, Lifecycle, Limits, Network, Options

SPEC = SandboxSpec(
    image="base", image_digest="", layers=(), user="root", cwd="/", image_env={}, env={}, labels={}, limits=Limits(),
    lifecycle=Lifecycle(), network=Network(), options=Options(),
)  # fmt: skip
ONE, TWO = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"


def record(sandbox: str, name: str | None = None, state: RecordState = "stopped", owner: str = "me") -> SandboxRecord:
    return SandboxRecord(id=sandbox, owner=owner, name=name, state=state, spec=SPEC, created_at=1763289600.1234567)


class State:
    """A state directory with a database and the uppers of its sandboxes."""

    def __init__(self, directory: Path) -> None:
        driver = PlainDriver(directory, min_free=0)
        driver.prepare()
        self.host = Host(load(environ={"SKERRY_STATE_DIR": str(directory)}), driver)
        self.path = directory / "state.db"
        self.database = open_database(self.path, self.host)

    def insert(self, *records: SandboxRecord, upper: bool = True) -> None:
        for one in records:
            SandboxTable(self.database, Events(self.database)).insert((one,), CreateRequest(), None)
            if upper:
                self.host.driver.create(one.id, 1 << 20)

    def lose(self) -> None:
        """Close the database, which completes the record files, and remove it."""
        self.database.close()
        for path in self.path.parent.glob("state.db*"):
            path.unlink()

    def reopen(self) -> list[SandboxRecord]:
        self.database = open_database(self.path, self.host)
        return SandboxTable(self.database, Events(self.database)).all()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path)
    yield made
    made.database.close()


async def test_rebuilt_rows_equal_the_lost_ones(state: State) -> None:
    first, second = record(ONE, "named"), record(TWO)
    state.insert(first, second)
    [(identity, change)] = [tuple(row) for row in state.database.read("SELECT id, change FROM identity")]
    state.lose()
    assert {one.id: one for one in state.reopen()} == {ONE: first, TWO: second}
    [row] = state.database.read("SELECT * FROM identity")
    assert (row["id"], row["generation"]) == (identity, 2)
    assert row["change"] > change


async def test_of_two_sandboxes_with_one_name_the_newer_keeps_it(state: State) -> None:
    state.insert(record(ONE, "taken"))
    stale = state.host.driver.records / f"{ONE}.json"
    state.database.close()
    before = stale.read_bytes()
    state.reopen()
    SandboxTable(state.database, Events(state.database)).update(record(ONE, "taken"), name=None)
    state.insert(record(TWO, "taken"))
    state.lose()
    stale.write_bytes(before)
    names = {one.id: one.name for one in state.reopen()}
    assert names[TWO] == "taken"
    assert (names[ONE] or "").startswith("taken-")


async def test_sandbox_that_was_being_created_is_set_aside(state: State, tmp_path: Path) -> None:
    """It may have been running since; one of the pool can't have been, because a claim removes its record file."""
    state.insert(record(ONE, state="creating"), record(TWO, state="creating", owner=""))
    state.lose()
    assert [one.id for one in state.reopen()] == [TWO]
    [entry] = read_entries(tmp_path / "quarantine").values()
    assert msgspec.json.decode(entry.content or "", type=RecordFile).id == ONE
    await Quarantine(state.host, state.database).take_upper(ONE)
    assert state.host.driver.uppers() == {TWO}


async def test_claim_removes_the_record_file_first(state: State) -> None:
    state.insert(record(ONE, state="ready", owner=""))
    state.database.close()
    file = state.host.driver.records / f"{ONE}.json"
    assert file.exists()
    state.reopen()
    state.insert(record(TWO, "taken"))
    claimed = record(ONE, "taken", state="running")
    with pytest.raises(Conflict):  # the row is not changed then
        SandboxTable(state.database, Events(state.database)).claim(claimed, CreateRequest(), None)
    assert not file.exists()


async def test_record_without_data_and_damaged_record_are_skipped(state: State) -> None:
    state.insert(record(ONE), upper=False)
    state.insert(record(TWO))
    state.lose()
    (state.host.driver.records / "sb-cccccccccc.json").write_text("{")
    assert [one.id for one in state.reopen()] == [TWO]


async def test_record_with_an_unknown_column_is_set_aside_and_runs_no_sql(state: State) -> None:
    state.insert(record(ONE), record(TWO))
    state.lose()
    path = state.host.driver.records / f"{TWO}.json"
    spoiled = msgspec.json.decode(path.read_bytes())
    spoiled["tables"]["sandboxes"][0]['id") VALUES (?); --'] = 1
    path.write_bytes(msgspec.json.encode(spoiled))
    assert [one.id for one in state.reopen()] == [ONE]
    assert "has no column" in str(read_entries(state.path.parent / "quarantine"))


async def test_deleted_sandbox_does_not_come_back_with_an_older_database(state: State, tmp_path: Path) -> None:
    first, second = record(ONE, "gone"), record(TWO, "kept")
    state.insert(first, second)
    state.database.close()
    old = state.path.read_bytes()
    state.reopen()
    table = SandboxTable(state.database, Events(state.database))
    table.remove(first)
    state.host.driver.delete(ONE)
    table.update(second, reason="later")
    state.lose()
    state.path.write_bytes(old)
    assert [(one.id, one.reason) for one in state.reopen()] == [(TWO, "later")]
    assert list(tmp_path.glob("state.db.replaced-*"))


async def test_record_of_a_newer_version_stops_the_start(state: State) -> None:
    state.insert(record(ONE))
    state.database.close()
    file = state.host.driver.records / f"{ONE}.json"
    newer = msgspec.structs.replace(msgspec.json.decode(file.read_bytes(), type=RecordFile), schema=999)
    file.write_bytes(msgspec.json.encode(newer))
    with pytest.raises(HostUnsupported, match="newer"):
        state.reopen()


async def test_bad_row_stops_the_start_with_the_repair_command(state: State) -> None:
    state.insert(record(ONE))
    with state.database.transaction() as cursor:
        cursor.execute("UPDATE sandboxes SET state = 'dreaming'")
    state.database.close()
    with pytest.raises(Conflict, match="dreaming") as raised:
        state.reopen()
    assert "skerry server repair" in (raised.value.hint or "")
    assert examine(state.path, record_files(state.host)).bad_rows.keys() == {("sandbox", ONE)}


async def test_leftover_of_this_database_is_distinguished_from_unknown_data(state: State) -> None:
    quarantine = Quarantine(state.host, state.database)
    quarantine.expect("upper", ONE)
    assert quarantine.leftovers("upper", {ONE, TWO}) == {ONE}
    quarantine.set_known("upper", ())
    assert quarantine.leftovers("upper", {ONE, TWO}) == set()


def test_older_database_gets_record_files_at_its_first_start(tmp_path: Path) -> None:
    """A database from before record files is trusted: its sandboxes are recorded at the first start."""
    state = State(tmp_path)
    state.lose()
    with closing(sqlite3.connect(state.path)) as connection:
        migrate(connection, 0, 7)
        values = (ONE, "me", "old", "stopped", None, msgspec.json.encode(SPEC), None, 1.0, *[None] * 6)
        connection.execute(f"INSERT INTO sandboxes VALUES ({', '.join('?' * 14)})", values)
        connection.commit()
    state.host.driver.create(ONE, 1 << 20)
    database = open_database(state.path, state.host)
    database.close()
    with closing(sqlite3.connect(state.path)) as connection:
        assert read_record(connection, ("sandbox", ONE)) is not None
    assert (state.host.driver.records / f"{ONE}.json").exists()
