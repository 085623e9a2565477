"""Events that come one by one, through broken connections: what was missed is said, nothing comes twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, Self, TypeVar

from skerry.client import backend_async as backend
from skerry.client.patience import Patience
from skerry.errors import ServerUnreachable

E = TypeVar("E")


class AsyncResumed(Generic[E]):
    """Iterate for the events, until `_ended`. A connection's worth of them is the subclass's to give, from where it
    stands: `_once`, whose first thing, None, says that it stands."""

    def __init__(self) -> None:
        self._events: AsyncGenerator[E | None, None] | None = None
        self._ended = False

    def _once(self) -> AsyncGenerator[E | None, None]:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop. Another one can go on from where this one stood."""
        events, self._events, self._ended = self._events, None, True
        if events is not None:
            await events.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        events = await self._begin()
        while True:
            event = await anext(events)
            if event is not None:
                return event

    async def _begin(self) -> AsyncGenerator[E | None, None]:
        if self._events is None:
            self._events = self._follow()
            if not self._ended:
                await anext(self._events)
        return self._events

    async def _follow(self) -> AsyncGenerator[E | None, None]:
        patience, stood = Patience(), False
        while not self._ended:
            try:
                async for event in self._once():
                    stood = True
                    patience.renew()
                    yield event
            except ServerUnreachable as error:
                if not stood:
                    raise
                await backend.sleep(patience.pause(error))
