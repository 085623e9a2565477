"""`sandbox.processes`, `sandbox.run` and `sandbox.spawn`: commands inside a sandbox."""

from __future__ import annotations

import builtins
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, AnyStr, Literal

from skerry.client.create_options import seconds
from skerry.client.host.content import check_source, whole
from skerry.client.results.command import (
    Output,
    OutputCollector,
    StreamName,
    ended_early,
    join_output,
    pattern_timeout,
    result_of,
    still_running,
    unknown_end,
)
from skerry.client.results.search import OutputSearch
from skerry.client.transport import backend_async as backend
from skerry.client.transport.backoff import Backoff, PollDeadline
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.requests.sandboxes import MAX_INLINE_STDIN, for_clean_up
from skerry.client.transport.responses import GapFrame, PauseFrame, StartedFrame, decode, error_frame
from skerry.client.transport.terminal_messages import REPLAY
from skerry.codecs.frames import ERROR, EXIT, MISSING, OUTPUT, PAUSE, STARTED, STDOUT, FrameDecoder
from skerry.errors import Conflict, NotFound, SandboxUnavailable, ServerUnreachable, SkerryError
from skerry.types import (
    MAX_TOOL_CALLS,
    ProcessInfo,
    ProcessList,
    ProcessStatus,
    ReportedCall,
    Result,
    RunRequest,
    RunResult,
)

if TYPE_CHECKING:
    from skerry.client._async.sandbox import AsyncSandbox
    from skerry.client._async.terminal import AsyncTerminal


