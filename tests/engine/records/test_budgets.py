"""Budgets as values and accounts: parsing, amounts, levels, sharing between sandboxes, and storage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.engine.database import Database
from skerry.engine.records.usage.budget_accounts import BudgetAccount, BudgetTable, Increment, increment, scope_allows
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec
from skerry.errors import BudgetExceeded, InvalidRequest, QuotaExceeded, error_for_code
from skerry.types import (
    Budget,
    BudgetRequest,
    Lifecycle,
    Limits,
    Network,
    Options,
    Prices,
    UsageTotals,
    normal_budget,
    parse_label,
    readable_amount,
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state.db")
    yield database
    database.close()


def record(number: int = 0, owner: str = "ann", budget: Budget | None = None, **labels: str) -> SandboxRecord:
    spec = SandboxSpec(
        image="base", image_digest="sha256:0", layers=(), user="root", cwd="/", image_env={}, env={}, labels=labels,
        limits=Limits(), lifecycle=Lifecycle(), network=Network(), options=Options(), budget=budget,
    )  # fmt: skip
    return SandboxRecord(id=f"sb-{number:a>10}", owner=owner, name=None, state="running", spec=spec, created_at=1.0)


def account(budget: Budget, label: str = "", owner: str = "ann") -> BudgetAccount:
    return BudgetAccount("bu-aaaaaaaaaa", owner, budget, "admin", 1.0, label)


# -- values -----------------------------------------------------------------------------------------------------------


def test_amounts_are_whole_numbers() -> None:
    budget = Budget(cpu="1h", cost=0.25, network="1G", wall=90)
    assert budget.maxima == {"cpu": 3600 * 10**6, "cost": 250_000_000_000, "network": 1 << 30, "wall": 90 * 10**6}
    assert Budget(cost=1e-13).maxima == {"cost": 1}, "an amount is never rounded to zero"


@pytest.mark.parametrize(
    "given",
    [
        {"cpu": "soon"}, {"cpu": 0}, {"cpu": -1}, {"cost": 0}, {"cost": -1}, {"cost": float("nan")},
        {"cost": float("inf")}, {"cost": True}, {"network": "-1G"}, {"network": 0}, {"wall": ""},
        {"on_exceeded": "stop"}, {"cpu": "1h", "on_exceeded": "delete"},
    ],
)  # fmt: skip
def test_invalid_amounts_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="budget"):
        Budget(**given)


def test_flag_is_parsed() -> None:
    assert Budget.parse("cpu=1h,cost=5,on_exceeded=stop") == Budget(cpu="1h", cost=5.0, on_exceeded="stop")
    assert not Budget.parse("none")
    assert normal_budget(Budget()) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "cpu=",
        "=1h",
        "cpu=1h,",
        "cpu=1h,cpu=2h",
        "memory=1G",
        "cpu=1h;cost=5",
        "cost=five",
        " cpu=1h",
        "cpu=1h\n,",
    ],
)
def test_invalid_flags_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="budget"):
        Budget.parse(text)


@pytest.mark.parametrize("value", ["42", "a,b", "two\nlines", "x=y", "", "ü"])
def test_label_is_everything_after_its_key(value: str) -> None:
    assert parse_label(f"task={value}") == ("task", value)
    shared = account(Budget(cpu=1), f"task={value}")
    assert shared.covers(record(task=value))
    assert not shared.covers(record(task=f"{value}2"))
    assert not shared.covers(record(other=value))
    assert not shared.covers(record(owner="bob", task=value))


@pytest.mark.parametrize("label", ["task", "=42", "", "a\0=1", "k" * 129 + "=1"])
def test_invalid_labels_are_rejected(label: str) -> None:
    with pytest.raises(InvalidRequest, match="label"):
        BudgetRequest(budget=Budget(cpu=1), label=label)


def test_budget_without_an_amount_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="no amount"):
        BudgetRequest(budget=Budget(), label="task=42")


def test_amounts_are_readable() -> None:
    assert readable_amount("cpu", 3_723_000_000) == "1h 2m 3s"
    assert readable_amount("wall", 1_250_000) == "1.25s"
    assert readable_amount("network", 512 << 20) == "512M"
    assert readable_amount("cost", 4_250_000_000_000) == "4.25"


def test_budget_is_changed_with_the_scope_that_set_it_or_a_higher_one() -> None:
    allowed = [(caller, by) for caller in ("use", "review", "admin") for by in ("use", "review", "admin")
               if scope_allows(caller, by)]  # type: ignore[arg-type] # fmt: skip
    assert allowed == [("use", "use"), ("review", "use"), ("review", "review"), ("admin", "use"), ("admin", "review"),
                       ("admin", "admin")]  # fmt: skip


def test_whole_units_add_up_to_the_total() -> None:
    """However often usage is counted, and although totals were lower in between, nothing is lost or counted twice."""
    chance, prices = random.Random(5), Prices(cpu_hour=1.0)
    total = counted = UsageTotals()
    used = {"cpu": 0, "network": 0, "wall": 0}
    for _ in range(500):
        more = UsageTotals(cpu_s=chance.random() / 3, sent=chance.randrange(9), received=1, wall_s=chance.random())
        total += more
        for seen in (total, UsageTotals(cpu_s=total.cpu_s / 2), total):
            step, counted = increment(counted, seen, prices)
            used = {amount: number + getattr(step, amount) for amount, number in used.items()}
    assert used == {
        "cpu": round(total.cpu_s * 10**6), "network": total.sent + total.received, "wall": round(total.wall_s * 10**6),
    }  # fmt: skip


def test_cost_is_that_of_the_prices_at_the_time() -> None:
    cheap, dear = Prices(cpu_hour=1.0), Prices(cpu_hour=10.0)
    one, counted = increment(UsageTotals(), UsageTotals(cpu_s=3600.0), cheap)
    two, _ = increment(counted, UsageTotals(cpu_s=7200.0), dear)
    assert (one.cost, two.cost) == (10**12, 10**13)
    assert increment(UsageTotals(), UsageTotals(cpu_s=1.0), Prices())[0].cost == 0


# -- accounts ---------------------------------------------------------------------------------------------------------


def test_levels_are_reported_once_until_the_budget_is_raised() -> None:
    one = account(Budget(cpu=10, network=100))
    one.add(Increment(cpu=7_999_999))
    assert one.take_news() == []
    one.add(Increment(cpu=1))
    assert one.take_news() == [("cpu", 80)]
    one.add(Increment(cpu=1))
    assert one.take_news() == []
    one.add(Increment(cpu=2_000_000, network=200))
    assert one.take_news() == [("cpu", 100), ("network", 80), ("network", 100)]
    assert one.exceeded == ("cpu", "network")
    one.budget = Budget(cpu=100, network="1K")
    assert one.take_news() == []
    assert one.exceeded == ()
    one.add(Increment(cpu=90_000_000))
    assert one.take_news() == [("cpu", 80), ("cpu", 100)]


def test_error_names_the_budget_the_amounts_and_the_remedy() -> None:
    one = account(Budget(cpu="1h"), "task=two words")
    one.add(Increment(cpu=3_601_000_000))
    error = one.error()
    assert (
        error.message == "a budget is used up: CPU time 1h 1s of 1h (100 %) of the budget of the label 'task=two words'"
    )
    assert (
        error.hint == "raise it: `skerry budget set --label 'task=two words' --cpu …`, with the scope admin or higher"
    )
    assert error.details["used"] == 3601.0
    assert error.details["maximum"] == 3600.0
    decoded = error_for_code(error.code, error.message, error.hint, error.details)
    assert isinstance(decoded, BudgetExceeded)
    assert isinstance(decoded, QuotaExceeded)


def test_label_with_control_characters_is_escaped_in_messages() -> None:
    one = account(Budget(cpu=1), "task=\x1b[31m\nfake: record")
    one.add(Increment(cpu=10**6))
    assert one.error().message.isprintable()
    assert (one.error().hint or "").isprintable()


def test_fifty_concurrent_sandboxes_share_a_budget_exactly(database: Database) -> None:
    """Each increment counts once to each budget, in any order, and the sums are equal to the last unit."""
    table, chance = BudgetTable(database), random.Random(17)
    shared, everything = account(Budget(cpu="1h", cost=5), "task=42"), account(Budget(wall="8h"))
    everything.id = "bu-bbbbbbbbbb"
    for one in (shared, everything):
        table.put(one, one.budget, one.set_by)
    records = [record(number, budget=Budget(cpu="1m"), task="42", run=str(number)) for number in range(50)]
    metered: list[Increment] = []

    async def use(mine: SandboxRecord) -> None:
        for _ in range(20):
            increment = Increment(*(chance.randrange(10**7) for _ in range(4)))
            metered.append(increment)
            for one in table.of(mine, keep=True):
                one.add(increment)
            await asyncio.sleep(0)

    async def race() -> None:
        await asyncio.gather(*(use(mine) for mine in records), use(record(60, task="43")), use(record(61, owner="bob")))

    asyncio.run(race())
    assert len(metered) == 52 * 20
    own = {mine.id: one for mine in records if (one := table.own(mine)) is not None}
    for amount in ("cpu", "cost", "network", "wall"):
        assert shared.used[amount] == sum(one.used[amount] for one in own.values())
    assert everything.used["cpu"] > shared.used["cpu"]
    assert everything.used["cpu"] < sum(one.cpu for one in metered), "bob's usage counts to no budget of ann"


def test_used_amounts_survive_a_restart_and_the_deletion_of_sandboxes(database: Database) -> None:
    table, one = BudgetTable(database), account(Budget(cpu=10), "task=42")
    table.put(one, one.budget, one.set_by)
    mine = record(1, budget=Budget(cpu=5), task="42")
    for used in table.of(mine, keep=True):
        used.add(Increment(cpu=9_000_000, cost=1, network=2, wall=3))
        used.take_news()
    with database.transaction() as cursor:
        table.write(cursor, table.of(mine))
    again = BudgetTable(database)
    own, shared = again.of(mine)
    assert (own.used, own.notified) == ({"cpu": 9_000_000, "cost": 1, "network": 2, "wall": 3}, {"cpu": 100})
    assert (shared.used, shared.notified) == (own.used, {"cpu": 80})
    assert (shared.id, shared.set_by, shared.budget) == (one.id, "admin", Budget(cpu=10))
    again.forget(mine.id)
    assert [left.used["cpu"] for left in BudgetTable(database)] == [9_000_000]
    assert database.read("SELECT count(*) FROM budget_use")[0][0] == 1


def test_counted_usage_is_stored_with_the_used_amounts(database: Database) -> None:
    table, one = BudgetTable(database), account(Budget(cpu=10))
    table.put(one, one.budget, one.set_by)
    table.marks |= {"sb-aaaaaaaaaa": UsageTotals(cpu_s=1.5, sent=3), "sb-bbbbbbbbbb": UsageTotals()}
    with database.transaction() as cursor:
        table.write(cursor, [one], ["sb-aaaaaaaaaa", "sb-cccccccccc"])
    again = BudgetTable(database)
    assert again.marks == {"sb-aaaaaaaaaa": UsageTotals(cpu_s=1.5, sent=3)}
    again.forget("sb-aaaaaaaaaa", mark=True)
    assert BudgetTable(database).marks == {}


def test_budget_that_is_set_again_starts_at_zero_only_after_its_removal(database: Database) -> None:
    table, one = BudgetTable(database), account(Budget(cpu=10), "task=42")
    table.put(one, one.budget, one.set_by)
    one.add(Increment(cpu=5))
    with database.transaction() as cursor:
        table.write(cursor, [one])
    table.put(one, Budget(cpu=20), one.set_by)
    (kept,) = BudgetTable(database)
    assert (kept.used["cpu"], kept.budget) == (5, Budget(cpu=20))
    table.remove(one)
    assert list(BudgetTable(database)) == []
    assert database.read("SELECT * FROM budget_use") == []


def test_labels_in_force_decide(database: Database) -> None:
    table = BudgetTable(database)
    old, new = account(Budget(cpu=10), "task=1"), account(Budget(cpu=10), "task=2")
    new.id = "bu-bbbbbbbbbb"
    for one in (old, new):
        table.put(one, one.budget, one.set_by)
    for label in ("1", "2", "2"):
        for one in table.of(record(task=label), keep=True):
            one.add(Increment(cpu=1))
    assert (old.used["cpu"], new.used["cpu"]) == (1, 2)


def test_spec_without_a_budget_is_read(database: Database) -> None:
    """Specs of an older version have no budget."""
    spec = msgspec.json.decode(msgspec.json.encode(record().spec), type=SandboxSpec)
    assert (spec.budget, spec.budget_set_by) == (None, "use")
