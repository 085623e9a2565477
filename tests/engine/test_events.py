"""The table of events: numbered, bounded per owner, published after the write, read again after a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from skerry.engine.database import SCHEMA_VERSION, STEPS, Database
from skerry.engine.events import EventFilter, Events, PendingEvent
from skerry.types import Caller, Event, ProcessInfo

ANN, BOB = Caller(owner="ann", scope="use"), Caller(owner="bob", scope="use")
ADMIN = Caller(owner="local", scope="admin")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    database.close()


def news(what: str = "process.ended", owner: str = "ann", sandbox: str = "sb-a", **more: object) -> PendingEvent:
    return PendingEvent(what, owner, sandbox, None, 1.0, **more)  # type: ignore[arg-type]


async def listed(events: Events, wish: EventFilter, since: int | None = None) -> list[Event]:
    return [event async for page in events.read(wish, since, False) for event in page]


async def heard(pages: AsyncGenerator[list[Event], None], until: int) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(20), aclosing(pages):
        async for page in pages:
            found += page
            if found[-1].seq >= until:
                break
    return found


async def test_batch_is_written_later_and_then_published(database: Database) -> None:
    events = Events(database)
    following = asyncio.create_task(heard(events.read(EventFilter(ANN), None, True), 2))
    await asyncio.sleep(0)
    info = ProcessInfo(id="p-a", cmd="true", state="exited", pid=1, exit_code=3)
    events.publish(news("process.started"))
    events.publish(news(process=info))
    assert database.read("SELECT * FROM events") == []
    hello, started, ended = await following
    assert (hello.type, hello.seq) == ("hello", 0)
    assert (started.seq, ended.seq, ended.type, ended.process) == (1, 2, "process.ended", info)
    assert len(database.read("SELECT * FROM events")) == 2


async def test_pending_events_precede_a_later_change(database: Database) -> None:
    events = Events(database)
    events.publish(news())
    with events.transaction(news("sandbox.stopped")):
        pass
    assert [event.type for event in await listed(events, EventFilter(ANN))] == ["process.ended", "sandbox.stopped"]


async def test_failed_change_publishes_nothing_and_loses_nothing(database: Database) -> None:
    events = Events(database)
    events.publish(news("process.started"))
    with pytest.raises(ZeroDivisionError), events.transaction(news("sandbox.stopped")):
        raise ZeroDivisionError
    events.flush()
    assert [(event.seq, event.type) for event in await listed(events, EventFilter(ANN))] == [(1, "process.started")]


async def test_owner_sees_only_own_events_and_admin_sees_all(database: Database) -> None:
    events = Events(database)
    for owner in ("ann", "bob", "ann"):
        events.publish(news(owner=owner))
    events.flush()
    assert [event.seq for event in await listed(events, EventFilter(ANN))] == [1, 3]
    assert [event.seq for event in await listed(events, EventFilter(BOB))] == [2]
    assert [event.seq for event in await listed(events, EventFilter(ADMIN), since=1)] == [2, 3]


async def test_events_can_be_filtered_by_sandbox_and_type(database: Database) -> None:
    events = Events(database)
    events.publish(news("process.started", sandbox="sb-a"))
    events.publish(news("process.ended", sandbox="sb-b"))
    with events.transaction(PendingEvent("sandbox.stopped", "ann", "sb-b", "dev", 1.0)):
        pass
    assert [event.seq for event in await listed(events, EventFilter(ANN, type="process"))] == [1, 2]
    assert [event.seq for event in await listed(events, EventFilter(ANN, type="process.ended"))] == [2]
    assert [event.seq for event in await listed(events, EventFilter(ANN, sandbox="sb-b"))] == [2, 3]
    assert [event.seq for event in await listed(events, EventFilter(ANN, sandbox="dev"))] == [3]
    assert await listed(events, EventFilter(ANN, type="proc")) == []


async def test_oldest_events_of_an_owner_are_dropped_and_the_gap_is_reported(database: Database) -> None:
    events = Events(database, kept=10, slack=5)
    events.publish(news(owner="bob"))
    for _ in range(16):
        events.publish(news())
    events.flush()
    assert [event.seq for event in await listed(events, EventFilter(BOB))] == [1], "nobody's flood takes another's"
    assert [event.seq for event in await listed(events, EventFilter(ANN))] == list(range(8, 18))
    lost, *rest = await listed(events, EventFilter(ANN), since=2)
    assert (lost.type, lost.seq, len(rest)) == ("lost", 2, 10)
    assert [event.seq for event in await listed(events, EventFilter(ANN), since=7)] == list(range(8, 18))
    again = Events(database, kept=10, slack=5)
    assert (await listed(again, EventFilter(ANN), since=2))[0].type == "lost", "a restart does not forget it"


async def test_slow_subscriber_is_not_waited_for_and_gets_a_gap(database: Database) -> None:
    events = Events(database, kept=10, slack=5)
    slow = events.read(EventFilter(ANN), None, True)
    assert [event.type for event in await anext(slow)] == ["hello"]
    for _ in range(100):
        events.publish(news())
        events.flush()
    assert [event.type for event in await anext(slow)] == ["lost"]
    page = await anext(slow)
    assert 10 <= len(page) <= 15
    assert page[-1].seq == 100
    await slow.aclose()


async def test_numbers_continue_after_a_restart_without_events(database: Database) -> None:
    events = Events(database)
    for _ in range(3):
        events.publish(news())
    events.close()
    database.read("DELETE FROM events")
    again = Events(database)
    assert again.last == 3
    again.publish(news())
    again.close()
    assert [event.seq for event in await listed(again, EventFilter(ANN))] == [4]


async def test_keeper_sequence_is_written_with_its_event(database: Database) -> None:
    events = Events(database)
    events.publish(news(heard=7))
    assert database.read("SELECT * FROM heard") == database.read("SELECT * FROM events") == []
    assert events.heard("sb-a") == 7
    assert len(database.read("SELECT * FROM events")) == 1


async def test_full_disk_loses_events_only_while_it_is_full(database: Database) -> None:
    events = Events(database)
    pages = database.read("PRAGMA page_count")[0][0]
    database.read(f"PRAGMA max_page_count = {pages}")
    for _ in range(300):
        events.publish(news(reason="x" * 100))
    events.flush()
    assert await listed(events, EventFilter(ANN)) == []
    database.read("PRAGMA max_page_count = 1000000")
    events.close()
    assert len(await listed(events, EventFilter(ANN))) == 300


async def test_events_are_put_off_while_another_connection_writes(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop does not wait: the writer below ends on the same loop, after the attempt."""
    events = Events(database)
    following = asyncio.create_task(heard(events.read(EventFilter(ANN), None, True), 1))
    await asyncio.sleep(0)
    with database.connect().transaction():
        events.publish(news())
        events.flush(wait=False)
        assert database.read("SELECT * FROM events") == []
    assert [event.seq for event in await following] == [0, 1]
    assert not caplog.records


