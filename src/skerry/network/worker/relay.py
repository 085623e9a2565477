"""Relay bytes between sockets with `splice`: they never enter this process. All connections share pipes and borrow one
only while bytes are in transit, so that an idle connection costs only its two sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Final

from skerry.network.worker.http.filters import BodyFilter
from skerry.network.worker.rate_limit import TrafficMeter
from skerry.network.worker.streams import CHUNK, SocketStream

PIPE_SIZE: Final = 1 << 20
_MAX_SPARE: Final = 32
_MAX_LARGE: Final = 8  # at once, for one sandbox
_MAX_ROUNDS: Final = 4  # then the loop's other work runs
_SPLICE_FLAGS: Final = 0x1 | 0x2  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK; `os` names them from Python 3.12 on


class PipePool:
    """A pool of pipes. The kernel lets an unprivileged user's pipes hold 64 MiB together and gives one page each beyond
    that, so a few large pipes are shared."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        if self._spare:
            return self._spare.pop()
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return ends

    def give(self, ends: tuple[int, int], empty: bool) -> None:
        if empty and len(self._spare) < _MAX_SPARE:
            self._spare.append(ends)
        else:
            os.close(ends[0])
            os.close(ends[1])

    def lease(self) -> PipeLease:
        return PipeLease(self)

    def close(self) -> None:
        while self._spare:
            self.give(self._spare.pop(), False)


class PipeLease:
    """One sandbox's share of the pipes: a sandbox whose connections stall with full pipes gets small ones for the
    rest."""

    def __init__(self, pipes: PipePool) -> None:
        self._pipes = pipes
        self._large: set[tuple[int, int]] = set()

    def take(self) -> tuple[int, int]:
        if len(self._large) >= _MAX_LARGE:
            return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        ends = self._pipes.take()
        self._large.add(ends)
        return ends

    def give(self, ends: tuple[int, int], empty: bool) -> None:
        if ends in self._large:
            self._large.discard(ends)
            self._pipes.give(ends, empty)
        else:
            os.close(ends[0])
            os.close(ends[1])


