"""Usage on disk: groups, bounds, retention."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from skerry.engine.records.usage.account import Sample
from skerry.engine.records.usage.store import MAX_GAP_S, AccountRow, StoredState, UsageFilter, UsageStore
from skerry.errors import HostUnsupported
from skerry.types import UsageTotals

DAY = "2026-11-16"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[UsageStore]:
    made = UsageStore(tmp_path / "usage.db")
    yield made
    made.close()


def account(number: int, deleted_at: float | None = None, **labels: str) -> AccountRow:
    state = StoredState("running", 5.0, 1.0, "boot", "1 2 boot", Sample(1.0, cpu_s=2.0, memory=3, disk=None))
    return AccountRow(
        id=f"sb-{number:010d}", owner=f"owner-{number % 2}", actor="uid:0", image="base", name=None, labels=labels,
        created_at=1.0, totals=UsageTotals(cpu_s=1.0), state=state if deleted_at is None else None,
        deleted_at=deleted_at,
    )  # fmt: skip


def test_account_is_read_back_with_its_counters(store: UsageStore) -> None:
    row = account(1, task="x")
    store.save([(row, {DAY: UsageTotals(cpu_s=0.5)})], durable=True)
    store.save([(row, {DAY: UsageTotals(cpu_s=0.25, memory_peak=9, sent=3)})])
    assert store.open_accounts() == [row]
    (found,), total, more = store.groups("sandbox", UsageFilter())
    assert found.usage == UsageTotals(cpu_s=0.75, memory_peak=9, sent=3)
    assert (total.usage, total.sandboxes, more) == (found.usage, 1, 0)
    assert store.totals(UsageFilter(label=("task", "x"))).cpu_s == 1.0
    assert store.totals(UsageFilter(label=("task", "y"))) == UsageTotals()


def test_ten_thousand_labels_are_bounded(store: UsageStore) -> None:
    nasty = ["a,b", "c\nd", '"e"', "';--", "x" * 1024, "=1+1"]
    values = [*nasty, *(f"value {number}" for number in range(10_000))]
    rows = [(account(n, task=value), {DAY: UsageTotals(cpu_s=1.0)}) for n, value in enumerate(values)]
    store.save([*rows, (account(20_000), {DAY: UsageTotals(cpu_s=0.5)})])
    found, total, more = store.groups("label:task", UsageFilter(), 100)
    assert (len(found), more, total.sandboxes) == (100, len(values) + 1 - 100, len(values) + 1)
    assert total.usage.cpu_s == len(values) + 0.5
    keys = {row.key for row in store.groups("label:task", UsageFilter(), 20_000)[0]}
    assert keys == {*values, None}
    assert store.groups("label:other", UsageFilter())[0][0].key is None
    half = store.groups("owner", UsageFilter(owner="owner-1"))[0]
    assert [row.key for row in half] == ["owner-1"]


def test_old_days_are_removed_with_the_sandboxes_that_had_them(store: UsageStore) -> None:
    store.save([
        (account(1, deleted_at=86400.0), {"1970-01-02": UsageTotals(cpu_s=1.0)}),
        (account(2), {"1970-01-02": UsageTotals(cpu_s=1.0), DAY: UsageTotals(cpu_s=2.0)}),
    ])  # fmt: skip
    store.forget("2026-01-01")
    assert [(row.key, row.usage.cpu_s) for row in store.groups("day", UsageFilter())[0]] == [(DAY, 2.0)]
    assert store.find(account(1).id) is None
    assert store.find(account(2).id) is not None


def test_failed_transaction_stores_nothing(store: UsageStore) -> None:
    with pytest.raises(sqlite3.Error):
        store.save([(account(1), {DAY: UsageTotals(cpu_s=1.0)}), (account(2), {None: UsageTotals()})])  # type: ignore[dict-item]
    assert store.open_accounts() == []
    assert store.groups("day", UsageFilter())[0] == []


def test_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "usage.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(HostUnsupported, match="newer"):
        UsageStore(tmp_path / "usage.db")


def test_server_continues_from_the_counters_of_an_earlier_one() -> None:
    now = time.monotonic() - 50
    sample = Sample(now, 2.0, 3, 4, 5, 6, 7, active_s=8.0)
    state = StoredState("running", time.time() + 86400, now, "boot", "init", sample)  # the clock was set back a day
    assert state.resumed("boot", "init") == replace(sample, active_s=0.0)
    again = state.resumed("boot", "started again")
    assert (again.at, again.cpu_s, again.memory, again.disk, again.sent) == (now, None, None, 5, 6)
    assert state.resumed("another boot", "init").at == pytest.approx(time.monotonic(), abs=10)
    earlier = StoredState("stopped", time.time() - 3600, now, "boot", "init", sample)
    assert earlier.resumed("another boot", "init").at == pytest.approx(time.monotonic() - 3600, abs=10)
    ancient = StoredState("stopped", 0.0, now, "boot", "init", sample)
    assert time.monotonic() - ancient.resumed("another boot", "init").at <= MAX_GAP_S + 10
