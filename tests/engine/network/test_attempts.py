"""The log of network attempts: bounded, sanitised, ordered, and attributed to processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.engine.database import Database
from skerry.engine.network import denials
from skerry.engine.network.attempts import AttemptLog, ProcessByCgroup, WorkerProtocolError, checked
from skerry.network.messages import AttemptMessage
from skerry.types import NetworkAttempt, RunResult

BOX, OTHER = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"


def attempt(number: int = 0, **more: Any) -> NetworkAttempt:
    values: dict[str, Any] = {"kind": "connection", "host": "a.example", "decision": "denied", "why": "no rule"}
    return NetworkAttempt(**{"id": f"a{number}", "at": time.time(), **values, **more})


def tried(number: int = 0, sandbox: str = BOX, cgroup: int | None = None, **more: Any) -> AttemptMessage:
    return AttemptMessage(sandbox=sandbox, attempt=attempt(number, **more), cgroup=cgroup)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "state.db")
    yield made
    made.close()


async def pages(attempts: AttemptLog, sandbox: str = BOX, since: int = 0, denied: bool = False) -> list[NetworkAttempt]:
    return [one async for page in attempts.read(sandbox, since, False, denied) for one in page]


async def test_repeated_attempt_moves_to_the_end_and_is_listed_once(database: Database) -> None:
    attempts = AttemptLog(database)
    attempts.add(tried(1, decision="allowed", ended=False))
    attempts.add(tried(2))
    first = await pages(attempts)
    assert [one.id for one in first] == ["a1", "a2"]
    attempts.add(tried(1, decision="allowed", sent=10, received=20))
    again = await pages(attempts)
    assert [(one.id, one.ended, one.sent) for one in again] == [("a2", True, 0), ("a1", True, 10)]
    assert [one.id for one in await pages(attempts, since=first[-1].seq)] == ["a1"]
    assert [one.id for one in await pages(attempts, denied=True)] == ["a2"]
    attempts.close()


async def test_newest_attempts_are_kept_for_each_sandbox_separately(database: Database) -> None:
    attempts = AttemptLog(database, kept=100, slack=10)
    attempts.add(tried(0, OTHER))
    for number in range(1000):
        attempts.add(tried(number))
        if number % 7 == 0:
            attempts.flush()
    kept = await pages(attempts)
    assert 100 <= len(kept) <= 110
    assert kept[-1].id == "a999"
    assert len(await pages(attempts, OTHER)) == 1
    attempts.close()


async def test_follower_receives_attempts_until_the_sandbox_is_gone(database: Database) -> None:
    attempts = AttemptLog(database)
    attempts.add(tried(1))
    heard: list[str] = []

    async def follow() -> None:
        async for page in attempts.read(BOX, 0, True, False):
            heard.extend(one.id for one in page)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    attempts.add(tried(2))
    async with asyncio.timeout(10):
        while len(heard) < 2:
            await asyncio.sleep(0.01)
        attempts.forget(BOX)
        await following
    assert heard == ["a1", "a2"]
    assert await pages(attempts) == []
    attempts.close()


async def test_traffic_adds_up_across_server_restarts(database: Database) -> None:
    attempts = AttemptLog(database)
    attempts.count(BOX, 5, 7)
    assert attempts.traffic(BOX) == (5, 7)
    attempts.close()
    attempts = AttemptLog(database)
    attempts.count(BOX, 1, 1)
    assert attempts.traffic(BOX) == (6, 8)
    assert attempts.traffic(OTHER) == (0, 0)
    attempts.count(OTHER, 2, 0)
    assert attempts.all_traffic() == {BOX: (6, 8), OTHER: (2, 0)}
    attempts.close()


def test_text_from_a_sandbox_is_sanitised_by_the_server() -> None:
    shown = checked(attempt(host="evil\x1b[2Jhost\n", path="/\u202e" + "x" * 5000, hint="ok"), time.time())
    assert shown.host == "evil?[2Jhost?"
    assert shown.path is not None
    assert shown.path.isascii()
    assert len(shown.path) <= 2048
    assert shown.hint == "ok"


@pytest.mark.parametrize(
    "lie",
    [
        {"id": "../x"}, {"id": ""}, {"port": 65536}, {"port": -1}, {"sent": -1}, {"received": 1 << 60}, {"count": -5},
        {"at": -1.0}, {"at": 1e300}, {"duration_s": -1.0}, {"duration_s": 1e20},
    ],
)  # fmt: skip
def test_impossible_attempt_is_a_protocol_error(lie: dict[str, Any]) -> None:
    with pytest.raises(WorkerProtocolError):
        checked(replace(attempt(), **lie), time.time())


def test_worker_chooses_neither_process_nor_future_time_of_an_attempt() -> None:
    now = time.time()
    shown = checked(attempt(process="p-another", at=now + 1000, seq=7, secrets=("A", "no\x1b")), now)
    assert (shown.process, shown.at, shown.seq, shown.secrets) == (None, now, 0, ("A",))


def test_reused_cgroup_belongs_to_the_process_of_that_time() -> None:
    processes = ProcessByCgroup()
    processes.note(7, "p-1", 100.0)
    processes.note(7, "p-2", 200.0)
    processes.note(8, "p-3", 150.0)
    processes.note(0, "p-4", 0.0)
    assert [processes.find(7, at) for at in (99.5, 100.0, 199.0, 200.0, 999.0)] == ["p-1", "p-1", "p-1", "p-2", "p-2"]
    assert (processes.find(8, 10.0), processes.find(9, 100.0), processes.find(None, 100.0), processes.find(0, 1.0)) == (
        None,
    ) * 4


async def test_command_has_only_its_denials_and_each_once(database: Database) -> None:
    attempts = AttemptLog(database)
    tries = attempts.of(BOX)
    tries.processes.note(7, "p-1", 0.0)
    tries.processes.note(8, "p-2", 0.0)
    for number, cgroup in ((1, 7), (2, 8), (3, None), (1, 7)):
        attempts.add(tried(number, cgroup=cgroup))
    attempts.add(tried(4, cgroup=7, decision="allowed"))
    attempts.add(tried(5, cgroup=7, decision="allowed", hint="it is allowed, but could not be reached: it hangs"))
    assert [one.id for one in tries.unreached_by("p-1")] == ["a5"]
    assert tries.unreached_by("p-2") == ()
    assert [(one.id, one.process) for one in tries.denied_by("p-1")] == [("a1", "p-1")]
    assert [one.process for one in await pages(attempts)] == ["p-2", None, "p-1", "p-1", "p-1"]
    attempts.close()


def test_result_names_denied_destinations_and_the_rules_that_allow_them() -> None:
    end = RunResult(id="p-1", exit_code=1, signal=None, duration_s=1.0, timed_out=False)
    assert denials.add(end, ()) is end
    told = denials.add(
        end,
        (
            attempt(1, kind="name", hint="--allow a.example"),
            attempt(2, port=443, hint="--allow a.example", why="no rule names it"),
            attempt(3, host="10.0.0.1", port=5432, why="it is private", hint="--allow 10.0.0.1:5432"),
        ),
    )
    assert len(told.denied) == 3
    assert told.hint == (
        'refused: a.example:443 (no rule names it); allow it with network=Network(allow=["a.example"])'
        " or --allow a.example; 10.0.0.1:5432 (it is private); allow it with"
        ' network=Network(allow=["10.0.0.1:5432"]) or --allow 10.0.0.1:5432'
    )
    assert denials.add(replace(end, hint="out of time"), told.denied).hint == "out of time"


def test_failed_command_names_unreachable_destinations() -> None:
    end = RunResult(id="p-1", exit_code=56, signal=None, duration_s=1.0, timed_out=False)
    reason = "it is allowed, but could not be reached: Name or service not known"
    unreached = attempt(1, port=443, decision="allowed", hint=reason)
    told = denials.add(end, (unreached, replace(unreached, id="a2")))
    assert (told.denied, told.hint) == (
        (),
        "a.example:443 is allowed, but could not be reached: Name or service not known",
    )
    assert denials.add(replace(end, exit_code=0), (unreached,)).hint is None
    refused = attempt(3, port=80, hint="--allow b.example")
    assert denials.add(end, (refused, unreached)).denied == (refused,)


async def test_attempts_of_a_full_disk_are_counted_once_and_written_later(database: Database) -> None:
    attempts = AttemptLog(database, kept=100, slack=10)
    attempts.add(tried(0))
    attempts.flush()
    pages_now = database.read("PRAGMA page_count")[0][0]
    database.read(f"PRAGMA max_page_count = {pages_now}")
    for number in range(1, 60):
        attempts.add(tried(number, host="x" * 200, path="/" + "y" * 2000))
    for _ in range(5):  # 5 × 59 is more than `kept` and `slack` allow
        attempts.flush()
    assert attempts.decisions["denied"] == 1
    database.read("PRAGMA max_page_count = 1000000")
    assert [one.id for one in await pages(attempts)] == [f"a{number}" for number in range(60)]
    assert attempts.decisions["denied"] == 60
    attempts.close()
