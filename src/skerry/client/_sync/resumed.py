# Generated from client/_async/resumed.py by scripts/generate_sync.py. Do not edit.
"""Events that come one by one, through broken connections: what was missed is said, nothing comes twice."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

from skerry.client import backend_sync as backend
from skerry.client.patience import Patience
from skerry.errors import ServerUnreachable

E = TypeVar("E")


class Resumed(Generic[E]):
    """Iterate for the events, until `_ended`. A connection's worth of them is the subclass's to give, from where it
    stands: `_once`, whose first thing, None, says that it stands."""

    def __init__(self) -> None:
        self._events: Generator[E | None, None] | None = None
        self._ended = False

    def _once(self) -> Generator[E | None, None]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop. Another one can go on from where this one stood."""
        events, self._events, self._ended = self._events, None, True
        if events is not None:
            events.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        events = self._begin()
        while True:
            event = next(events)
            if event is not None:
                return event

    def _begin(self) -> Generator[E | None, None]:
        if self._events is None:
            self._events = self._follow()
            if not self._ended:
                next(self._events)
        return self._events

    def _follow(self) -> Generator[E | None, None]:
        patience, stood = Patience(), False
        while not self._ended:
            try:
                for event in self._once():
                    stood = True
                    patience.renew()
                    yield event
            except ServerUnreachable as error:
                if not stood:
                    raise
                backend.sleep(patience.pause(error))
