"""Webhooks of a real server: the life of a sandbox, the command line, a killed server. Runs docs/guides/webhooks.md."""

from __future__ import annotations

import json
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import skerry
from support.pages import ROOT, commands, texts
from support.server import Server, wait_until
from support.webhook_receiver import Receiver

from skerry import Client, Limits, Network, Sandbox
from skerry.engine.records.audit.chain import Checkpoint

PAGE = ROOT / "docs" / "guides" / "webhooks.md"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def sink() -> Iterator[Receiver]:
    """Receive the checkpoints of the audit log."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a secret as the guide says."""
    file = tmp_path_factory.mktemp("etc") / "ci.secret"
    command = next(one for one in commands(PAGE) if "openssl" in one).replace("/etc/skerry/ci.secret", str(file))
    subprocess.run(["sh", "-c", command], check=True)
    return file


@pytest.fixture(scope="module")
def config(receiver: Receiver, sink: Receiver, secret: Path) -> str:
    """Write the settings of the guide with an address here, and other times."""
    shown, alerts = texts(PAGE, "toml")
    assert tomllib.loads(shown)["webhooks"]["ci"]["events"] == ["sandbox", "limit.memory", "alert"]
    text = shown.replace("https://hooks.example.com/skerry", receiver.url)
    text = (
        text.replace("/etc/skerry/ci.secret", str(secret)) + 'retry_delay = "50ms"\nmax_attempts = 2\ntimeout = "60s"\n'
    )
    file = secret.parent / "config.toml"
    assert [rule["count"] for rule in tomllib.loads(alerts)["alerts"].values()] == [20, 3]
    text += alerts.replace("count = 20", "count = 2")
    file.write_text(text + f'[audit]\ncheckpoints = ["{secret.parent}/checkpoints", "{sink.url}"]\n')
    return str(file)


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server], config: str) -> Iterator[Server]:
    made = make_server().start(SKERRY_CONFIG=config)
    yield made
    made.retire()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def test_life_of_a_sandbox_is_posted_and_signed(server: Server, receiver: Receiver, secret: Path) -> None:
    sandbox = Sandbox.create(server=server.address, name="told", limits=Limits(memory="128M"))
    sandbox.run("python3 -c 'x = bytearray(1 << 29)'")
    sandbox.pause()
    sandbox.resume()
    sandbox.stop()
    sandbox.delete()
    receiver.wait_for(lambda _: "sandbox.deleted" in receiver.types(), "the deletion")
    types = [kind for kind in receiver.types() if kind.startswith("sandbox.")]
    states = ["created", "running", "paused", "running", "stopped", "deleted"]
    assert types == [f"sandbox.{state}" for state in states]
    receiver.wait_for(lambda _: "limit.memory" in receiver.types(), "the event of the memory limit")
    assert {one.json["data"]["sandbox"] for one in receiver.received} == {sandbox.id}
    assert {one.json["data"].get("name") for one in receiver.received} == {"told"}

    guide: dict[str, Any] = {}
    exec(texts(PAGE, "python")[0], guide)
    verify, key = guide["verify"], secret.read_text().strip()
    for one in receiver.received:
        assert verify(key, one.headers, one.body)
        assert not verify(key, one.headers, one.body + b" ")
        assert not verify("whsec_" + "AAAA" * 10, one.headers, one.body)
        assert not verify(key, {**one.headers, "webhook-timestamp": "1"}, one.body)
        assert not verify(key, {**one.headers, "webhook-id": "wd-other"}, one.body)


def test_frequent_denials_and_limits_raise_alerts(server: Server, receiver: Receiver, client: Client) -> None:
    """Two sandboxes of one owner reach the number of a rule together; the denials of one reach that of another rule.
    Both alerts are posted once, and are in the audit log and the list of events."""
    before = len(receiver.received)
    options = {"server": client, "limits": Limits(memory="128M"), "network": Network(allow=["allowed.example"])}
    with Sandbox(**options) as one, Sandbox(**options) as other:
        for sandbox in (one, other, one):
            assert sandbox.run("python3 -c 'x = bytearray(1 << 29)'").oom_killed
        for number in range(6):
            denied = other.run(
                ["python3", "-c", f"import socket; socket.create_connection(('h{number}.example', 443), 5)"]
            )
            assert denied.denied
        receiver.wait_for(lambda _: {"alert.limits", "alert.denials"} <= set(receiver.types()[before:]), "the alerts")
        alerts = [found for found in receiver.received[before:] if found.json["type"].startswith("alert.")]
        assert sorted(found.json["type"] for found in alerts) == ["alert.denials", "alert.limits"]
        reasons = {found.json["type"]: found.json["data"]["reason"] for found in alerts}
        assert reasons["alert.limits"].startswith("3 × limit of the owner 'local' within 1h; the last: limit.memory")
        assert f"× network.denied of the sandbox {other.id} within 10m; the last: " in reasons["alert.denials"]
        recorded = {record.type: record for record in client.audit.records(type="alert")}
        assert recorded.keys() == reasons.keys()
        assert recorded["alert.denials"].sandbox == other.id
        assert {event.type: event.reason for event in client.events(type="alert")} == reasons
        assert "alert.denials" in {step.kind for step in client.records(other.id).trace().steps}


