"""Alert rules: types of events and a number of them within a time, from the operator's settings.

A rule counts the events of each *subject*: a sandbox, an owner or the server. A subject that reaches the number raises
an *alert*, an event `alert.NAME` for webhooks, the audit log and listeners. Then the rule is quiet for that subject
until its time has passed. Counts are in memory, and bounded: programs inside cause most of these events."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from skerry.config import Settings
from skerry.types import parse_span

log = logging.getLogger("skerry.engine")
SLOTS: Final = 60  # of a window: events are counted with this precision
MAX_SUBJECTS: Final = 10_000  # of a rule; beyond it, the subject without events for the longest time is forgotten
MAX_DETAIL: Final = 200  # characters
PREFIX: Final = "alert."


@dataclass(frozen=True)
class Rule:
    """`count` events of these types, or families of types, within `window_s` seconds."""

    name: str
    events: tuple[str, ...]
    count: int
    window_s: float
    window: str
    by: Literal["sandbox", "owner", "server"] = "sandbox"

    def covers(self, kind: str) -> bool:
        return kind in self.events or kind.partition(".")[0] in self.events

    def subject(self, owner: str, sandbox: str) -> str:
        return sandbox if self.by == "sandbox" else owner if self.by == "owner" else ""


@dataclass(frozen=True)
class Alert:
    """`owner`: "" for an alert about all sandboxes, which only administrators may see."""

    type: str
    owner: str
    reason: str


@dataclass
class _Count:
    """The events of a subject: a number for each slot, at most SLOTS + 1 of them."""

    slots: deque[list[int]] = field(default_factory=deque)
    quiet_until: float = 0.0

    def add(self, slot: int) -> int:
        """Count an event, and return the number of events in the window."""
        while self.slots and self.slots[0][0] < slot - SLOTS:
            self.slots.popleft()
        if self.slots and self.slots[-1][0] == slot:
            self.slots[-1][1] += 1
        else:
            self.slots.append([slot, 1])
        return sum(number for _, number in self.slots)


class Alerts:
    """Used from the event loop's thread only. `clock`: seconds that never go back."""

    def __init__(self, rules: Sequence[Rule] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._rules = {rule: dict[str, _Count]() for rule in rules}
        self._clock = clock

    def count(self, kind: str, owner: str, sandbox: str, detail: str | None) -> list[Alert]:
        """Count an event, and return the alerts that it raises. `detail`: a text about the event."""
        if not self._rules or kind.startswith(PREFIX):
            return []
        now, raised = self._clock(), []
        for rule, counts in self._rules.items():
            if rule.covers(kind):
                subject = rule.subject(owner, sandbox)
                known = counts.pop(subject, None) or _Count()
                counts[subject] = known  # the last one
                if len(counts) > MAX_SUBJECTS:
                    del counts[next(iter(counts))]
                number = known.add(int(now / rule.window_s * SLOTS))
                if number >= rule.count and now >= known.quiet_until:
                    known.quiet_until = now + rule.window_s
                    raised.append(_alert(rule, number, owner, sandbox, kind, detail))
        return raised


def _alert(rule: Rule, number: int, owner: str, sandbox: str, kind: str, detail: str | None) -> Alert:
    of = {"sandbox": f"the sandbox {sandbox}", "owner": f"the owner {owner!r}", "server": "all sandboxes"}[rule.by]
    last = f"{kind} {detail[:MAX_DETAIL]}" if detail else kind
    reason = f"{number:,} × {', '.join(rule.events)} of {of} within {rule.window}; the last: {last}"
    log.warning("an alert was raised", extra={"alert": rule.name, "owner": owner, "sandbox": sandbox, "use": reason})
    return Alert(PREFIX + rule.name, "" if rule.by == "server" else owner, reason)


def rules_of(settings: Settings) -> list[Rule]:
    """Return the rules of the settings."""
    return [
        Rule(name, form.events, form.count, parse_span(form.window), _shown(form.window), form.by)
        for name, form in settings["alerts"].items()
    ]


def _shown(window: str | int | float) -> str:
    return window if isinstance(window, str) else f"{window:g}s"
