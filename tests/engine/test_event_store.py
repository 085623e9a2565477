"""The table of events: numbered, bounded for each owner, told after it is written, read again after a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from skerry.engine.database import SCHEMA_VERSION, STEPS, Database
from skerry.engine.events import Events, News, Wish
from skerry.types import Caller, Event, ProcessInfo

ANN, BOB = Caller(owner="ann", scope="use"), Caller(owner="bob", scope="use")
ADMIN = Caller(owner="local", scope="admin")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    database.close()


def news(what: str = "process.ended", owner: str = "ann", sandbox: str = "sb-a", **more: object) -> News:
    return News(what, owner, sandbox, None, 1.0, **more)  # type: ignore[arg-type]


async def listed(events: Events, wish: Wish, since: int | None = None) -> list[Event]:
    return [event async for page in events.read(wish, since, False) for event in page]


async def heard(pages: AsyncGenerator[list[Event], None], until: int) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(20), aclosing(pages):
        async for page in pages:
            found += page
            if found[-1].seq >= until:
                break
    return found


async def test_a_batch_is_written_a_moment_later_and_then_told(database: Database) -> None:
    events = Events(database)
    following = asyncio.create_task(heard(events.read(Wish(ANN), None, True), 2))
    await asyncio.sleep(0)
    info = ProcessInfo(id="p-a", cmd="true", state="exited", pid=1, exit_code=3)
    events.tell(news("process.started"))
    events.tell(news(process=info))
    assert database.read("SELECT * FROM events") == []
    hello, started, ended = await following
    assert (hello.type, hello.seq) == ("hello", 0)
    assert (started.seq, ended.seq, ended.type, ended.process) == (1, 2, "process.ended", info)
    assert len(database.read("SELECT * FROM events")) == 2


async def test_what_was_told_before_a_change_comes_before_it(database: Database) -> None:
    events = Events(database)
    events.tell(news())
    with events.transaction(news("sandbox.stopped")):
        pass
    assert [event.type for event in await listed(events, Wish(ANN))] == ["process.ended", "sandbox.stopped"]


async def test_a_change_that_fails_tells_nothing_and_loses_nothing(database: Database) -> None:
    events = Events(database)
    events.tell(news("process.started"))
    with pytest.raises(ZeroDivisionError), events.transaction(news("sandbox.stopped")):
        raise ZeroDivisionError
    events.flush()
    assert [(event.seq, event.type) for event in await listed(events, Wish(ANN))] == [(1, "process.started")]


async def test_owners_see_their_own_and_an_admin_sees_all(database: Database) -> None:
    events = Events(database)
    for owner in ("ann", "bob", "ann"):
        events.tell(news(owner=owner))
    events.flush()
    assert [event.seq for event in await listed(events, Wish(ANN))] == [1, 3]
    assert [event.seq for event in await listed(events, Wish(BOB))] == [2]
    assert [event.seq for event in await listed(events, Wish(ADMIN), since=1)] == [2, 3]


async def test_one_sandbox_and_one_type_can_be_chosen(database: Database) -> None:
    events = Events(database)
    events.tell(news("process.started", sandbox="sb-a"))
    events.tell(news("process.ended", sandbox="sb-b"))
    with events.transaction(News("sandbox.stopped", "ann", "sb-b", "dev", 1.0)):
        pass
    assert [event.seq for event in await listed(events, Wish(ANN, type="process"))] == [1, 2]
    assert [event.seq for event in await listed(events, Wish(ANN, type="process.ended"))] == [2]
    assert [event.seq for event in await listed(events, Wish(ANN, sandbox="sb-b"))] == [2, 3]
    assert [event.seq for event in await listed(events, Wish(ANN, sandbox="dev"))] == [3]
    assert await listed(events, Wish(ANN, type="proc")) == []


async def test_the_oldest_of_an_owner_go_and_whoever_asked_for_them_is_told(database: Database) -> None:
    events = Events(database, kept=10, slack=5)
    events.tell(news(owner="bob"))
    for _ in range(16):
        events.tell(news())
    events.flush()
    assert [event.seq for event in await listed(events, Wish(BOB))] == [1], "nobody's flood takes another's"
    assert [event.seq for event in await listed(events, Wish(ANN))] == list(range(8, 18))
    lost, *rest = await listed(events, Wish(ANN), since=2)
    assert (lost.type, lost.seq, len(rest)) == ("lost", 2, 10)
    assert [event.seq for event in await listed(events, Wish(ANN), since=7)] == list(range(8, 18))
    again = Events(database, kept=10, slack=5)
    assert (await listed(again, Wish(ANN), since=2))[0].type == "lost", "a restart does not forget it"


async def test_a_listener_that_is_slow_is_not_waited_for_and_told_what_it_missed(database: Database) -> None:
    events = Events(database, kept=10, slack=5)
    slow = events.read(Wish(ANN), None, True)
    assert [event.type for event in await anext(slow)] == ["hello"]
    for _ in range(100):
        events.tell(news())
        events.flush()
    assert [event.type for event in await anext(slow)] == ["lost"]
    page = await anext(slow)
    assert 10 <= len(page) <= 15
    assert page[-1].seq == 100
    await slow.aclose()


async def test_numbers_go_on_after_a_restart_also_when_all_were_dropped(database: Database) -> None:
    events = Events(database)
    for _ in range(3):
        events.tell(news())
    events.close()
    database.read("DELETE FROM events")
    again = Events(database)
    assert again.last == 3
    again.tell(news())
    again.close()
    assert [event.seq for event in await listed(again, Wish(ANN))] == [4]


async def test_a_keepers_number_is_written_together_with_its_event(database: Database) -> None:
    events = Events(database)
    events.tell(news(heard=7))
    assert database.read("SELECT * FROM heard") == database.read("SELECT * FROM events") == []
    assert events.heard("sb-a") == 7
    assert len(database.read("SELECT * FROM events")) == 1


async def test_a_full_disk_costs_events_only_while_it_is_full(database: Database) -> None:
    events = Events(database)
    pages = database.read("PRAGMA page_count")[0][0]
    database.read(f"PRAGMA max_page_count = {pages}")
    for _ in range(300):
        events.tell(news(reason="x" * 100))
    events.flush()
    assert await listed(events, Wish(ANN)) == []
    database.read("PRAGMA max_page_count = 1000000")
    events.close()
    assert len(await listed(events, Wish(ANN))) == 300


def test_an_old_database_is_brought_up_and_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(STEPS[0] + "PRAGMA user_version = 1;")
        old.execute("INSERT INTO creates VALUES ('ann', 'k', x'00', 'sb-a', 1.0)")
        old.commit()
    with closing(Database(path)) as database:
        assert database.read("PRAGMA user_version")[0][0] == SCHEMA_VERSION
        assert database.read("SELECT sandbox FROM creates")[0][0] == "sb-a"
        assert database.read("SELECT count(*) FROM events")[0][0] == 0


async def test_whoever_knows_more_than_there_is_is_told_and_hears_what_comes(database: Database) -> None:
    events = Events(database)
    events.tell(news())
    events.flush()
    pages = events.read(Wish(ANN), 5000, True)
    assert [(await anext(pages))[0].type for _ in range(2)] == ["hello", "lost"]
    events.tell(news())
    events.flush()
    assert (await anext(pages))[0].seq == 2
    await pages.aclose()
