"""One run: frames in, output delivered as it comes, stdin fed beside it, a `Result` at the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from skerry.client import backend_async as backend
from skerry.client import requests
from skerry.client.content import check_source, whole
from skerry.client.frames import ERROR, EXIT, OUTPUT, STARTED, STDOUT, FrameDecoder
from skerry.client.outcome import Gathered, Output, StreamName
from skerry.client.requests import STDIN_INLINE, hurried
from skerry.client.responses import Started, decode, error_frame
from skerry.errors import SandboxUnavailable, SkerryError
from skerry.types import Result, RunRequest, RunResult

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncRunning:
    """A command between its start and its end. Whatever ends the wait early ends the command too."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        request: RunRequest,
        source: backend.AnySource | None,
        on_output: backend.Callback[Output] | None,
    ) -> None:
        self._sandbox = sandbox
        self._request = request
        self._source = source
        self._on_output = on_output
        self._gathered = Gathered()
        self._offset = 0
        self._aside = backend.Aside()
        self._process: str | None = None
        self._end: RunResult | None = None
        self._source_error: Exception | None = None

    async def result(self) -> Result:
        try:
            await self._follow()
        except BaseException:
            await self._kill()
            raise
        finally:
            await self._aside.end()
        if self._source_error is not None:
            raise self._source_error
        if self._end is None:
            raise SandboxUnavailable("the output ended before the command did", hint="`skerry show` tells its state")
        return self._gathered.result(self._end)

    async def _follow(self) -> None:
        decoder = FrameDecoder()
        sandbox = self._sandbox
        async with sandbox.client.stream(requests.run(sandbox.id, self._request)) as chunks:
            async for chunk in chunks:
                for kind, payload in decoder.feed(chunk):
                    await self._take(kind, payload)

    async def _take(self, kind: int, payload: bytes) -> None:
        if kind == STARTED:
            self._process = decode(payload, Started).id
            if self._source is not None:
                await self._aside.start(self._feed, self._process, self._source)
        elif kind == EXIT:
            self._end = decode(payload, RunResult)
        elif kind == ERROR:
            raise error_frame(payload)
        elif kind in OUTPUT:
            await self._output("stdout" if kind == STDOUT else "stderr", payload)

    async def _output(self, stream: StreamName, data: bytes) -> None:
        self._offset += len(data)
        self._gathered.add(stream, data)
        if self._on_output is not None:
            await backend.deliver(self._on_output, Output(stream=stream, data=data, offset=self._offset))

    async def _feed(self, process: str, source: backend.AnySource) -> None:
        """Send stdin. A command that ends or closes its stdin before all was sent is nobody's failure;
        a source that breaks is the caller's, and ends the command: half an input must not pass for a whole one."""
        sandbox = self._sandbox
        try:
            await sandbox.client.done(requests.stdin(sandbox.id, process, backend.chunks(source), close=True))
        except SkerryError:
            return
        except Exception as error:
            self._source_error = error
            await self._kill()

    async def _kill(self) -> None:
        if self._process is None or self._end is not None:
            return
        sandbox = self._sandbox
        # A failure here changes nothing: the server ends a command whose caller went away.
        with contextlib.suppress(SkerryError):
            await sandbox.client.done(hurried(requests.signal(sandbox.id, self._process, "KILL")))


def prepare(request: RunRequest, stdin: backend.AnySource | None) -> tuple[RunRequest, backend.AnySource | None]:
    """The request with a small stdin in it, or with the promise of one that follows."""
    if stdin is None:
        return request, None
    check_source(stdin)
    known = whole(stdin)
    if known is None or len(known) > STDIN_INLINE:
        return requests.with_stdin_stream(request), stdin
    return requests.with_stdin(request, known), None
