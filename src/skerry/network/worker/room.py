"""What all connections of one sandbox share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from skerry.network.hosts import Host
from skerry.network.messages import Rules
from skerry.network.policy import Policy
from skerry.network.worker.attempts import Attempts
from skerry.network.worker.desk import Outside
from skerry.network.worker.hooks import Inspection
from skerry.network.worker.limits import Meter, Turns
from skerry.network.worker.relay import Lot
from skerry.network.worker.resolve import Share

ASKED_MOST = 64
SHAKES_A_SECOND, SHAKES_AT_ONCE = 200, 200  # opening TLS is 3 ms of work for the loop, on which all sandboxes are


@dataclass
class Room:
    sandbox: str
    rules: Rules
    policy: Policy
    outside: Outside
    attempts: Attempts
    meter: Meter
    pipes: Lot
    share: Share
    inspection: Inspection | None
    shakes: Turns = field(default_factory=lambda: Turns(SHAKES_A_SECOND, SHAKES_AT_ONCE))
    asked: dict[tuple[Host, int], asyncio.Future[tuple[bool, str]]] = field(default_factory=dict)
