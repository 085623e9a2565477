"""Decisions in the database: replaced by path, at a cost that does not depend on the other decisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skerry.engine.database import Database
from skerry.engine.review.tables import Apply, ApplyState, DecisionTable


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "state.db")) as made:
        yield made


def decisions(count: int, body: bytes = b"accepted") -> dict[bytes, bytes]:
    return {b"d/f%d" % number: body for number in range(count)}


def steps_of_put(table: DecisionTable, decided: dict[bytes, bytes]) -> int:
    """Return how many virtual machine instructions, in hundreds, SQLite needs to store these decisions."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    table._connection._connection.set_progress_handler(count, 100)
    try:
        table.put("sb-1", decided)
    finally:
        table._connection._connection.set_progress_handler(None, 0)
    return steps


def test_put_replaces_decisions_by_path(database: Database) -> None:
    table = DecisionTable(database)
    key, decided = table.state("sb-1")
    assert (len(key), decided) == (32, {})
    table.put("sb-1", {b"a": b"1", b"b": b"1", b"c": b"1"})
    table.put("sb-2", {b"a": b"9"})
    table.put("sb-1", {b"a": b"2", b"b": b"", b"d": b"1", b"never": b""})
    assert table.state("sb-1") == (key, {b"a": b"2", b"c": b"1", b"d": b"1"})
    assert table.state("sb-2")[1] == {b"a": b"9"}


def test_put_sets_the_state_of_an_apply_in_the_same_transaction(database: Database) -> None:
    table = DecisionTable(database)
    table.begin("sb-1", Apply("one", ApplyState.APPLYING, b"body"))
    table.put("sb-1", {b"a": b""}, ("one", ApplyState.APPLIED))
    assert table.apply("sb-1", "one") == Apply("one", ApplyState.APPLIED, b"body")


def test_cost_of_a_decision_does_not_grow_with_their_number(database: Database) -> None:
    table = DecisionTable(database)
    few = steps_of_put(table, decisions(500))
    again = steps_of_put(table, decisions(500, b"rejected"))
    many = steps_of_put(table, decisions(5_000))
    assert few > 0
    assert many < 20 * few
    assert steps_of_put(table, decisions(500)) < 4 * again


def test_event_loop_can_write_while_many_decisions_are_prepared(database: Database) -> None:
    table = DecisionTable(database)
    database._connection.execute("PRAGMA busy_timeout = 0")

    class Writes(dict[bytes, bytes]):
        def items(self):  # type: ignore[no-untyped-def]
            for number in range(3):
                with database.transaction() as cursor:
                    cursor.execute("INSERT INTO traffic VALUES (?, 0, 0)", (f"sb-{number}",))
                yield b"%d" % number, b"accepted"

    table.put("sb-1", Writes())
    assert len(table.state("sb-1")[1]) == len(database.read("SELECT * FROM traffic")) == 3


def test_connections_are_closed_with_the_database(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    DecisionTable(database).put("sb-1", {b"a": b"1"})
    database.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.db", "state.db-held"]
