"""State that all connections of one sandbox share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from skerry.network.messages import Rules
from skerry.network.policy.handlers import HandlerTable
from skerry.network.policy.policy import Policy
from skerry.network.worker.audit import AttemptReporter
from skerry.network.worker.cassette import Player, Recorder
from skerry.network.worker.control import ServerLink
from skerry.network.worker.dns.resolver import SandboxResolver
from skerry.network.worker.http.filters import Interceptor
from skerry.network.worker.rate_limit import TokenBucket, TrafficMeter
from skerry.network.worker.relay import PipeLease
from skerry.types.hosts import Host

MAX_PENDING_APPROVALS = 64
MAX_HELD_BODIES = 16  # exchanges at once with bodies for a handler: each body is held in memory
HANDSHAKES_PER_SECOND, HANDSHAKE_BURST = (
    200,
    200,
)  # a handshake takes the event loop, which all sandboxes share, 3 ms


@dataclass
class SandboxContext:
    sandbox: str
    rules: Rules
    policy: Policy
    server: ServerLink
    attempts: AttemptReporter
    meter: TrafficMeter
    pipes: PipeLease
    resolver: SandboxResolver
    interceptor: Interceptor | None
    handlers: HandlerTable
    recorder: Recorder | None = None
    player: Player | None = None  # then nothing leaves: every response comes from the cassette
    handshakes: TokenBucket = field(default_factory=lambda: TokenBucket(HANDSHAKES_PER_SECOND, HANDSHAKE_BURST))
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_HELD_BODIES))
    pending_approvals: dict[tuple[Host, int], asyncio.Future[tuple[bool, str]]] = field(default_factory=dict)
