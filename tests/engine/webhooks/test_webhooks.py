"""The queue and the sender of webhooks, with a real receiver that fails, hangs, redirects and goes away."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.webhook_receiver import SECRET, Receiver, write_secret

from skerry.config import load
from skerry.engine.database import Database
from skerry.engine.events import Events, PendingEvent
from skerry.engine.tasks import Tasks
from skerry.engine.webhooks import queue as queues
from skerry.engine.webhooks import service as services
from skerry.engine.webhooks.queue import Target, WebhookQueue, targets_of
from skerry.engine.webhooks.service import WebhookService, read_secrets
from skerry.errors import HostUnsupported, InvalidRequest, NotFound


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Sender:
    """The webhooks of a server, with a separate database."""

    def __init__(self, path: Path, *targets: Target) -> None:
        self.tasks, self.database = Tasks(), Database(path)
        self.queue = WebhookQueue(self.database, {target.name: target for target in targets})
        self.service = WebhookService(self.queue, self.tasks)
        self.events = Events(self.database, None, self.queue)

    def publish(self, kind: str = "sandbox.stopped", reason: str | None = None) -> None:
        self.events.publish(PendingEvent(kind, "me", "sb-aaaaaaaaaa", "dev", time.time(), reason))
        self.events.flush()

    async def close(self) -> None:
        await self.tasks.close()
        self.events.close()
        self.database.close()


@contextlib.asynccontextmanager
async def sending(path: Path, *targets: Target) -> AsyncIterator[Sender]:
    sender = Sender(path, *targets)
    sender.service.start()
    try:
        yield sender
    finally:
        await sender.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def target(receiver: Receiver, tmp_path: Path) -> Target:
    return Target("ci", receiver.url, ("sandbox", "limit.memory"), str(write_secret(tmp_path)), 10.0, 0.01, 3)


def signature(key: str, received_id: str, moment: str, body: bytes) -> str:
    secret = base64.b64decode(key.removeprefix("whsec_"))
    digest = hmac.new(secret, f"{received_id}.{moment}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


async def test_event_arrives_once_and_signed(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish("process.ended")
        sender.publish("sandbox.failed", 'a "reason"\nin two lines\x1b[31m')
        sender.publish("limit.memory")
        sender.publish("limit.timeout")
        await until(lambda: len(receiver.received) == 2 and not sender.queue.counts())
    first, second = receiver.received
    assert first.json["type"] == "sandbox.failed"
    assert first.json["timestamp"].endswith("Z")
    data = first.json["data"]
    assert data == {
        "seq": 2, "owner": "me", "sandbox": "sb-aaaaaaaaaa", "name": "dev",
        "reason": 'a "reason"\nin two lines\x1b[31m',
    }  # fmt: skip
    assert second.json["type"] == "limit.memory"
    assert first.id != second.id
    for one in (first, second):
        expected = signature(SECRET, one.id, one.headers["webhook-timestamp"], one.body)
        assert one.headers["webhook-signature"] == expected
        assert abs(int(one.headers["webhook-timestamp"]) - time.time()) < 3600
        assert one.headers["content-type"] == "application/json"


async def test_both_keys_sign_during_a_rotation(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    new = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    write_secret(tmp_path, f"{new}\n{SECRET}")
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish()
        await until(lambda: receiver.received)
    (one,) = receiver.received
    parts = (one.id, one.headers["webhook-timestamp"], one.body)
    assert one.headers["webhook-signature"].split() == [signature(new, *parts), signature(SECRET, *parts)]


async def test_failed_delivery_is_sent_again_with_its_id(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    receiver.answers = [500, 429]
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish()
        await until(lambda: len(receiver.received) == 3 and not sender.queue.counts())
        (info,) = sender.service.list()
    assert len({one.id for one in receiver.received}) == 1
    assert len({one.body for one in receiver.received}) == 1
    assert (info.sent, info.failed, info.last_error) == (1, 2, "the receiver answered 429")


async def test_delivery_that_fails_too_often_is_dead_until_it_is_retried(
    receiver: Receiver, target: Target, tmp_path: Path
) -> None:
    receiver.status = 500
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish()
        await until(lambda: sender.service.dead("ci", 10))
        (dead,) = sender.service.dead(None, 10)
        assert (dead.attempts, dead.status, dead.error) == (3, 500, "the receiver answered 500")
        assert dead.type == "sandbox.stopped"
        assert '"sandbox":"sb-aaaaaaaaaa"' in dead.body
        receiver.status = 200
        assert sender.service.retry("ci", ["wd-other"]) == 0
        assert sender.service.retry("ci", [dead.id]) == 1
        await until(lambda: not sender.queue.counts())
        with pytest.raises(NotFound):
            sender.service.retry("other", [])
    assert [one.id for one in receiver.received] == [dead.id] * 4


async def test_hanging_receiver_delays_no_other(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    silent = Receiver()
    silent.status = 0
    slow = replace(target, name="slow", url=silent.url, timeout_s=0.2, max_attempts=1)
    try:
        async with sending(tmp_path / "state.db", slow, target) as sender:
            sender.publish()
            await until(lambda: receiver.received and sender.service.dead("slow", 10))
            (dead,) = sender.service.dead("slow", 10)
    finally:
        silent.close()
    assert dead.error == "no answer within 0.2 s"
    assert dead.status is None


async def test_redirect_is_not_followed(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    other = Receiver()
    try:
        receiver.status, receiver.headers = 307, {"location": other.url}
        async with sending(tmp_path / "state.db", replace(target, max_attempts=1)) as sender:
            sender.publish()
            await until(lambda: sender.service.dead("ci", 10))
            (dead,) = sender.service.dead("ci", 10)
    finally:
        other.close()
    assert (dead.status, dead.error) == (307, "the receiver answered 307")
    assert other.received == []


async def test_receiver_that_is_gone_gets_nothing_more(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    receiver.status = 410
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish()
        await until(lambda: len(sender.service.dead("ci", 10)) == 1)
        sender.publish("sandbox.deleted")
        await until(lambda: len(sender.service.dead("ci", 10)) == 2)
        assert len(receiver.received) == 1
        assert sender.service.list()[0].gone
        receiver.status = 200
        assert sender.service.retry("ci", []) == 2
        await until(lambda: not sender.queue.counts())
        assert not sender.service.list()[0].gone
    assert sorted(receiver.types()[1:]) == ["sandbox.deleted", "sandbox.stopped"]


async def test_unreachable_receiver_is_a_failure(target: Target, tmp_path: Path) -> None:
    closed = Receiver()
    closed.close()
    async with sending(tmp_path / "state.db", replace(target, url=closed.url, max_attempts=2)) as sender:
        sender.publish()
        await until(lambda: sender.service.dead("ci", 10))
        (dead,) = sender.service.dead("ci", 10)
    assert dead.status is None
    assert dead.error


async def test_waiting_deliveries_survive_the_server(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    stopped = Sender(tmp_path / "state.db", target)  # sends nothing
    stopped.publish()
    stopped.publish("sandbox.deleted")
    stopped.database.close()
    async with sending(tmp_path / "state.db", target) as sender:
        await until(lambda: len(receiver.received) == 2 and not sender.queue.counts())
    assert receiver.types() == ["sandbox.stopped", "sandbox.deleted"]


async def test_event_that_was_rolled_back_is_not_delivered(target: Target, tmp_path: Path) -> None:
    sender = Sender(tmp_path / "state.db", target)
    news = PendingEvent("sandbox.stopped", "me", "sb-aaaaaaaaaa", None, time.time())
    with pytest.raises(RuntimeError), sender.events.transaction(news):
        raise RuntimeError
    assert sender.queue.counts() == {}
    await sender.close()


async def test_deliveries_of_a_removed_webhook_are_dead(target: Target, tmp_path: Path) -> None:
    before = Sender(tmp_path / "state.db", target)
    before.publish()
    await before.close()
    after = Sender(tmp_path / "state.db")
    (dead,) = after.service.dead("ci", 10)
    assert dead.error == "the webhook is no longer configured"
    await after.close()


async def test_queue_is_bounded(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_WAITING", 3)
    monkeypatch.setattr(queues, "MAX_DEAD", 2)
    sender = Sender(tmp_path / "state.db", target)
    for number in range(10):
        sender.publish(reason=str(number))
    assert sender.queue.counts() == {("ci", "waiting"): 3, ("ci", "dead"): 2}
    assert ['"reason":"9"' in sender.queue.dead("ci", 10)[0].body, len(sender.queue.dead("ci", 10))] == [True, 2]
    await sender.close()


async def test_clock_set_back_does_not_delay_deliveries(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    before = Sender(tmp_path / "state.db", target)
    before.publish()
    with before.database.transaction() as cursor:
        cursor.execute("UPDATE webhook_deliveries SET due = due + 86400")
    await before.close()
    async with sending(tmp_path / "state.db", target):
        await until(lambda: receiver.received)


async def test_delivery_stays_while_the_database_cannot_be_written(
    receiver: Receiver, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of an attempt cannot be stored: the delivery stays, and is sent again."""
    monkeypatch.setattr(services, "PAUSE_S", 0.02)
    async with sending(tmp_path / "state.db", target) as sender:
        sender.publish()
        sender.database.read("PRAGMA query_only = 1")  # all writes fail
        await until(lambda: len(receiver.received) >= 2)
        assert sender.queue.counts() == {("ci", "waiting"): 1}
        sender.database.read("PRAGMA query_only = 0")
        await until(lambda: not sender.queue.counts())
    assert len({one.id for one in receiver.received}) == 1


