"""Budgets with their used amounts: in memory, and in the tables `budgets` and `budget_use`.

A sandbox's own budget is part of its spec; its account has the sandbox's ID."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, cast

import msgspec

from skerry.engine.database import Database
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.errors import BudgetExceeded
from skerry.types import (
    AMOUNT_NAMES,
    AMOUNTS,
    UNITS,
    WARN_PERCENT,
    Amount,
    Budget,
    BudgetInfo,
    BudgetUse,
    Prices,
    Scope,
    UsageTotals,
    parse_label,
    readable_amount,
)

LEVELS: Final = (WARN_PERCENT, 100)  # percent of an amount; each is reported once
MAX_HINT: Final = 300  # characters of a label in a command of a hint
_INSERT: Final = "INSERT OR REPLACE INTO budgets VALUES (?, ?, ?, ?, ?, ?)"
_USE: Final = "INSERT OR REPLACE INTO budget_use VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Increment:
    """Usage since the last sample, in whole units (`types.UNITS`)."""

    cpu: int = 0
    cost: int = 0
    network: int = 0
    wall: int = 0


def increment(counted: UsageTotals, now: UsageTotals, prices: Prices) -> tuple[Increment, UsageTotals]:
    """Return the usage between two totals of a sandbox, and the totals that are counted then.

    Whole units are differences of rounded totals, so their sum is the rounded total. Totals that are lower than the
    counted ones, after a server lost its last samples, count nothing until they are higher."""
    after = UsageTotals(
        cpu_s=max(counted.cpu_s, now.cpu_s), memory_byte_s=max(counted.memory_byte_s, now.memory_byte_s),
        disk_byte_s=max(counted.disk_byte_s, now.disk_byte_s), sent=max(counted.sent, now.sent),
        received=max(counted.received, now.received), wall_s=max(counted.wall_s, now.wall_s),
    )  # fmt: skip
    used = UsageTotals(
        cpu_s=after.cpu_s - counted.cpu_s, memory_byte_s=after.memory_byte_s - counted.memory_byte_s,
        disk_byte_s=after.disk_byte_s - counted.disk_byte_s, sent=after.sent - counted.sent,
        received=after.received - counted.received, wall_s=after.wall_s - counted.wall_s,
    )  # fmt: skip
    more = Increment(
        cpu=_units("cpu", after.cpu_s) - _units("cpu", counted.cpu_s),
        cost=_units("cost", prices.cost(used) or 0.0),
        network=used.sent + used.received,
        wall=_units("wall", after.wall_s) - _units("wall", counted.wall_s),
    )
    return more, after


def _units(amount: Amount, number: float) -> int:
    return round(number * UNITS[amount])


@dataclass(eq=False)
class BudgetAccount:
    """A budget and its used amounts. `label` "": a budget of an owner, or of the sandbox. `notified`: the highest level
    that was reported of each amount."""

    id: str
    owner: str
    budget: Budget
    set_by: Scope
    created_at: float
    label: str = ""
    sandbox: str | None = None
    used: dict[Amount, int] = field(default_factory=lambda: dict.fromkeys(AMOUNTS, 0))
    notified: dict[Amount, int] = field(default_factory=dict)

    def add(self, increment: Increment) -> None:
        for amount in AMOUNTS:
            self.used[amount] += getattr(increment, amount)

    @property
    def exceeded(self) -> tuple[Amount, ...]:
        return tuple(amount for amount, maximum in self.budget.maxima.items() if self.used[amount] >= maximum)

    def take_news(self) -> list[tuple[Amount, int]]:
        """Return the levels that amounts have reached since the last call. Levels that an amount is below of, after the
        budget was raised, can be reached again."""
        news = []
        for amount, maximum in self.budget.maxima.items():
            reached = [level for level in LEVELS if self.used[amount] * 100 >= maximum * level]
            news += [(amount, level) for level in reached if level > self.notified.get(amount, 0)]
            self.notified[amount] = max(reached, default=0)
        return news

    def is_near(self, amount: Amount, more: float) -> bool:
        """Return whether that much more would use up the amount, or 80 % of it is used."""
        maximum, used = self.budget.maxima[amount], self.used[amount]
        return used + more >= maximum or used * 100 >= maximum * WARN_PERCENT

    def covers(self, record: SandboxRecord) -> bool:
        if self.sandbox is not None:
            return record.id == self.sandbox
        if record.owner != self.owner or not self.label:
            return record.owner == self.owner
        key, value = self._pair
        return record.spec.labels.get(key) == value

    @cached_property
    def _pair(self) -> tuple[str, str]:
        return parse_label(self.label)

    # -- texts --------------------------------------------------------------------------------------------------------

    @property
    def subject(self) -> str:
        """Return the bearer of the budget. Labels may contain line breaks."""
        if self.sandbox is not None:
            return f"the sandbox {self.sandbox}"
        return f"the label {self.label!r}" if self.label else f"the owner {self.owner!r}"

    def describe(self, amount: Amount) -> str:
        used, maximum = self.used[amount], self.budget.maxima[amount]
        shown = f"{readable_amount(amount, used)} of {readable_amount(amount, maximum)}"
        return f"{AMOUNT_NAMES[amount]} {shown} ({100 * used // maximum} %) of the budget of {self.subject}"

    def error(self) -> BudgetExceeded:
        """Return the error for the first amount that is used up."""
        amount = self.exceeded[0]
        unit = UNITS[amount]
        return BudgetExceeded(
            f"a budget is used up: {self.describe(amount)}",
            hint=f"raise it: `{self._command(amount)}`, with the scope {self.set_by} or higher",
            details={
                "budget": self.id, "amount": amount, "used": self.used[amount] / unit,
                "maximum": self.budget.maxima[amount] / unit, "owner": self.owner,
                "label": self.label or None, "sandbox": self.sandbox,
            },
        )  # fmt: skip

    def _command(self, amount: Amount) -> str:
        if self.sandbox is not None:
            return f"skerry update {self.sandbox} --budget {amount}=…"
        if not self.label:
            return f"skerry budget set --owner {self.owner} --{amount} …"
        label = shlex.quote(self.label) if self.label.isprintable() and len(self.label) < MAX_HINT else "…"
        return f"skerry budget set --label {label} --{amount} …"

    def info(self, notice: str | None = None) -> BudgetInfo:
        used = BudgetUse(
            cpu_s=self.used["cpu"] / UNITS["cpu"], cost=self.used["cost"] / UNITS["cost"],
            network=self.used["network"], wall_s=self.used["wall"] / UNITS["wall"],
        )  # fmt: skip
        return BudgetInfo(
            id=self.id, owner=self.owner, budget=self.budget, used=used, created_at=self.created_at,
            sandbox=self.sandbox, label=self.label or None, exceeded=self.exceeded, set_by=self.set_by, notice=notice,
        )  # fmt: skip


class BudgetTable:
    """All accounts of one state directory, by ID. Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used = {row["budget"]: row for row in database.read("SELECT * FROM budget_use")}
        self._standing: dict[tuple[str, str], BudgetAccount] = {}  # by owner and label
        self._own: dict[str, BudgetAccount] = {}  # by sandbox
        self.marks = {  # the counted usage of each sandbox; stored for those with budgets
            row["sandbox"]: msgspec.json.decode(row["counted"], type=UsageTotals)
            for row in database.read("SELECT * FROM budget_marks")
        }
        self._stored_marks = set(self.marks)
        for row in database.read("SELECT * FROM budgets ORDER BY created_at, id"):
            account = BudgetAccount(
                row["id"], row["owner"], msgspec.json.decode(row["body"], type=Budget), row["set_by"],
                row["created_at"], row["label"],
            )  # fmt: skip
            self._standing[account.owner, account.label] = self._with_use(account)

    def _with_use(self, account: BudgetAccount) -> BudgetAccount:
        if (row := self._used.get(account.id)) is not None:
            account.used = {amount: row[amount] for amount in AMOUNTS}
            account.notified = msgspec.json.decode(row["notified"], type=dict[Amount, int])
        return account

    def __iter__(self) -> Iterator[BudgetAccount]:
        return iter(self._standing.values())

    def get(self, owner: str, label: str) -> BudgetAccount | None:
        return self._standing.get((owner, label))

    def own(self, record: SandboxRecord, *, keep: bool = False) -> BudgetAccount | None:
        """Return the account of a sandbox's own budget. `keep`: it will be changed; not for a sandbox that may never
        come to exist."""
        budget = record.spec.budget
        if budget is None:
            return None
        account = self._own.get(record.id)
        if account is None:
            account = self._with_use(
                BudgetAccount(
                    record.id, record.owner, budget, record.spec.budget_set_by, record.created_at, "", record.id
                )
            )
            if keep:
                self._own[record.id] = account
        account.budget, account.set_by = budget, record.spec.budget_set_by
        return account

    def of(self, record: SandboxRecord, *, keep: bool = False) -> list[BudgetAccount]:
        """Return the accounts that a sandbox's usage counts to."""
        labels = (f"{key}={value}" for key, value in record.spec.labels.items()) if self._standing else ()
        found = [self.own(record, keep=keep), *(self._standing.get((record.owner, label)) for label in ("", *labels))]
        return [account for account in found if account is not None]

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, account: BudgetAccount, budget: Budget, set_by: Scope) -> None:
        """Store a budget of a label or an owner with these amounts."""
        values = (account.id, account.owner, account.label, set_by, account.created_at, msgspec.json.encode(budget))
        with self._database.transaction(durable=True) as cursor:
            cursor.execute(_INSERT, values)
        account.budget, account.set_by = budget, set_by
        self._standing[account.owner, account.label] = account

    def remove(self, account: BudgetAccount) -> None:
        with self._database.transaction(durable=True) as cursor:
            cursor.execute("DELETE FROM budgets WHERE id = ?", (account.id,))
            cursor.execute("DELETE FROM budget_use WHERE budget = ?", (account.id,))
        del self._standing[account.owner, account.label]

    def forget(self, sandbox_id: str, *, mark: bool = False) -> None:
        """Remove the used amounts of a sandbox without a budget, or of a deleted one: then also its `mark`."""
        known = [one.pop(sandbox_id, None) for one in (self._own, self._used)] != [None, None]
        if mark:
            self.marks.pop(sandbox_id, None)
            known |= sandbox_id in self._stored_marks
        if not known:
            return
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM budget_use WHERE budget = ?", (sandbox_id,))
            if mark:
                cursor.execute("DELETE FROM budget_marks WHERE sandbox = ?", (sandbox_id,))
        if mark:
            self._stored_marks.discard(sandbox_id)

    def write(self, cursor: sqlite3.Cursor, accounts: Collection[BudgetAccount], marked: Collection[str] = ()) -> None:
        """Store used amounts, and the usage of sandboxes that is counted in them, in one transaction: after a crash,
        nothing is lost or counted twice."""
        marks = [(one, msgspec.json.encode(self.marks[one])) for one in marked if one in self.marks]
        cursor.executemany("INSERT OR REPLACE INTO budget_marks VALUES (?, ?)", marks)
        self._stored_marks.update(one for one, _ in marks)
        cursor.executemany(
            _USE,
            [
                (account.id, *(account.used[amount] for amount in AMOUNTS), msgspec.json.encode(account.notified))
                for account in accounts
            ],
        )


def scope_allows(caller: Scope, set_by: Scope) -> bool:
    """Return whether a caller may change a budget: with the scope that set it, or a higher one."""
    order = cast("tuple[Scope, ...]", ("use", "review", "admin"))
    return order.index(caller) >= order.index(set_by)
