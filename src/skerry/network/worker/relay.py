"""Bytes from one socket to the other by `splice`: they never come into this process. Pipes are shared by all
connections and borrowed only while bytes are under way, so that an idle connection costs its two sockets and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

from skerry.network.worker.hooks import Filter
from skerry.network.worker.limits import Meter
from skerry.network.worker.streams import CHUNK, Wire

PIPE: Final = 1 << 20
_SPARE_MOST: Final = 32
_LARGE_MOST: Final = 8  # at once, for one sandbox
_ROUNDS: Final = 4  # then the loop's other work has its turn
_FLAGS: Final = 0x1 | 0x2  # SPLICE_F_MOVE | SPLICE_F_NONBLOCK; named in `os` only from Python 3.12 on


class Pipes:
    """Pipes at hand. The kernel lets an unprivileged user's pipes hold 64 MiB together, and gives one page each beyond
    that: few large ones, used by turns, are the way."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        if self._spare:
            return self._spare.pop()
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE)
        return ends

    def give(self, ends: tuple[int, int], empty: bool) -> None:
        if empty and len(self._spare) < _SPARE_MOST:
            self._spare.append(ends)
        else:
            os.close(ends[0])
            os.close(ends[1])

    def lot(self) -> Lot:
        return Lot(self)

    def close(self) -> None:
        while self._spare:
            self.give(self._spare.pop(), False)


class Lot:
    """One sandbox's part of the pipes: whoever lets many connections stall, full, has small ones for the rest."""

    def __init__(self, pipes: Pipes) -> None:
        self._pipes = pipes
        self._large: set[tuple[int, int]] = set()

    def take(self) -> tuple[int, int]:
        if len(self._large) >= _LARGE_MOST:
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


class Way:
    """One direction. `run` ends when the source has ended, or when `left` bytes are over; it raises OSError when either
    side broke. What was read ahead of it (the source's `pending`) goes first."""

    def __init__(
        self,
        source: Wire,
        sink: Wire,
        pipes: Pipes | Lot,
        meter: Meter,
        count: Callable[[int], None],
        left: int | None = None,
    ) -> None:
        self._source, self._sink, self._pipes, self._meter = source, sink, pipes, meter
        self._count, self._left = count, left
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._ends: tuple[int, int] | None = None
        self._held = 0
        self._reading = self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        # a socket's number is kept: one that was closed meanwhile must still leave the loop
        self._from, self._to = source.sock.fileno(), sink.sock.fileno()

    async def run(self) -> bool:
        """True if the source has ended; False if `left` ran out first."""
        self._ended = False
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
            for _ in range(_ROUNDS):
                if not self._move():
                    return
            if self._left == 0 and not self._held:  # nothing more is to come that would wake it
                self._done.set_result(None)
                return
            self._want(read=not self._held, write=bool(self._held))
            if self._source.pending:
                self._loop.call_soon(self._step)
        except OSError as error:
            self._done.set_exception(error)

    def _move(self) -> bool:
        """One piece further; False if something must be waited for, or nothing is left to do."""
        if self._held:
            return self._push()
        if self._left == 0:
            self._done.set_result(None)
            return False
        room = self._meter.allowance(PIPE if self._left is None else min(PIPE, self._left))
        if room == 0:
            if self._meter.over:
                raise ConnectionAbortedError("the sandbox's total is used up")
            self._want()
            self._timer = self._loop.call_later(self._meter.delay(), self._step)
            return False
        return self._send(room) if self._source.pending else self._pull(room)

    def _send(self, room: int) -> bool:
        try:
            sent = self._sink.sock.send(memoryview(self._source.pending)[:room])
        except BlockingIOError:
            self._want(write=True)
            return False
        self._source.pending = self._source.pending[sent:]
        self._passed(sent)
        return True

    def _pull(self, room: int) -> bool:
        if self._ends is None:
            self._ends = self._pipes.take()
        try:
            self._held = os.splice(self._from, self._ends[1], room, flags=_FLAGS)
        except BlockingIOError:
            self._give_back()
            self._want(read=True)
            return False
        if self._held == 0:
            self._ended = True
            self._done.set_result(None)
            return False
        return self._push()

    def _push(self) -> bool:
        assert self._ends is not None  # noqa: S101 -- held bytes are in a pipe
        try:
            sent = os.splice(self._ends[0], self._to, self._held, flags=_FLAGS)
        except BlockingIOError:
            self._want(write=True)
            return False
        self._held -= sent
        self._passed(sent)
        return True

    def _passed(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
        self._count(count)

    def _want(self, read: bool = False, write: bool = False) -> None:
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

    def _give_back(self) -> None:
        if self._ends is not None:
            self._pipes.give(self._ends, self._held == 0)
            self._ends = None

    def _stop(self) -> None:
        self._want()
        self._give_back()
        if self._timer is not None:
            self._timer.cancel()


async def relay(
    client: Wire,
    upstream: Wire,
    pipes: Pipes | Lot,
    meter: Meter,
    sent: Callable[[int], None],
    received: Callable[[int], None],
) -> None:
    """Both ways, until both have ended. One that breaks breaks the other, by a reset on both sides."""

    async def one(source: Wire, sink: Wire, count: Callable[[int], None]) -> None:
        await Way(source, sink, pipes, meter, count).run()
        _no_more(sink)

    ways = [
        asyncio.ensure_future(one(client, upstream, sent)),
        asyncio.ensure_future(one(upstream, client, received)),
    ]
    await _both(client, upstream, ways)


def _no_more(sink: Wire) -> None:
    """Nothing more will be sent. One that is gone already need not hear of it."""
    try:
        sink.sock.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


async def _both(client: Wire, upstream: Wire, ways: Sequence[asyncio.Future[None]]) -> None:
    try:
        await asyncio.gather(*ways)
    except BaseException:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        client.abort()
        upstream.abort()
        raise
    client.close()
    upstream.close()


async def filtered(
    client: Wire,
    upstream: Wire,
    watch: Filter,
    pipes: Pipes | Lot,
    meter: Meter,
    sent: Callable[[int], None],
    received: Callable[[int], None],
    settled: Callable[[], bool] = lambda: False,
) -> None:
    """As `relay`, with what leaves seen by a filter, which may raise Blocked, until all is `settled`."""

    async def out() -> None:
        while data := await client.read(await meter.room(CHUNK)):
            passed = watch.feed(data)
            await upstream.write(passed)
            sent(len(passed))
            if settled():
                await Way(client, upstream, pipes, meter, sent).run()
                break
        last = watch.end()
        await upstream.write(last)
        sent(len(last))
        _no_more(upstream)

    async def back() -> None:
        await Way(upstream, client, pipes, meter, received).run()
        _no_more(client)

    await _both(client, upstream, [asyncio.ensure_future(out()), asyncio.ensure_future(back())])
