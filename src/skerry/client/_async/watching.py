"""Changes below a directory inside, as they come."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skerry.client import file_requests as requests
from skerry.client._async.resumed import AsyncResumed
from skerry.client.lines import LineDecoder
from skerry.client.responses import WatchLine, decode, raised
from skerry.errors import ServerUnreachable
from skerry.types import FileEvent

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncWatch(AsyncResumed[FileEvent]):
    """`async for event in watch`, until the directory itself is removed. `token` is where it stands: the sandbox
    remembers for some minutes, `watch(since=watch.token)` goes on."""

    def __init__(self, sandbox: AsyncSandbox, wish: requests.WatchWish, since: str | None) -> None:
        super().__init__()
        self.token = since
        self._sandbox = sandbox
        self._wish = wish

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
