"""Waiting until something inside listens on a port."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from skerry.keeper.channel import Channel
from skerry.keeper.failures import KeeperLied
from skerry.keeper.values import PortState

_ROUND_S: Final = 30.0  # of one question; a keeper takes at most 60
_SLACK_S: Final = 1.0  # two clocks may differ

_state = msgspec.json.Decoder(PortState)


async def wait_for_port(channel: Channel, port: int, timeout_s: float, http_path: str | None) -> PortState:
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_s
    while True:
        asked_at = clock()
        takes_s = min(max(0.0, end - asked_at), _ROUND_S)
        body = {"port": port, "timeout_s": takes_s, "http_path": http_path}
        state = await channel.call(_state, "POST", "/v1/ports/wait", body=body, takes_s=takes_s)
        if state.open or clock() >= end:
            return state
        if clock() < asked_at + takes_s - _SLACK_S:  # it would be asked again, and again
            raise KeeperLied("the keeper did not wait for a port as long as it was told to")
