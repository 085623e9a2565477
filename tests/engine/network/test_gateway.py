"""Messages of the worker are accepted only for sandboxes whose gateway is open."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.config import load
from skerry.engine.database import Database
from skerry.engine.events import Events
from skerry.engine.network.approvals import ApprovalAnswer
from skerry.engine.network.attempts import AttemptLog
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.dial import PortDialer
from skerry.engine.network.gateway import GatewayManager, rules_of
from skerry.engine.network.handlers import MAX_CALLS, HandlerService
from skerry.engine.network.policies import MAX_ASKS, PolicyService
from skerry.engine.network.secrets import SecretStore
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec, SandboxTable
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.network.messages import (
    ApprovalNeeded,
    AttemptMessage,
    CloseGateway,
    DialRequest,
    ExchangeMessage,
    FromServer,
    HandlerBody,
    HandlerNeeded,
    HandlerResult,
    TrafficMessage,
)
from skerry.types import Handler, Lifecycle, Limits, Network, NetworkAttempt, Options, Preset

BOX, OTHER, FOREIGN = "sb-aaaaaaaaaa", "sb-bbbbbbbbbb", "sb-cccccccccc"
SPEC = SandboxSpec(
    image="base", image_digest="", layers=(), user="root", cwd="/", image_env={}, env={}, labels={},
    limits=Limits(memory="1G"), lifecycle=Lifecycle(idle_timeout="1h"),
    network=Network(peers={"db": OTHER, "x": FOREIGN}, handlers=(Handler(host="h.example", callback="both"),)),
    options=Options(),
)  # fmt: skip


def attempt(**more: Any) -> NetworkAttempt:
    values: dict[str, Any] = {"kind": "connection", "host": "a.example", "decision": "denied", "why": "no rule"}
    return NetworkAttempt(**{"id": "a1", "at": time.time(), **values, **more})


class GatewayHarness:
    """A gateway manager with a worker and three sandbox records, one of them with an open gateway."""

    def __init__(self, state: Path) -> None:
        self.settings = load(environ={"SKERRY_STATE_DIR": str(state)})
        owners = {BOX: "me", OTHER: "me", FOREIGN: "you"}
        self.sandboxes = {
            sandbox: Sandbox(
                SandboxRecord(id=sandbox, owner=owner, name=None, state="running", spec=SPEC, created_at=0.0)
            )
            for sandbox, owner in owners.items()
        }
        self.tasks = Tasks()
        self.dialled: list[str] = []
        self.sent: list[FromServer] = []
        self.shared_ports: set[tuple[str, int]] = set()
        database = Database(state / "state.db")
        self.attempts, self.secrets = AttemptLog(database), SecretStore(state / "secrets")
        cassettes = CassetteStore(state / "cassettes")
        self.gateways = GatewayManager(self.settings, self.secrets, cassettes, self.attempts, self.tasks)
        registry = SandboxRegistry(self.settings, SandboxTable(database, Events(database)))
        registry.add(self.sandboxes.values())
        itself: Any = self  # takes the place of the lifecycle and of the previews
        self.policies = PolicyService(self.settings, self.gateways, cassettes, registry, itself, self.tasks)
        self.handlers = HandlerService(self.gateways, registry, self.tasks)
        self.gateways.add(self.policies, self.handlers, PortDialer(self.gateways, registry, itself, itself, self.tasks))
        self.gateways.start()
        self.gateways.send = lambda message, fds=(): self.sent.append(message)  # type: ignore[method-assign]

    async def ensure_running(self, live: Sandbox) -> None:
        self.dialled.append(live.record.id)

    def shared(self, sandbox: str, port: int) -> Sandbox | None:
        return self.sandboxes[sandbox] if (sandbox, port) in self.shared_ports else None

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self.tasks.close()
        await self.gateways.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    async with asyncio.timeout(10):
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            await asyncio.sleep(0.001)
    pidfd = os.pidfd_open(process.pid)
    made = GatewayHarness(tmp_path)
    await made.gateways.open(made.sandboxes[BOX], pidfd)
    yield made
    await made.close()
    os.close(pidfd)
    process.kill()
    process.wait()


async def test_messages_about_a_sandbox_without_a_gateway_are_ignored(harness: GatewayHarness) -> None:
    for sandbox in (OTHER, "sb-nobody", "../../etc"):
        harness.gateways._handle_message(AttemptMessage(sandbox=sandbox, attempt=attempt()))
        harness.gateways._handle_message(TrafficMessage(sandbox=sandbox, sent=5, received=5, open=1))
    harness.gateways._handle_message(AttemptMessage(sandbox=BOX, attempt=attempt(port=99999)))
    harness.gateways._handle_message(TrafficMessage(sandbox=BOX, sent=-5, received=0, open=0))
    harness.attempts.flush()
    assert [page async for page in harness.attempts.read(BOX, 0, False, False)] == []
    assert [page async for page in harness.attempts.read(OTHER, 0, False, False)] == []
    assert (harness.attempts.traffic(BOX), harness.attempts.traffic(OTHER)) == ((0, 0), (0, 0))


async def test_gateway_is_closed_when_new_rules_cannot_be_sent(harness: GatewayHarness) -> None:
    """The file of its secrets can't be read, say: it has no way out then, rather than the old one."""

    def broken(row: SandboxRecord) -> Any:
        raise OSError("no such disk")

    assert harness.gateways.worker is not None
    assert await harness.gateways.worker.wait_ready(10)
    harness.secrets.brokered = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no such disk"):
        await harness.gateways.update_rules(harness.sandboxes[BOX])
    assert harness.sent[-1] == CloseGateway(sandbox=BOX)