def test_old_database_is_migrated_and_keeps_its_events(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(STEPS[0] + "PRAGMA user_version = 1;")
        old.execute("INSERT INTO creates VALUES ('ann', 'k', x'00', 'sb-a', 1.0)")
        old.commit()
    with closing(Database(path)) as database:
        assert database.read("PRAGMA user_version")[0][0] == SCHEMA_VERSION
        assert database.read("SELECT sandbox FROM creates")[0][0] == "sb-a"
        assert database.read("SELECT count(*) FROM events")[0][0] == 0


def test_old_database_gets_the_new_field_names(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    spec = {
        "env": {"idle": "mine"}, "lifecycle": {"idle": "15m", "life": None, "wake": True, "on_idle": "stop"},
        "options": {"pool": False, "waive": ["no_swap"], "sudo": True},
        "network": {"allow": ["a.example"], "total": "1G"},
    }  # fmt: skip
    with closing(sqlite3.connect(path)) as old:
        old.executescript("".join(STEPS[:6]) + "PRAGMA user_version = 6;")
        columns = "INSERT INTO sandboxes (id, owner, state, spec, created_at) VALUES ('sb-a', 'ann', 'stopped', ?, 1.0)"
        old.execute(columns, (json.dumps(spec).encode(),))
        old.commit()
    with closing(Database(path)) as database:
        found = json.loads(database.read("SELECT spec FROM sandboxes")[0][0])
    assert found == {
        "env": {"idle": "mine"},
        "lifecycle": {"idle_timeout": "15m", "max_lifetime": None, "auto_resume": True, "on_idle": "stop"},
        "options": {"use_pool": False, "waive_guarantees": ["no_swap"], "sudo": True},
        "network": {"allow": ["a.example"], "max_bytes": "1G"},
    }


async def test_subscriber_beyond_the_last_number_gets_a_gap_and_later_events(database: Database) -> None:
    events = Events(database)
    events.publish(news())
    events.flush()
    pages = events.read(EventFilter(ANN), 5000, True)
    assert [(await anext(pages))[0].type for _ in range(2)] == ["hello", "lost"]
    events.publish(news())
    events.flush()
    assert (await anext(pages))[0].seq == 2
    await pages.aclose()