class SpliceDirection:
    """One direction. `run` ends when the source has ended or `left` bytes have moved; it raises OSError if either side
    fails. Bytes that were read ahead (the source's `pending`) go first."""

    def __init__(
        self,
        source: SocketStream,
        sink: SocketStream,
        pipes: PipePool | PipeLease,
        meter: TrafficMeter,
        count: Callable[[int], None],
        left: int | None = None,
    ) -> None:
        self._source, self._sink, self._pipes, self._meter = source, sink, pipes, meter
        self._count, self._left = count, left
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._ends: tuple[int, int] | None = None
        self._in_pipe = 0
        self._reading = self._writing = self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        # keep the descriptor numbers: a socket closed meanwhile must still be removed from the loop
        self._from, self._to = source.sock.fileno(), sink.sock.fileno()

    async def run(self) -> bool:
        """Return True if the source has ended, False if `left` ran out first."""
        try:
            self._step()
            await self._done
        finally:
            self._stop()
        return self._ended

    def _step(self) -> None:
        if self._done.done():
            return
        self._timer = None
        try:
            for _ in range(_MAX_ROUNDS):
                if not self._move():
                    return
            if self._left == 0 and not self._in_pipe:  # no event would wake it again
                self._done.set_result(None)
                return
            self._wait_for(read=not self._in_pipe, write=bool(self._in_pipe))
            if self._source.pending:
                self._loop.call_soon(self._step)
        except OSError as error:
            self._done.set_exception(error)

    def _move(self) -> bool:
        """Move one piece; return False if it must wait or has finished."""
        if self._in_pipe:
            return self._drain_pipe()
        if self._left == 0:
            self._done.set_result(None)
            return False
        allowed = self._meter.allowance(PIPE_SIZE if self._left is None else min(PIPE_SIZE, self._left))
        if allowed == 0:
            if self._meter.exhausted:
                raise ConnectionAbortedError("the sandbox's byte limit is used up")
            self._wait_for()
            self._timer = self._loop.call_later(self._meter.delay(), self._step)
            return False
        return self._send_pending(allowed) if self._source.pending else self._fill_pipe(allowed)

    def _send_pending(self, allowed: int) -> bool:
        try:
            sent = self._sink.sock.send(memoryview(self._source.pending)[:allowed])
        except BlockingIOError:
            self._wait_for(write=True)
            return False
        self._source.pending = self._source.pending[sent:]
        self._count_moved(sent)
        return True

    def _fill_pipe(self, allowed: int) -> bool:
        if self._ends is None:
            self._ends = self._pipes.take()
        try:
            self._in_pipe = os.splice(self._from, self._ends[1], allowed, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            self._return_pipe()
            self._wait_for(read=True)
            return False
        if self._in_pipe == 0:
            self._ended = True
            self._done.set_result(None)
            return False
        return self._drain_pipe()

    def _drain_pipe(self) -> bool:
        assert self._ends is not None  # noqa: S101 -- these bytes are in a pipe
        try:
            sent = os.splice(self._ends[0], self._to, self._in_pipe, flags=_SPLICE_FLAGS)
        except BlockingIOError:
            self._wait_for(write=True)
            return False
        self._in_pipe -= sent
        self._count_moved(sent)
        return True

    def _count_moved(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
        self._count(count)

    def _wait_for(self, read: bool = False, write: bool = False) -> None:
        if read != self._reading:
            self._reading = read
            if read:
                self._loop.add_reader(self._from, self._step)
            else:
                self._loop.remove_reader(self._from)
        if write != self._writing:
            self._writing = write
            if write:
                self._loop.add_writer(self._to, self._step)
            else:
                self._loop.remove_writer(self._to)

    def _return_pipe(self) -> None:
        if self._ends is not None:
            self._pipes.give(self._ends, self._in_pipe == 0)
            self._ends = None

    def _stop(self) -> None:
        self._wait_for()
        self._return_pipe()
        if self._timer is not None:
            self._timer.cancel()


async def relay(
    client: SocketStream,
    upstream: SocketStream,
    pipes: PipePool | PipeLease,
    meter: TrafficMeter,
    sent: Callable[[int], None],
    received: Callable[[int], None],
) -> None:
    """Relay both directions until both have ended. If one fails, reset both sides."""

    async def one(source: SocketStream, sink: SocketStream, count: Callable[[int], None]) -> None:
        await SpliceDirection(source, sink, pipes, meter, count).run()
        _shutdown_write(sink)

    tasks = [
        asyncio.ensure_future(one(client, upstream, sent)),
        asyncio.ensure_future(one(upstream, client, received)),
    ]
    await _run_both(client, upstream, tasks)


def _shutdown_write(sink: SocketStream) -> None:
    """Shut down the sending side; ignore a peer that has already gone."""
    try:
        sink.shutdown_write()
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


async def _run_both(client: SocketStream, upstream: SocketStream, tasks: Sequence[asyncio.Future[None]]) -> None:
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.abort()
        upstream.abort()
        raise
    client.close()
    upstream.close()


async def relay_filtered(
    client: SocketStream,
    upstream: SocketStream,
    body_filter: BodyFilter,
    pipes: PipePool | PipeLease,
    meter: TrafficMeter,
    sent: Callable[[int], None],
    received: Callable[[int], None],
    settled: Callable[[], bool] = lambda: False,
) -> None:
    """Relay like `relay`, with outgoing bytes passed through a filter, which may raise BlockedByFilter, until
    `settled`."""

    async def out() -> None:
        while data := await client.read(await meter.wait_allowance(CHUNK)):
            passed = body_filter.feed(data)
            await upstream.write(passed)
            sent(len(passed))
            if settled():
                await SpliceDirection(client, upstream, pipes, meter, sent).run()
                break
        last = body_filter.end()
        await upstream.write(last)
        sent(len(last))
        _shutdown_write(upstream)

    async def back() -> None:
        await SpliceDirection(upstream, client, pipes, meter, received).run()
        _shutdown_write(client)

    await _run_both(client, upstream, [asyncio.ensure_future(out()), asyncio.ensure_future(back())])