async def test_traffic_keeps_a_sandbox_from_being_idle(harness: GatewayHarness) -> None:
    live = harness.sandboxes[BOX]
    live._used_at -= 7200
    assert live.idle_due
    harness.gateways._handle_message(TrafficMessage(sandbox=BOX, sent=1, received=2, open=3))
    assert not live.idle_due
    shown = harness.gateways.info(live)
    assert (shown.sent, shown.received, shown.open_connections) == (1, 2, 3)


async def test_a_dial_needs_a_preview_or_a_peer_of_the_same_owner(harness: GatewayHarness) -> None:
    for dial in (
        DialRequest(number=1, sandbox=BOX, port=80),  # no preview shows it
        DialRequest(number=2, sandbox=OTHER, port=80),
        DialRequest(number=3, sandbox=BOX, port=80, peer_of=BOX),  # it names no such peer
        DialRequest(number=4, sandbox=FOREIGN, port=80, peer_of=BOX),  # named, and of another owner
        DialRequest(number=5, sandbox=BOX, port=80, peer_of=OTHER),  # has no gateway, so cannot dial
        DialRequest(number=6, sandbox=OTHER, port=0, peer_of=BOX),
        DialRequest(number=7, sandbox="sb-nobody", port=80, peer_of=BOX),
    ):
        harness.gateways._handle_message(dial)
    await harness.settle()
    assert harness.dialled == []
    harness.gateways._handle_message(DialRequest(number=8, sandbox=OTHER, port=80, peer_of=BOX))
    harness.shared_ports.add((BOX, 80))
    harness.gateways._handle_message(DialRequest(number=9, sandbox=BOX, port=80))
    harness.gateways._handle_message(DialRequest(number=10, sandbox=BOX, port=81))
    await harness.settle()
    assert sorted(harness.dialled) == [BOX, OTHER]


async def test_flood_of_approval_requests_is_denied(harness: GatewayHarness) -> None:
    asked: list[str] = []

    async def ask(live: Sandbox, host: str, port: int | None, process: str | None) -> ApprovalAnswer:
        asked.append(host)
        await asyncio.sleep(60)
        return ApprovalAnswer(True, "yes")

    harness.policies.ask = ask  # type: ignore[method-assign]
    for number in range(MAX_ASKS + 50):
        harness.gateways._handle_message(
            ApprovalNeeded(approval_id=f"q{number}", sandbox=BOX, host="x.example", port=443)
        )
    harness.gateways._handle_message(ApprovalNeeded(approval_id="q", sandbox=OTHER, host="x.example", port=443))
    harness.gateways._handle_message(ApprovalNeeded(approval_id="q" * 1000, sandbox=BOX, host="x.example", port=443))
    await harness.settle()
    assert len(asked) == MAX_ASKS
    assert len(harness.sent) == 50


async def test_approval_answer_is_forwarded_with_its_reason(harness: GatewayHarness) -> None:
    async def ask(live: Sandbox, host: str, port: int | None, process: str | None) -> ApprovalAnswer:
        return ApprovalAnswer(host == "x.example", "somebody said so")

    harness.policies.ask = ask  # type: ignore[method-assign]
    harness.gateways._handle_message(ApprovalNeeded(approval_id="q1", sandbox=BOX, host="x.example", port=443))
    await harness.settle()
    (told,) = harness.sent
    assert (told.approval_id, told.allow, told.why) == ("q1", True, "somebody said so")  # type: ignore[union-attr]


def needed(call_id: str, sandbox: str = BOX, host: str = "h.example", **more: Any) -> HandlerNeeded:
    return HandlerNeeded(
        call_id=call_id,
        sandbox=sandbox,
        host=host,
        **{"method": "GET", "url": "http://h.example/", "headers": (), **more},
    )