class AsyncProcesses:
    """All commands, run and spawned. Ended ones stay until they are removed, or the sandbox is deleted."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def list(self) -> builtins.list[AsyncProcess]:
        """Return all processes, oldest first."""
        sandbox = self._sandbox
        listed = await sandbox.client.request_json(sandboxes.processes(sandbox.id), ProcessList)
        return [AsyncProcess(sandbox, info) for info in listed.processes]

    async def get(self, process: str) -> AsyncProcess:
        """Return a process by its ID; also by `result.id` of a run."""
        sandbox = self._sandbox
        return AsyncProcess(
            sandbox, await sandbox.client.request_json(sandboxes.process(sandbox.id, process), ProcessInfo)
        )

    async def signal(self, process: str, name: str = "TERM") -> None:
        """Send a signal to a process. KILL ends its whole tree, also processes that left its session."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.signal(sandbox.id, process, name))

    async def report_tool_calls(self, process: str, calls: Sequence[ReportedCall]) -> None:
        """Report tool calls of a coding agent that runs as this process. The review attributes changes of files to the
        tool call that was running, in the agent's words."""
        sandbox = self._sandbox
        for at in range(0, len(calls), MAX_TOOL_CALLS):
            await sandbox.client.request(sandboxes.tool_calls(sandbox.id, process, calls[at : at + MAX_TOOL_CALLS]))

    async def remove(self, process: str) -> None:
        """Remove an ended process and its output."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.remove_process(sandbox.id, process))

    async def kill_all(self) -> int:
        """Kill all running processes with their trees; return their number. Contexts lose their variables."""
        running = [process for process in await self.list() if process.state == "running"]
        for process in running:
            with contextlib.suppress(NotFound):  # removed meanwhile
                await process.kill()
        return len(running)

    async def prune(self) -> int:
        """Remove all ended processes with their output; return their number."""
        ended = [process for process in await self.list() if process.state == "exited"]
        for process in ended:
            with contextlib.suppress(NotFound):
                await self.remove(process.id)
        return len(ended)


class AsyncStdin:
    """The input of a process. Writing waits while the process does not read; after a close it raises Conflict."""

    def __init__(self, sandbox: AsyncSandbox, process: str) -> None:
        self._sandbox = sandbox
        self._process = process

    async def write(self, content: backend.AnySource) -> None:
        """Write str, bytes, a file object or an iterable of them."""
        check_source(content)
        known = whole(content)
        body = known if known is not None else backend.chunks(content)
        await self._send(sandboxes.stdin(self._sandbox.id, self._process, body, close=False))

    async def close(self) -> None:
        """Close the input of the process."""
        await self._send(sandboxes.stdin(self._sandbox.id, self._process, b"", close=True))

    async def _send(self, request: sandboxes.Request) -> None:
        await self._sandbox.client.request(request)


class AsyncProcess:
    """A command in a sandbox that outlives the call that started it. Its output is kept from the first byte on."""

    def __init__(self, sandbox: AsyncSandbox, info: ProcessInfo) -> None:
        self._sandbox = sandbox
        self._info = info
        self._listener = backend.BackgroundTask()
        self.stdin = AsyncStdin(sandbox, info.id)

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.id} {self.state}>"

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def pid(self) -> int:
        """The process ID inside the sandbox."""
        return self._info.pid

    @property
    def state(self) -> Literal["running", "exited"]:
        """The last known state; `.info()` requests it again."""
        return self._info.state

    @property
    def cached_info(self) -> ProcessInfo:
        """The last known information; `.info()` requests it again."""
        return self._info

    @property
    def status(self) -> ProcessStatus:
        """The last known state and end in one word: `running`, `completed`, `failed` or `killed`."""
        return self._info.status

    async def notify(
        self, on_output: backend.Callback[Output] | None = None, on_exit: backend.Callback[Result] | None = None
    ) -> None:
        """Call `on_output` for each piece of its output, and `on_exit` with its result, in a task or thread of this
        program. An exception of a callback ends both. If the process is removed first, for example with its sandbox,
        `on_exit` gets a result without an exit code, whose `hint` has the reason."""
        await self._listener.start(self._notify, on_output, on_exit)

    async def _notify(
        self, on_output: backend.Callback[Output] | None, on_exit: backend.Callback[Result] | None
    ) -> None:
        if on_output is not None:
            async for piece in self._output_until_removed():
                await backend.deliver(on_output, piece)
        if on_exit is not None:
            await backend.deliver(on_exit, await self._end())

    async def _output_until_removed(self) -> AsyncIterator[Output]:
        with contextlib.suppress(SkerryError):
            async for piece in self.follow():
                yield piece

    async def _end(self) -> Result:
        """Return its result, also if the process is gone, with all that is known about it."""
        try:
            return await self.wait()
        except SkerryError as error:
            return unknown_end(self._info, error)

    async def info(self) -> ProcessInfo:
        """Request the current information from the server."""
        sandbox = self._sandbox
        self._info = await sandbox.client.request_json(sandboxes.process(sandbox.id, self.id), ProcessInfo)
        return self._info

    async def wait(self, timeout: float | None = None) -> Result:
        """Wait for its end; return the head and the tail of its output. Raise CommandTimeout if it still runs after
        `timeout` seconds; it continues. Reconnect if the connection or the server goes away meanwhile."""
        sandbox, polls = self._sandbox, PollDeadline(seconds(timeout))
        for left in polls:
            try:
                end = await sandbox.client.request_json_or_none(sandboxes.wait(sandbox.id, self.id, left), RunResult)
                polls.reset()
            except ServerUnreachable as error:
                await backend.sleep(polls.next_delay(error))
                continue
            if end is not None:
                return result_of(end, self._info)
        raise polls.error or still_running(self._info, timeout)

    async def signal(self, name: str) -> None:
        """Send a signal, like "TERM" or "INT", to the process and its group. Raise Conflict if it has ended."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.signal(sandbox.id, self.id, name))

    async def kill(self) -> None:
        """Kill it with its whole tree, also daemons and processes left behind. Ignore a process that has ended."""
        try:
            await self.signal("KILL")
        except Conflict:
            return

    async def resize(self, cols: int, rows: int) -> None:
        """Set the size of its terminal. Raise Conflict if it has none."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.resize(sandbox.id, self.id, cols, rows))

    def terminal(self, *, replay: int = REPLAY, since: int | None = None) -> AsyncTerminal:
        """Open its terminal, to read and to type: `async with process.terminal() as terminal:`. It starts with a replay
        of the last bytes shown, or with all bytes from `since` on. Raise Conflict if the process has no terminal."""
        from skerry.client._async.terminal import AsyncTerminal  # loads the WebSocket parser

        return AsyncTerminal(self._sandbox, self.id, replay=replay, since=since)

    async def output(self, since: int = 0, *, limit: int | None = None) -> Output:
        """Return its output from byte `since` on, both streams in order, at most `limit` bytes. A negative `since`
        counts from the end. Continue with `since=output.offset`; `missing` bytes of it were dropped."""
        following = AsyncOutputReader(self._sandbox, self.id, since, limit=limit)
        return join_output([piece async for piece in following.pieces(follow=False)], following.offset)

    async def follow(self, since: int = 0, *, wait: bool = True) -> AsyncIterator[Output]:
        """Iterate over its output from byte `since` to its end; with `wait=False` only over the output so far. It
        reconnects when the connection or the server goes away, without losing or repeating output."""
        async for piece in AsyncOutputReader(self._sandbox, self.id, since).pieces(follow=wait):
            yield piece

    async def wait_for_output(
        self, pattern: AnyStr | re.Pattern[AnyStr], timeout: float | None = 60, *, since: int = 0
    ) -> re.Match[AnyStr]:
        """Wait until its output, from byte `since` on, matches a regular expression (str or bytes).

        Raise CommandTimeout if it does not match in time, CommandFailed if the process ends before: both include the
        last output.
        """
        seconds(timeout)
        search = OutputSearch(pattern)
        following = AsyncOutputReader(self._sandbox, self.id, since)
        async for piece in following.pieces(within=timeout):
            found = search.add(piece.data, after_gap=piece.missing > 0)
            if found is not None:
                return found
        if following.end is None:
            raise pattern_timeout(self._info, search, timeout)
        raise ended_early(self._info, search, await self.wait())


async def start_process(
    sandbox: AsyncSandbox,
    request: RunRequest,
    on_output: backend.Callback[Output] | None,
    on_exit: backend.Callback[Result] | None,
) -> AsyncProcess:
    """Start a background command, with its callbacks."""
    process = AsyncProcess(
        sandbox, await sandbox.client.request_json(sandboxes.spawn(sandbox.id, request), ProcessInfo)
    )
    if on_output is not None or on_exit is not None:
        await process.notify(on_output, on_exit)
    return process


class AsyncOutputReader:
    """Reads the output from one byte on, over broken connections, without loss or repetition. `offset`: the position of
    the next byte; `end`: the end of the process, once read; `more`: the available output exceeded `limit`."""

    def __init__(self, sandbox: AsyncSandbox, process: str, since: int, *, limit: int | None = None) -> None:
        self.offset = since
        self.end: RunResult | None = None
        self.more = False
        self._sandbox = sandbox
        self._process = process
        self._limit = limit
        self._paused = False

    async def pieces(self, *, follow: bool = True, within: float | None = None) -> AsyncIterator[Output]:
        """Yield the available output; with `follow` also new output, until the process ends or the time is over."""
        backoff = Backoff()
        until = None if within is None else time.monotonic() + within
        while self.end is None and not self._paused:
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                async for piece in self._once(follow, left):
                    backoff.reset()
                    yield piece
            except ServerUnreachable as error:
                pause = backoff.next_delay(error)
                if until is not None and time.monotonic() + pause > until:
                    raise
                await backend.sleep(pause)

    async def _once(self, follow: bool, within: float | None) -> AsyncIterator[Output]:
        """Yield the output of one connection. A response without an end was interrupted."""
        sandbox, decoder = self._sandbox, FrameDecoder()
        request = sandboxes.output(
            sandbox.id, self._process, since=self.offset, follow=follow, limit=self._limit, timeout=within
        )
        async with sandbox.client.stream(request) as chunks:
            async for chunk in chunks:
                for kind, payload in decoder.feed(chunk):
                    piece = self._take(kind, payload)
                    if piece is not None:
                        yield piece
        if self.end is None and not self._paused:
            raise ServerUnreachable("the output ended before the process did", hint="`skerry server logs`")

    def _take(self, kind: int, payload: bytes) -> Output | None:
        if kind == STARTED:
            self.offset = decode(payload, StartedFrame).offset
        elif kind == MISSING:
            missing = decode(payload, GapFrame).missing
            self.offset += missing
            return Output(stream="both", data=b"", offset=self.offset, missing=missing)
        elif kind == EXIT:
            self.end = decode(payload, RunResult)
        elif kind == PAUSE:
            self._paused, self.more = True, decode(payload, PauseFrame).more
        elif kind == ERROR:
            raise error_frame(payload)
        else:
            self.offset += len(payload)
            if self._limit is not None:
                self._limit = max(1, self._limit - len(payload))
            return Output(stream="stdout" if kind == STDOUT else "stderr", data=payload, offset=self.offset)
        return None


class AsyncRun:
    """One run of a command. If the wait ends early, the command is killed. `on_start` receives it."""

    def __init__(
        self,
        sandbox: AsyncSandbox,
        request: RunRequest,
        source: backend.AnySource | None,
        on_output: backend.Callback[Output] | None,
        on_start: backend.Callback[AsyncRun] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._request = request
        self._source = source
        self._on_output = on_output
        self._on_start = on_start
        self._gathered = OutputCollector()
        self._offset = 0
        self._aside = backend.BackgroundTask()
        self._process: str | None = None
        self._end: RunResult | None = None
        self._source_error: Exception | None = None

    @property
    def id(self) -> str:
        """The process ID, as in `sandbox.processes`."""
        if self._process is None:
            raise Conflict("the command has not started")
        return self._process

    async def signal(self, name: str) -> None:
        """Send a signal, like "INT", to the command and its group, from another thread or task; KILL ends its whole
        tree. Raise Conflict if it has ended."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.signal(sandbox.id, self.id, name))

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
            raise SandboxUnavailable("the output ended before the command did", hint="`skerry show` shows its state")
        return self._gathered.result(self._end, self._request.cmd)

    async def _follow(self) -> None:
        decoder = FrameDecoder()
        sandbox = self._sandbox
        async with sandbox.client.stream(sandboxes.run(sandbox.id, self._request)) as chunks:
            async for chunk in chunks:
                for kind, payload in decoder.feed(chunk):
                    await self._take(kind, payload)

    async def _take(self, kind: int, payload: bytes) -> None:
        if kind == STARTED:
            self._process = decode(payload, StartedFrame).id
            if self._on_start is not None:
                await backend.deliver(self._on_start, self)
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
        """Send stdin. Ignore a command that ends or closes its stdin early. An error of the source is the caller's and
        kills the command: half an input must not pass for a complete one."""
        sandbox = self._sandbox
        try:
            await sandbox.client.request(sandboxes.stdin(sandbox.id, process, backend.chunks(source), close=True))
        except SkerryError:
            return
        except Exception as error:
            self._source_error = error
            await self._kill()

    async def _kill(self) -> None:
        if self._process is None or self._end is not None:
            return
        sandbox = self._sandbox
        # A failure here is harmless: the server ends a command when its caller disconnects.
        with contextlib.suppress(SkerryError):
            await sandbox.client.request(for_clean_up(sandboxes.signal(sandbox.id, self._process, "KILL")))


def prepare_stdin(request: RunRequest, stdin: backend.AnySource | None) -> tuple[RunRequest, backend.AnySource | None]:
    """Return the request with a small stdin in it, or with the announcement of a streamed one."""
    if stdin is None:
        return request, None
    check_source(stdin)
    known = whole(stdin)
    if known is None or len(known) > MAX_INLINE_STDIN:
        return sandboxes.with_stdin_stream(request), stdin
    return sandboxes.with_stdin(request, known), None
