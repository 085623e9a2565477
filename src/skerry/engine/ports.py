"""The ports on which a sandbox's programs listen, asked for from inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from skerry.engine.live import Live
from skerry.keeper import Keeper
from skerry.types import Caller, PortState

Use = Callable[[Caller, str], AbstractAsyncContextManager[tuple[Live, Keeper]]]


class Ports:
    """`use` gives a running sandbox for one call."""

    def __init__(self, use: Use) -> None:
        self._use = use

    async def wait(self, caller: Caller, ref: str, port: int, within: float, http_path: str | None) -> PortState:
        """Until it is open, or the time is over."""
        async with self._use(caller, ref) as (_, keeper):
            state = await keeper.wait_for_port(port, within, http_path)
        return PortState(open=state.open, status=state.status, last=state.last)