def test_dead_deliveries_are_listed_and_retried(server: Server, receiver: Receiver, client: Client) -> None:
    receiver.status = 500
    sandbox = Sandbox.create(server=server.address, name="unheard")
    wait_until(lambda: len(client.webhooks.dead("ci")) >= 2, "two deliveries to be dead")

    def words(*arguments: str) -> str:
        done = skerry("webhook", *arguments, server=server.address)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    listed = words("ls").splitlines()
    assert listed[0].split() == ["NAME", "URL", "EVENTS", "WAITING", "DEAD", "LAST", "ERROR"]
    assert listed[1].split()[:3] == ["ci", receiver.url, "sandbox,limit.memory,alert"]
    assert "the receiver answered 500" in listed[1]
    failed = skerry("webhook", "test", "ci", server=server.address)
    assert (failed.returncode, failed.stderr) == (1, b"error: the receiver answered 500\n")
    dead = [json.loads(line) for line in words("dead", "ci", "--json").splitlines()]
    assert {"sandbox.created", "sandbox.running"} <= {one["type"] for one in dead}
    assert all(one["attempts"] == 2 and one["status"] == 500 for one in dead)
    assert len(words("dead").splitlines()) == len(dead) + 1

    receiver.status = 204
    before = len(receiver.received)
    assert words("test", "ci") == "ok: the receiver answered 204\n"
    assert words("retry", "ci", dead[0]["id"]) == "retrying 1\n"
    assert json.loads(words("retry", "ci", "--json")) == {"retried": len(dead) - 1}
    wait_until(lambda: client.webhooks.list()[0].waiting == 0, "the queue to be empty")
    assert {one["id"] for one in dead} <= {one.id for one in receiver.received[before:]}
    assert skerry("webhook", "test", "none", server=server.address).returncode != 0
    sandbox.delete()
    recorded = {one.type for one in client.audit.records(type="webhook")}
    assert recorded == {"webhook.test", "webhook.retry"}


def test_receivers_of_the_server_are_for_admins(server: Server, client: Client) -> None:
    with server.http() as http:
        assert http.get("/v1/webhooks").json()["webhooks"][0]["name"] == "ci"
        assert "skerry_webhook_deliveries" in http.get("/metrics").text


def test_delivery_in_progress_survives_the_death_of_the_server(
    server: Server, receiver: Receiver, client: Client, config: str
) -> None:
    """The event is committed and its delivery is on the wire: the next server sends it again, with the same ID."""
    wait_until(lambda: client.webhooks.list()[0].waiting == 0, "the queue to be empty")
    receiver.status = 0
    before = len(receiver.received)
    sandbox = Sandbox.create(server=server.address, name="cut")
    receiver.wait_for(lambda found: len(found) > before, "the delivery to begin")
    server.end(signal.SIGKILL)
    receiver.status = 204
    server.start(SKERRY_CONFIG=config)
    receiver.wait_for(lambda _: receiver.types()[before:].count("sandbox.created") == 2, "the second attempt")
    receiver.wait_for(lambda _: "sandbox.running" in receiver.types()[before:], "the delivery that waited")
    again = [one for one in receiver.received[before:] if one.json["type"] == "sandbox.created"]
    assert again[0].id == again[1].id
    assert again[0].body == again[1].body
    sandbox.delete()


def test_deleted_records_are_found_with_the_copy_of_the_sink(
    server: Server, sink: Receiver, client: Client, tmp_path: Path
) -> None:
    """An attacker on the host cuts the log at an earlier seal and removes the checkpoint beside the key. The log is a
    valid, shorter one then; the sink's copy shows that records are missing."""
    client.tokens.create(note="kept")
    client.audit.verify()  # seals
    with client.audit.export() as pieces:
        early = b"".join(pieces)
    client.tokens.create(note="the record to hide")
    client.audit.verify()
    export, key, points = tmp_path / "audit.jsonl", tmp_path / "key.pub", tmp_path / "points"
    key.write_text("\n".join(one.public for one in client.audit.keys().keys))
    cut = json.loads(early.splitlines()[-1])["seq"]
    sink.wait_for(lambda found: max(one.json["seq"] for one in found) > cut, "a checkpoint after the cut")
    points.write_bytes(b"".join(one.body for one in sink.received))
    assert set(sink.received[-1].json) == set(Checkpoint.__struct_fields__)
    assert "webhook-signature" not in sink.received[-1].headers  # a checkpoint is signed itself

    export.write_bytes(early)
    arguments = ("audit", "verify", str(export), "--key", str(key))
    assert skerry(*arguments).returncode == 0
    found = skerry(*arguments, "--checkpoint", str(points))
    assert found.returncode == 1
    assert f"records {cut + 1} to ".encode() in found.stdout


def test_server_does_not_start_without_the_secret(own_server: Server, secret: Path, config: str) -> None:
    """An unsigned webhook is never sent, and the operator hears of it at the start."""
    broken = secret.parent / "broken.toml"
    broken.write_text(Path(config).read_text().replace(str(secret), "/absent/ci.secret"))
    own_server.start(wait=False, SKERRY_CONFIG=str(broken))
    assert own_server.process is not None
    assert own_server.process.wait(60) != 0
    assert "/absent/ci.secret" in own_server.tail()
    own_server.start()
