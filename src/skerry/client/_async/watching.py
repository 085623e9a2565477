"""Changes below a directory inside, through broken connections: what was missed is said, nothing comes twice."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skerry.client import backend_async as backend
from skerry.client import file_requests as requests
from skerry.client.lines import LineDecoder
from skerry.client.patience import Patience
from skerry.client.responses import WatchLine, decode, raised
from skerry.errors import ServerUnreachable
from skerry.types import FileEvent

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncWatch:
    """`async for event in watch`, until the directory itself is removed. `token` is where it stands."""

    def __init__(self, sandbox: AsyncSandbox, wish: requests.WatchWish, since: str | None) -> None:
        self.token = since
        self._sandbox = sandbox
        self._wish = wish
        self._events: AsyncGenerator[FileEvent | None, None] | None = None
        self._ended = False

    async def __aenter__(self) -> AsyncWatch:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop watching. The sandbox remembers for some minutes: `watch(since=watch.token)` goes on."""
        events, self._events, self._ended = self._events, None, True
        if events is not None:
            await events.aclose()

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileEvent:
        events = await self._begin()
        while True:
            event = await anext(events)
            if event is not None:
                return event

    async def _begin(self) -> AsyncGenerator[FileEvent | None, None]:
        """The first thing to come says that the watch stands."""
        if self._events is None:
            self._events = self._follow()
            if not self._ended:
                await anext(self._events)
        return self._events

    async def _follow(self) -> AsyncGenerator[FileEvent | None, None]:
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

    async def _once(self) -> AsyncGenerator[FileEvent | None, None]:
        """One connection's worth; None: the watch stands. An answer that just stops was cut off."""
        sandbox, lines, root = self._sandbox, LineDecoder(), ""
        async with sandbox.client.stream(requests.watch(sandbox.id, self._wish, self.token)) as chunks:
            async for chunk in chunks:
                for line in lines.feed(chunk):
                    head = decode(line, WatchLine)
                    if head.error is not None:
                        raise raised(head.error)
                    self.token = head.token
                    if head.type == "ready":
                        root = head.path
                        yield None
                        continue
                    event = readable(decode(line, FileEvent))
                    self._ended = event.type == "removed" and head.path == root
                    yield event
        if not self._ended:
            raise ServerUnreachable("the watch ended before its directory did", hint="`skerry server status`")


def readable(event: FileEvent) -> FileEvent:
    """With paths that are not UTF-8 as Python has them."""
    path = os.fsdecode(event.raw_path) if event.raw_path is not None else event.path
    to = os.fsdecode(event.raw_to) if event.raw_to is not None else event.to
    return replace(event, path=path, to=to)