async def test_test_event_needs_no_queue(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    sender = Sender(tmp_path / "state.db", target)
    result = await sender.service.test("ci")
    assert (result.ok, result.status) == (True, 204)
    assert receiver.types() == ["webhook.test"]
    receiver.status = 500
    assert not (await sender.service.test("ci")).ok
    await sender.close()


async def test_unreadable_secret_fails_the_delivery(receiver: Receiver, target: Target, tmp_path: Path) -> None:
    """An unsigned request must never be sent instead."""
    Path(str(target.secret_file)).chmod(0o604)
    async with sending(tmp_path / "state.db", replace(target, max_attempts=1)) as sender:
        sender.publish()
        await until(lambda: sender.service.dead("ci", 10))
    assert receiver.received == []


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_" + "?" * 40, "whsec_" + "QUFB" * 30, "whsec_\xff"]
)
def test_secret_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(HostUnsupported) as refused:
        read_secrets(str(write_secret(tmp_path, text)))
    assert "whsec_" in (refused.value.hint or "")


def test_settings_become_targets(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[webhooks.ci]\nurl = "https://hooks.example/a?b=c"\nsecret_file = "/etc/skerry/ci.secret"\n'
        'events = ["sandbox.failed"]\nretry_delay = "1m"\n'
        '[audit]\ncheckpoints = ["/mnt/worm/points", "https://sink.example/"]\n'
    )
    settings = load(environ={}, operator_file=file)
    targets = targets_of(settings)
    assert settings["audit.checkpoints"] == ("/mnt/worm/points", "https://sink.example/")
    assert targets["ci"] == Target(
        "ci", "https://hooks.example/a?b=c", ("sandbox.failed",), "/etc/skerry/ci.secret", 10.0, 60.0, 12
    )
    assert targets["audit.checkpoints"] == Target("audit.checkpoints", "https://sink.example/", ("audit.checkpoint",))


@pytest.mark.parametrize(
    "table",
    [
        'url = "ftp://a/"\nsecret_file = "/a"',
        'url = "https://user:word@a/"\nsecret_file = "/a"',
        'url = "https:///a"\nsecret_file = "/a"',
        'url = "https://a:99999/"\nsecret_file = "/a"',
        'url = "https://a b/"\nsecret_file = "/a"',
        'url = "https://a/"',
        'url = "https://a/"\nsecret_file = "relative"',
        'url = "https://a/"\nsecret_file = "/a"\nsecret = "x"',
        'url = "https://a/"\nsecret_file = "/a"\nevents = ["Sandbox"]',
        'url = "https://a/"\nsecret_file = "/a"\nmax_attempts = 0',
        'url = "https://a/"\nsecret_file = "/a"\ntimeout = "never"',
    ],
)
def test_invalid_webhook_is_refused_with_its_name(tmp_path: Path, table: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[webhooks.ci]\n{table}\n")
    with pytest.raises(InvalidRequest, match=r"webhooks\.ci"):
        load(environ={}, operator_file=file)
