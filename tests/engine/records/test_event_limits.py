"""Rate limits of event records: a flood is bounded, is counted, and hides nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.engine.database import Database
from skerry.engine.network.attempts import MAX_SUBJECTS, AttemptLog
from skerry.engine.records.audit import event_limits, service
from skerry.engine.records.audit.event_limits import MAX_EVENTS, BucketKey, EventLimiter
from skerry.engine.records.audit.index import AuditFilter, AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService
from skerry.network.messages import AttemptMessage
from skerry.types import AuditRecord, Caller, NetworkAttempt

BOX = "sb-aaaaaaaaaa"


def opened(root: Path) -> AuditService:
    (root / "state").mkdir(exist_ok=True)
    keys = KeyStore(root / "keys", root / "state")
    log = AuditLog(root / "state" / "audit", keys, keep_s=None)
    return AuditService(keys, log, AuditIndex(root / "state" / "audit" / "index.db"), "boundary")


@pytest.fixture
async def audit(tmp_path: Path) -> AsyncIterator[AuditService]:
    made = opened(tmp_path)
    yield made
    await made.close()


async def records(audit: AuditService, kind: str) -> list[AuditRecord]:
    page = await audit.list(Caller(owner="ann", scope="use"), AuditFilter(type=kind), None, 1000)
    return list(reversed(page.records))


def attempt(number: int, decision: str, **more: Any) -> AttemptMessage:
    values = {"id": f"a{number}", "at": time.time(), "kind": "connection", "host": "x.example", "why": "a rule"}
    return AttemptMessage(sandbox=BOX, attempt=NetworkAttempt(**{**values, "decision": decision, **more}), cgroup=None)


async def test_flood_of_attempts_hides_no_other_rule_and_no_secret(audit: AuditService, tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    attempts = AttemptLog(database, audit)
    for number in range(1000):
        attempts.add(attempt(number, "denied"), "ann")
    for number in range(1000, 2000):
        attempts.add(attempt(number, "allowed", rule="*.example"), "ann")
    for number in range(2000, 3000):
        attempts.add(attempt(number, "allowed", rule="api.example", secrets=("FIRST",)), "ann")
    attempts.add(attempt(3000, "allowed", host="paste.example", rule="paste.example"), "ann")
    attempts.add(attempt(3001, "allowed", host="pay.example", rule="api.example", secrets=("FIRST", "SECOND")), "ann")
    attempts.close()
    database.close()
    found = await records(audit, "network.allowed")
    assert [one.params["host"] for one in found[-2:]] == ["paste.example", "pay.example"]
    assert found[-1].params["secrets"] == ["FIRST", "SECOND"]
    assert len(found) < 3 * MAX_EVENTS
    assert len(await records(audit, "network.denied")) < 2 * MAX_EVENTS


async def test_lying_worker_cannot_avoid_the_limit_with_invented_rules(audit: AuditService, tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db")
    attempts = AttemptLog(database, audit)
    for number in range(3000):
        attempts.add(attempt(number, "allowed", rule=f"host{number}.example"), "ann")
    attempts.close()
    database.close()
    assert len(await records(audit, "network.allowed")) < MAX_SUBJECTS + 2 * MAX_EVENTS


async def test_number_of_omitted_events_is_recorded_without_a_later_event(
    audit: AuditService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OMITTED_DELAY_S", 0.01)
    for _ in range(1000):
        audit.event("network.denied", owner="ann", sandbox=BOX, params={"host": "x"})
    async with asyncio.timeout(60):
        while not [one for one in await records(audit, "network.denied") if "omitted" in one.params]:
            await asyncio.sleep(0)
    found = await records(audit, "network.denied")
    told = [one for one in found if "host" in one.params]
    assert sum(one.params.get("omitted", 0) for one in found) == 1000 - len(told)
    assert told[MAX_EVENTS - 1].params["limited"] is True
    assert not any("limited" in one.params for one in told[: MAX_EVENTS - 1])


async def test_number_of_omitted_events_survives_a_restart(tmp_path: Path) -> None:
    audit = opened(tmp_path)
    for _ in range(1000):
        audit.event("network.allowed", owner="ann", sandbox=BOX, params={"host": "x"}, subjects=["secret KEY"])
    await audit.close()
    audit = opened(tmp_path)
    found = await records(audit, "network.allowed")
    await audit.close()
    assert found[-1].sandbox == BOX
    assert found[-1].params["subject"] == "secret KEY"
    written = [one for one in found if "host" in one.params]
    assert sum(one.params.get("omitted", 0) for one in found) == 1000 - len(written)


async def test_number_of_events_on_a_full_disk_is_recorded_later(
    audit: AuditService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses the write; here, because the descriptor is closed for writing."""
    log = audit._log
    writable, readable = log._fd, os.open(log.segments[-1].path, os.O_RDONLY | os.O_CLOEXEC)
    log._fd = readable
    audit.event("limit.memory", owner="ann", sandbox=BOX, params={})
    log._fd = writable
    os.close(readable)
    audit.event("limit.memory", owner="ann", sandbox=BOX, params={})
    (found,) = await records(audit, "limit.memory")
    assert found.params == {"omitted": 1}


def test_evicted_limits_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_limits, "MAX_BUCKETS", 10)
    limiter, flooded = EventLimiter(), BucketKey("ann", BOX, "network.denied")
    admitted = [limiter.admit([flooded], 1.0) for _ in range(500)]
    assert [one is not None for one in admitted].count(True) == MAX_EVENTS
    for number in range(20):
        assert limiter.admit([BucketKey("eve", f"sb-{number}", "limit.pids")], 1.0) is not None
    assert limiter.take_omitted() == {flooded: 300}
    assert limiter.take_omitted() == {}


def test_clock_that_stands_still_or_goes_back_admits_no_more() -> None:
    limiter, key = EventLimiter(), BucketKey("ann", BOX, "network.denied")
    assert sum(limiter.admit([key], 100.0 - number) is not None for number in range(500)) == MAX_EVENTS
