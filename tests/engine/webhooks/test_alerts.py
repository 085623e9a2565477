"""Alert rules: what they count, when they are quiet, their bounds, and the way of an alert to a receiver."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from support.pages import ROOT
from support.webhook_receiver import Receiver, write_secret

from skerry.config import load
from skerry.engine.database import Database
from skerry.engine.events import EventFilter, Events, PendingEvent
from skerry.engine.network.attempts import AttemptLog
from skerry.engine.records.audit.index import AuditFilter, AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog
from skerry.engine.records.audit.service import AuditService
from skerry.engine.tasks import Tasks
from skerry.engine.webhooks import alerts as module
from skerry.engine.webhooks.alerts import Alerts, Rule, rules_of
from skerry.engine.webhooks.queue import Target, WebhookQueue
from skerry.engine.webhooks.service import WebhookService
from skerry.errors import InvalidRequest
from skerry.network.messages import AttemptMessage
from skerry.types import AlertForm, Caller, Event, NetworkAttempt

ONE, TWO = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb"
ADMIN = Caller(owner="root", scope="admin")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def counted(alerts: Alerts, number: int, kind: str = "network.denied", sandbox: str = ONE, owner: str = "ann") -> int:
    """Count events, and return the number of raised alerts."""
    return sum(len(alerts.count(kind, owner, sandbox, None)) for _ in range(number))


def test_alert_is_raised_once_in_each_window() -> None:
    clock = Clock()
    alerts = Alerts([Rule("denials", ("network.denied",), 5, 600.0, "10m")], clock)
    assert counted(alerts, 4) == 0
    clock.now += 599  # the events lie within the window
    (alert,) = alerts.count("network.denied", "ann", ONE, "CONNECT evil.test:443")
    assert (alert.type, alert.owner) == ("alert.denials", "ann")
    assert alert.reason == (
        f"5 × network.denied of the sandbox {ONE} within 10m; the last: network.denied CONNECT evil.test:443"
    )
    assert counted(alerts, 100_000) == 0, "a flood is one alert"
    clock.now += 600
    (again,) = alerts.count("network.denied", "ann", ONE, None)
    assert again.reason.startswith("100,002 × "), "the flood goes on"
    clock.now += 1300
    assert counted(alerts, 4) == 0, "older events do not count"
    assert counted(alerts, 1) == 1


def test_rule_covers_types_families_and_subjects() -> None:
    by = {name: Rule(name, ("limit", "sandbox.failed"), 3, 60.0, "1m", name) for name in ("sandbox", "owner", "server")}
    each = {name: Alerts([rule], Clock()) for name, rule in by.items()}
    for alerts in each.values():
        assert counted(alerts, 9, "sandbox.stopped") == 0
        assert counted(alerts, 9, "alert.limits") == 0
        assert counted(alerts, 1, "limit.memory", ONE) + counted(alerts, 1, "sandbox.failed", ONE) == 0
    assert {name: counted(alerts, 1, "limit.timeout", TWO) for name, alerts in each.items()} == {
        "sandbox": 0, "owner": 1, "server": 1
    }  # fmt: skip
    assert {name: counted(alerts, 2, "limit.timeout", TWO, "bob") for name, alerts in each.items()} == {
        "sandbox": 1, "owner": 0, "server": 0
    }  # fmt: skip


def test_attack_flood_of_subjects_uses_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SUBJECTS", 100)
    clock = Clock()
    rule = Rule("all", ("process",), 1_000_000, 3600.0, "1h")
    alerts = Alerts([rule], clock)
    for number in range(5000):
        clock.now += 0.7
        alerts.count("process.started", "ann", f"sb-{number % 500:010}", None)
        alerts.count("process.started", "ann", ONE, None)
    (counts,) = alerts._rules.values()
    assert len(counts) == 100
    assert max(len(one.slots) for one in counts.values()) <= module.SLOTS + 1
    assert ONE in counts, "a busy sandbox is not displaced by others"


async def test_alert_reaches_the_receiver_the_events_and_the_audit_log(tmp_path: Path) -> None:
    """The rule counts denials, which are no events of their own, once for each attempt. An alert about all sandboxes is
    for administrators only."""
    receiver, tasks, database = Receiver(), Tasks(), Database(tmp_path / "state.db")
    keys = KeyStore(tmp_path / "keys", tmp_path / "state")
    (tmp_path / "state").mkdir()
    audit = AuditService(
        keys, AuditLog(tmp_path / "state" / "audit", keys, keep_s=None), AuditIndex(tmp_path / "index.db"), "all"
    )
    secret = str(write_secret(tmp_path))
    targets = {
        name: Target(name, f"{receiver.url}/{name}", events, secret)
        for name, events in {"all": ("alert",), "one": ("alert.denials",), "none": ("review",)}.items()
    }
    queue = WebhookQueue(database, targets)
    rules = [
        Rule("denials", ("network.denied",), 3, 600.0, "10m"),
        Rule("server", ("network.denied", "limit"), 4, 600.0, "10m", "server"),
    ]
    events = Events(database, audit, queue, None, Alerts(rules))
    attempts = AttemptLog(database, audit, None, events)
    WebhookService(queue, tasks).start()
    try:
        events.publish(PendingEvent("sandbox.created", "ann", ONE, "dev", time.time()))
        events.flush()
        for number in (0, 0, 0, 1, 2):
            tried = NetworkAttempt(
                id=f"a{number}", at=time.time(), kind="connection", host="evil.test", decision="denied", why="no rule",
                port=443,
            )  # fmt: skip
            attempts.add(AttemptMessage(sandbox=ONE, attempt=tried), "ann")
        events.publish(PendingEvent("limit.memory", "ann", ONE, "dev", time.time(), "of process p-a"))
        events.close()  # the flush that counts the last event also writes its alert
        async with asyncio.timeout(60):
            while len(receiver.received) < 3:
                await asyncio.sleep(0.01)
        posted = sorted((one.path.rpartition("/")[2], one.json["type"]) for one in receiver.received)
        assert posted == [("all", "alert.denials"), ("all", "alert.server"), ("one", "alert.denials")]
        data = next(one.json["data"] for one in receiver.received if one.json["type"] == "alert.denials")
        assert data["reason"] == (
            f"3 × network.denied of the sandbox {ONE} within 10m; the last: network.denied connection evil.test:443"
        )
        assert (data["owner"], data["sandbox"], data["name"]) == ("ann", ONE, "dev")
        for caller, expected in (
            (ADMIN, {"alert.denials", "alert.server"}),
            (Caller(owner="ann", scope="use"), {"alert.denials"}),
        ):
            assert {one.type for one in await listed(events, caller)} == expected
            page = await audit.list(caller, AuditFilter(type="alert"), None, 100)
            assert {record.type for record in page.records} == expected
    finally:
        await tasks.close()
        attempts.close()
        await audit.close()
        database.close()
        receiver.close()


async def listed(events: Events, caller: Caller) -> list[Event]:
    return [one async for page in events.read(EventFilter(caller, None, "alert"), None, False) for one in page]


def test_settings_become_rules(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[alerts.denials]\nevents = ["network.denied"]\ncount = 20\n'
        '[alerts.limits_2]\nevents = ["limit", "budget.exceeded"]\ncount = 3\nwindow = 90\nby = "owner"\n'
    )
    assert rules_of(load(environ={}, operator_file=file)) == [
        Rule("denials", ("network.denied",), 20, 600.0, "10m", "sandbox"),
        Rule("limits_2", ("limit", "budget.exceeded"), 3, 90.0, "90s", "owner"),
    ]


@pytest.mark.parametrize(
    "table",
    [
        "count = 1",
        "events = []\ncount = 1",
        'events = ["network.refused"]\ncount = 1',
        'events = ["alert"]\ncount = 1',
        'events = ["limit"]',
        'events = ["limit"]\ncount = 0',
        'events = ["limit"]\ncount = 1000001',
        'events = ["limit"]\ncount = 1\nwindow = "never"',
        'events = ["limit"]\ncount = 1\nwindow = 0',
        'events = ["limit"]\ncount = 1\nby = "label"',
        'events = ["limit"]\ncount = 1\nwebhook = "ci"',
    ],
)
def test_rule_that_can_never_be_met_is_refused_with_its_name(tmp_path: Path, table: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[alerts.mine]\n{table}\n")
    with pytest.raises(InvalidRequest, match=r"alerts\.mine"):
        load(environ={}, operator_file=file)


def test_every_documented_event_can_be_counted() -> None:
    """The rows of the reference, such as: | `sandbox.created` `.running` … | …"""
    section = (ROOT / "docs" / "reference" / "http.md").read_text().partition("\n## Events\n")[2].partition("\n## ")[0]
    names: list[str] = []
    for row in section.splitlines():
        if row.startswith("| `"):
            for word in re.findall(r"`([a-z]*\.[a-z]+)`", row.split(" | ")[0]):
                names.append(word if word[0] != "." else names[0].partition(".")[0] + word)
    assert {"sandbox.created", "sandbox.ready", "limit.disk", "review.kept"} <= set(names)
    assert AlertForm(events=(*names, "network.denied"), count=1)


@pytest.mark.parametrize("name", ["Denials", "1st", "a-b", '"a.b"', "x" * 31])
def test_invalid_name_of_a_rule_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[alerts.{name}]\nevents = ["limit"]\ncount = 1\n')
    with pytest.raises(InvalidRequest, match="alert's name"):
        load(environ={}, operator_file=file)
