"""Budgets: amounts of usage that a sandbox, the sandboxes with a label, or all sandboxes of an owner may use."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from skerry.errors import InvalidRequest
from skerry.types.host import Scope
from skerry.types.values import NAME, Answer, Value, check_labels, format_size, parse_size, parse_span, readable_size

Amount = Literal["cpu", "cost", "network", "wall"]
AMOUNTS: tuple[Amount, ...] = get_args(Amount)
AMOUNT_NAMES: dict[str, str] = {"cpu": "CPU time", "cost": "cost", "network": "network traffic", "wall": "wall time"}
WARN_PERCENT = 80
MAX_COST = 1e6
# Amounts are counted in whole units, so that sums are exact: microseconds, bytes, and 10^-12 of the currency.
UNITS: dict[str, int] = {"cpu": 10**6, "cost": 10**12, "network": 1, "wall": 10**6}
_COST_HINT = "a number above 0, like 5 or 0.25, in the currency of the prices"


class Budget(Value, frozen=True, kw_only=True):
    """The largest usage: CPU time, cost (in the currency of the operator's prices), bytes sent and received, and time
    in which sandboxes run. `on_exceeded`: "pause" (default) or "stop"."""

    cpu: str | int | float | None = None
    cost: float | None = None
    network: str | int | None = None
    wall: str | int | float | None = None
    on_exceeded: Literal["pause", "stop"] | None = None

    def __post_init__(self) -> None:
        if self.cpu is not None:
            parse_span(self.cpu, "budget.cpu")
        if self.wall is not None:
            parse_span(self.wall, "budget.wall")
        if self.network is not None:
            parse_size(self.network, "budget.network")
        if self.cost is not None:
            _check_cost(self.cost)
        if self.on_exceeded not in (None, "pause", "stop"):
            raise InvalidRequest(f"budget.on_exceeded: {self.on_exceeded!r} is unknown", hint='"pause" or "stop"')
        if self.on_exceeded is not None and not self:
            raise InvalidRequest("budget: no amount is given", hint='like Budget(cpu="1h")')

    def __bool__(self) -> bool:
        """Return whether any amount is given."""
        return any(getattr(self, amount) is not None for amount in AMOUNTS)

    @property
    def maxima(self) -> dict[Amount, int]:
        """Return the given amounts in whole units."""
        given: dict[Amount, int] = {}
        if self.cpu is not None:
            given["cpu"] = max(1, round(parse_span(self.cpu) * UNITS["cpu"]))
        if self.cost is not None:
            given["cost"] = max(1, round(self.cost * UNITS["cost"]))
        if self.network is not None:
            given["network"] = parse_size(self.network)
        if self.wall is not None:
            given["wall"] = max(1, round(parse_span(self.wall) * UNITS["wall"]))
        return given

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of a flag: `cpu=1h,cost=5`, or `none` for an empty one."""
        if text == "none":
            return cls()
        values: dict[str, Any] = {}
        for word in text.split(","):
            name, equals, value = word.partition("=")
            if name not in cls.__struct_fields__ or not equals or not value:
                raise InvalidRequest(
                    f"budget: {word[:80]!r} is not NAME=VALUE",
                    hint=f"names: {', '.join(cls.__struct_fields__)}; like cpu=1h,cost=5",
                )
            if name in values:
                raise InvalidRequest(f"budget: {name} is given twice")
            values[name] = _number(value) if name == "cost" else value
        return cls(**values)


def _check_cost(cost: object) -> None:
    if isinstance(cost, bool) or not isinstance(cost, (int, float)):
        raise InvalidRequest(f"budget.cost: {cost!r} is not a number", hint=_COST_HINT)
    if not (math.isfinite(cost) and 0 < cost <= MAX_COST):
        raise InvalidRequest(f"budget.cost: {cost!r} is out of range", hint=_COST_HINT)


def _number(text: str) -> float:
    try:
        return float(text) if len(text) < 40 else math.nan
    except ValueError:
        raise InvalidRequest(f"budget.cost: {text[:60]!r} is not a number", hint=_COST_HINT) from None


def readable_amount(amount: str, number: int) -> str:
    """Return an amount in whole units for messages: "1h 2m 3s", "512M", "4.25"."""
    if amount == "network":
        return readable_size(number)
    if amount == "cost":
        return f"{number / UNITS['cost']:.6f}".rstrip("0").rstrip(".")
    return readable_span(number / UNITS[amount])


def readable_span(seconds: float) -> str:
    """Return a time for messages: "0.0042s", "12.5s", "1h 2m 3s"."""
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds < 10 else f"{seconds:.1f}".removesuffix(".0") + "s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return " ".join(f"{count}{unit}" for count, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if count)


class BudgetRequest(Value, frozen=True, kw_only=True):
    """PUT /v1/budgets: set the budget of a label (`key=value`), or without one, of an owner. Setting it again changes
    its amounts and keeps the used ones. `owner`: for administrators; the default is the caller."""

    budget: Budget
    label: str | None = None
    owner: str | None = None

    def __post_init__(self) -> None:
        if not self.budget:
            raise InvalidRequest("budget: no amount is given", hint='like {"cpu": "1h", "cost": 5}')
        if self.label is not None:
            parse_label(self.label)
        if self.owner is not None and not NAME.fullmatch(self.owner):
            raise InvalidRequest(f"owner: {self.owner[:80]!r} is not an owner")


def parse_label(text: str) -> tuple[str, str]:
    """Return the key and the value of `key=value`. Everything after the first "=" is the value, also commas."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"label: {text[:80]!r} is not KEY=VALUE", hint="like task=42")
    check_labels({key: value})
    return key, value


class BudgetUse(Answer, frozen=True, kw_only=True):
    """Used amounts: seconds of CPU time, cost, bytes sent and received, seconds in which sandboxes ran."""

    cpu_s: float = 0.0
    cost: float = 0.0
    network: int = 0
    wall_s: float = 0.0

    @property
    def whole(self) -> dict[str, int]:
        """Return the amounts in whole units."""
        return {
            "cpu": round(self.cpu_s * UNITS["cpu"]), "cost": round(self.cost * UNITS["cost"]),
            "network": self.network, "wall": round(self.wall_s * UNITS["wall"]),
        }  # fmt: skip


class BudgetInfo(Answer, frozen=True, kw_only=True):
    """A budget of a sandbox (`sandbox`), of a label, or, without both, of an owner. `exceeded`: the amounts that are
    used up. `set_by`: the scope of the caller that set it. `notice`: a reason why an amount has no effect."""

    id: str
    owner: str
    budget: Budget
    used: BudgetUse
    created_at: float
    sandbox: str | None = None
    label: str | None = None
    exceeded: tuple[Amount, ...] = ()
    set_by: Scope = "use"
    notice: str | None = None

    @property
    def percent(self) -> dict[Amount, int]:
        """Return the used share of each amount, rounded down."""
        used = self.used.whole
        return {amount: 100 * used[amount] // maximum for amount, maximum in self.budget.maxima.items()}

    def describe(self, amount: Amount) -> str:
        """Return the used and the largest amount: "40m of 1h"."""
        maximum = self.budget.maxima[amount]
        return f"{readable_amount(amount, self.used.whole[amount])} of {readable_amount(amount, maximum)}"


class BudgetList(Answer, frozen=True, kw_only=True):
    budgets: list[BudgetInfo]


def normal_budget(budget: Budget | None) -> Budget | None:
    """Return the stored form of a budget; None for an empty one."""
    if not budget:
        return None
    network = None if budget.network is None else format_size(parse_size(budget.network))
    return Budget(
        cpu=budget.cpu, cost=budget.cost, network=network, wall=budget.wall, on_exceeded=budget.on_exceeded or "pause"
    )