async def test_attack_worker_cannot_flood_the_server_with_handler_calls(harness: GatewayHarness) -> None:
    """A call of a handler that the policy does not have, of another sandbox, or above the maximum fails at once."""
    assert harness.gateways.worker is not None
    assert await harness.gateways.worker.wait_ready(60)
    harness.gateways._handle_message(needed("no handler", host="x.example"))
    await harness.settle()
    assert [one.error for one in harness.sent if isinstance(one, HandlerResult)] == ["it was removed"]
    for number in range(MAX_CALLS + 20):
        harness.gateways._handle_message(needed(f"c{number}"))
    harness.gateways._handle_message(needed("other", OTHER))
    harness.gateways._handle_message(needed("c0"))
    harness.gateways._handle_message(needed("c" * 1000))
    await harness.settle()
    failed = [one.error for one in harness.sent if isinstance(one, HandlerResult)][1:]
    assert failed == [f"{MAX_CALLS} other requests wait for it"] * 20


async def test_attack_worker_cannot_fill_the_server_with_bodies(harness: GatewayHarness) -> None:
    piece = bytes(32 << 10)
    for number in range(3000):
        harness.gateways._handle_message(HandlerBody(call_id=f"c{number}", sandbox=BOX, data=piece))
        assert harness.handlers._held <= 64 << 20
    for _ in range(100):
        harness.gateways._handle_message(HandlerBody(call_id="one", sandbox=BOX, data=piece))
        assert sum(map(len, harness.handlers._bodies.values())) == harness.handlers._held
    for number in range(5000):
        harness.gateways._handle_message(HandlerBody(call_id=f"d{number}", sandbox=BOX, data=b""))
    assert len(harness.handlers._bodies) <= 4096
    harness.gateways._handle_message(HandlerBody(call_id="c", sandbox=OTHER, data=piece))
    assert (OTHER, "c") not in harness.handlers._bodies


async def test_attack_worker_cannot_call_a_handler_with_a_head_that_splits_a_message(harness: GatewayHarness) -> None:
    assert harness.gateways.worker is not None
    assert await harness.gateways.worker.wait_ready(60)
    harness.gateways._handle_message(needed("a", headers=(("X", "a\r\nb: c"),)))
    harness.gateways._handle_message(needed("b", response=(99, ())))
    harness.gateways._handle_message(needed("c", response=(200, (("Content-Length", "5"),))))
    await harness.settle()
    errors = [one.error for one in harness.sent if isinstance(one, HandlerResult)]
    assert len(errors) == 3
    assert all(errors)


async def test_exchange_of_an_impossible_kind_is_ignored(harness: GatewayHarness) -> None:
    for exchange in (
        ExchangeMessage(sandbox=OTHER, method="GET", url="http://a/", status=200),
        ExchangeMessage(sandbox=BOX, method="GET", url="http://a/", status=-1),
        ExchangeMessage(sandbox=BOX, method="GET", url="http://a/", status=200, request_body=bytes(60_000)),
    ):
        violations = harness.gateways._violations
        harness.gateways._handle_message(exchange)
        assert harness.gateways._violations in (violations, violations + 1)


def test_rules_combine_policy_presets_and_operator_maximum() -> None:
    settings = load(environ={"SKERRY_MAX_BANDWIDTH": "1M", "SKERRY_MAX_CONNECTIONS": "10"})
    preset = Preset(name="pip", allow=("index.example",), certificates="PEM", proxy="http://proxy.example:3128")
    network = Network(
        allow=("a.example",), deny=("b.example",), presets=(preset,), bytes_per_second="5M", max_bytes="1G"
    )
    rules = rules_of(SPEC.__class__(**{**_fields(SPEC), "network": network}), settings, (), None)
    assert (rules.allow, rules.deny, rules.ceiling) == (("a.example", "index.example"), ("b.example",), ("*",))
    assert (rules.bytes_per_second, rules.max_bytes, rules.max_connections) == (1 << 20, 1 << 30, 10)
    assert (rules.proxies, rules.certificates) == (((("index.example",), "http://proxy.example:3128"),), "PEM")


def test_owner_cannot_lift_a_deny_of_the_operator() -> None:
    settings = load(environ={"SKERRY_NETWORK_DENY": "bad.example"})
    for deny in ((), ("bad.example",)):  # as an owner left it, and as a new sandbox has it
        network = Network(allow=("*",), deny=deny)
        assert rules_of(SPEC.__class__(**{**_fields(SPEC), "network": network}), settings, (), None).deny == (
            "bad.example",
        )


def _fields(spec: SandboxSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


async def test_leftovers_of_a_deleted_sandbox_are_swept_after_a_crash(harness: GatewayHarness) -> None:
    harness.gateways._handle_message(AttemptMessage(sandbox=BOX, attempt=attempt()))
    harness.attempts.flush()
    names = harness.settings.state_dir / "names"
    for sandbox in (BOX, OTHER):
        (names / sandbox).touch()
    harness.gateways.sweep({OTHER})
    assert os.listdir(names) == [OTHER]
    assert [page async for page in harness.attempts.read(BOX, 0, False, False)] == []
