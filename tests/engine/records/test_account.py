"""The account of a sandbox: counters in, usage out."""

from __future__ import annotations

import time

import pytest

from skerry.engine.records.usage.account import DAY_S, Account, Phase, Sample, _by_day, day_of
from skerry.types import Prices, UsageTotals

GB = 1 << 30


def opened(phase: Phase = "running", prices: Prices | None = None, **first: float) -> Account:
    account = Account()
    account.open(Sample(100.0, **first), phase, UsageTotals(), prices or Prices())  # type: ignore[arg-type]
    return account


def test_memory_and_disk_are_integrated_between_samples() -> None:
    account = opened(cpu_s=5.0, memory=100, disk=10)
    account.advance(Sample(102.0, cpu_s=6.0, memory=300, disk=10, memory_peak=400))
    account.advance(Sample(112.0, cpu_s=6.5, memory=300, disk=30, memory_peak=400))
    assert account.totals.cpu_s == 1.5
    assert account.totals.memory_byte_s == 2 * 200 + 10 * 300
    assert account.totals.disk_byte_s == 2 * 10 + 10 * 20
    assert account.totals.memory_peak == 400
    assert account.totals.wall_s == 12


def test_paused_time_counts_memory_and_disk_only() -> None:
    account = opened(cpu_s=1.0, memory=100, disk=10, active_s=3.0)
    account.advance(Sample(110.0, cpu_s=1.0, memory=100, disk=10, active_s=13.0), "paused")
    account.advance(Sample(160.0, cpu_s=1.0, memory=100, disk=10, active_s=63.0), "running")
    account.advance(Sample(161.0, cpu_s=2.0, memory=100, disk=10, active_s=64.0))
    assert (account.totals.wall_s, account.totals.active_s, account.totals.cpu_s) == (11, 11, 1.0)
    assert account.totals.memory_byte_s == 61 * 100
    assert account.totals.disk_byte_s == 61 * 10


def test_stopped_time_counts_the_disk_only_and_the_next_start_has_new_counters() -> None:
    account = opened(cpu_s=1.0, memory=100, disk=10)
    account.advance(Sample(101.0, cpu_s=4.0), "stopped")
    account.advance(Sample(201.0))
    account.advance(Sample(301.0, cpu_s=50.0), "running")  # the counter of another cgroup
    account.advance(Sample(302.0, cpu_s=50.5, memory=7))
    assert account.totals.cpu_s == 3.5
    assert account.totals.disk_byte_s == 202 * 10
    assert account.totals.memory_byte_s == 100 + 7
    assert account.totals.wall_s == 2


def test_an_older_sample_is_ignored() -> None:
    account = opened(cpu_s=1.0)
    account.advance(Sample(110.0, cpu_s=3.0), "paused")
    account.advance(Sample(105.0, cpu_s=2.0), "running")
    assert (account.totals.cpu_s, account.phase) == (2.0, "paused")


def test_a_counter_that_starts_again_counts_from_zero() -> None:
    account = opened(sent=1000, received=10)
    account.advance(Sample(101.0, sent=5, received=11))
    assert (account.totals.sent, account.totals.received) == (5, 1)


def test_first_sample_of_a_new_account_uses_nothing() -> None:
    account = opened(cpu_s=1.0, memory=100, memory_peak=100, disk=10, sent=5)
    assert account.advance(account.last, "running") == UsageTotals()


def test_a_peak_of_an_earlier_day_is_not_of_this_one() -> None:
    account = opened(memory=100, memory_peak=900)
    account.advance(Sample(101.0, memory=200, memory_peak=900))
    assert account.totals.memory_peak == 200


def test_usage_is_divided_between_days() -> None:
    midnight = 20_000 * DAY_S
    used = UsageTotals(cpu_s=30.0, sent=7, received=1, wall_s=3 * DAY_S, memory_peak=5)
    parts = _by_day(midnight + DAY_S / 2, 3 * DAY_S, used)
    assert [day for day, _ in parts] == [day_of(midnight + (n + 0.1) * DAY_S) for n in (-3, -2, -1, 0)]
    assert [part.wall_s for _, part in parts] == pytest.approx([DAY_S / 2, DAY_S, DAY_S, DAY_S / 2])
    assert sum(part.cpu_s for _, part in parts) == pytest.approx(30.0)
    assert (sum(part.sent for _, part in parts), sum(part.received for _, part in parts)) == (7, 1)
    assert _by_day(midnight + 10, 10, used) == [(day_of(midnight), used)]
    assert _by_day(midnight, 10, used)[0][0] == day_of(midnight - 1)


def test_active_time_without_a_server_is_counted_once() -> None:
    account, now = opened(), time.time()
    account.last = Sample(time.monotonic() - 100.0)
    account.credit_active([(now - 500, now - 90), (now - 95, now - 60), (now - 10, now + 1000), (now - 50, now - 60)])
    account.advance(Sample(time.monotonic(), active_s=0.0))
    assert account.totals.active_s == pytest.approx(40 + 10, abs=0.5)


def test_a_command_has_the_memory_of_its_time() -> None:
    account = opened(memory=100, disk=50, prices=Prices(cpu_hour=3600.0, network_gb=float(GB)))
    account.last = Sample(time.monotonic(), memory=100, disk=50)
    account.begin("p-1", sent=5, received=0, attached=True)
    account.exited("p-1", sent=6, received=0)  # its reader knows better
    account.advance(Sample(account.last.at + 10.0, memory=300, disk=50))
    account.end("p-1", sent=9, received=2)
    account.advance(Sample(account.last.at + 10.0, memory=300, disk=50))
    used = account.usage_of("p-1", cpu_s=2.0, memory_peak=123, duration_s=10.0)
    assert used.memory_byte_s == pytest.approx(2000, rel=0.01)
    assert used.disk_byte_s == pytest.approx(500, rel=0.01)
    assert (used.sent, used.received, used.memory_peak, used.wall_s) == (4, 2, 123, 10.0)
    assert used.cost == pytest.approx(2.0 + 6.0)


def test_prices() -> None:
    used = UsageTotals(cpu_s=7200.0, memory_byte_s=GB * 3600.0, disk_byte_s=GB * 30 * DAY_S, sent=GB, received=GB)
    assert Prices().cost(used) is None
    assert Prices(cpu_hour=0.5).cost(used) == 1.0
    assert Prices(cpu_hour=1, memory_gb_hour=2, disk_gb_month=3, network_gb=4).cost(used) == 2 + 2 + 3 + 8
