"""Runs the network worker and talks to it; starts another whenever one ends. Nothing that it says is believed without
a look, and however fast it talks, the server stays free to do its work."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from skerry.network.messages import Change, Done, FromServer, FromWorker, Ready, Sync
from skerry.network.wire import Channel, WireError, refuse_fds

log = logging.getLogger("skerry.network")
PROGRAM = ("-I", "-m", "skerry.network.worker")
READY_S: Final = 20.0
HEARD_MOST: Final = 64 << 10  # bytes of one message from it
BURST, A_SECOND = 10_000, 5_000  # messages that it may send
UNREAD_MOST: Final = 1 << 20
PULSE_S, SILENT_S = 10.0, 30.0
STEADY_S: Final = 5.0  # one that lived so long did not fail at its start
PAUSES: Final = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)  # before the next, by how many failed at their start in a row
END_S: Final = 5.0
_WORDS_MOST: Final = 16 << 10
# A name is looked up as it was judged, never below the host's search domains; a dead name server is given up soon.
_RESOLVING: Final = {"LOCALDOMAIN": "", "RES_OPTIONS": "timeout:3 attempts:2"}
_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **_RESOLVING}
_HANDED_ON: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "RES_OPTIONS", "LOCALDOMAIN")  # whom the host trusts, how it asks

State = Literal["starting", "ready", "down", "closed"]


class Supervisor:
    """`heard` is called with each message that it does not answer itself, `ready` when a new worker takes messages:
    it has to be told everything again. Used from the event loop's thread only."""

    def __init__(self, uid: int, heard: Callable[[FromWorker], None], ready: Callable[[], None]) -> None:
        self._uid = uid
        self._heard = heard
        self._ready = ready
        self._channel: Channel[Any] | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.state: State = "starting"
        self.pid: int | None = None
        self.starts = 0
        self._gone_at: float | None = time.monotonic()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """It ends with its channel."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._enter("closed")

    @property
    def missing_s(self) -> float:
        """For how long there has been none that takes messages."""
        return 0.0 if self._gone_at is None else time.monotonic() - self._gone_at

    async def up(self, limit_s: float) -> bool:
        """Whether it takes messages within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._up.wait()
        return self.state == "ready"

    # -- saying -------------------------------------------------------------------------------------------------------

    def send(self, message: FromServer, fds: Sequence[int] = ()) -> bool:
        """False if there is no worker just now: the next is told everything by `ready`."""
        if self._channel is None or self.state != "ready":
            return False
        try:
            self._channel.send(message, fds)
        except WireError as error:
            log.warning("the network worker does not read", extra={"error": str(error)})
            return False
        return True

    @property
    def unread(self) -> bool:
        """It said something that was not heard yet."""
        return self._channel is not None and self._channel.unread

    def replace(self) -> None:
        """Ends the worker that there is: another takes its place."""
        if self._channel is not None:
            self._channel.close()

    async def room(self) -> bool:
        """Waits until it has read most of what it was sent: for who has much to say. False: it is gone."""
        channel = self._channel
        while channel is not None and channel.unsent > UNREAD_MOST:
            await asyncio.sleep(0.005)
            if self._channel is not channel:
                return False
        return channel is not None

    async def sync(self, limit_s: float, sandbox: str | None = None) -> bool:
        """Everything that it had to tell (of one sandbox) is told; False if it did not say so in time."""
        return await self._call(lambda number: Sync(number=number, sandbox=sandbox), limit_s)

    async def change(self, make: Callable[[int], Change], limit_s: float) -> bool:
        return await self._call(make, limit_s)

    async def _call(self, make: Callable[[int], Sync | Change], limit_s: float) -> bool:
        number = next(self._numbers)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            if not self.send(make(number)):
                return False
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            self._calls.pop(number, None)

    # -- keeping one alive --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._one()
            except (OSError, EOFError, ValueError) as error:
                log.warning("the network worker ended", extra={"error": str(error) or type(error).__name__})
            except Exception:
                log.exception("the network worker was ended")
            failures = 0 if time.monotonic() - began > STEADY_S else failures + 1
            self._enter("down")
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])

    async def _one(self) -> None:
        """One worker, from its start to its end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        words, theirs_words = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            refuse_fds(ours)
            self._enter("starting")
            pid = _spawn(self._uid, theirs.fileno(), theirs_words)
            pidfd = os.pidfd_open(pid)
        except BaseException:
            ours.close()
            os.close(words)
            raise
        finally:
            theirs.close()
            os.close(theirs_words)
        self.pid, self.starts = pid, self.starts + 1
        channel: Channel[Any] = Channel(ours, FromWorker, HEARD_MOST)
        self._channel = channel
        pulse: asyncio.Task[None] | None = None
        last = _LastWords(words)
        try:
            async with asyncio.timeout(READY_S):
                message, _ = await channel.receive()
            if not isinstance(message, Ready):
                raise WireError("it did not begin with Ready")
            self._enter("ready")
            self._ready()
            pulse = asyncio.get_running_loop().create_task(self._pulse(channel))
            await self._listen(channel)
        finally:
            self._enter("down")
            self._channel = None
            if pulse is not None:
                pulse.cancel()
            channel.close()
            await _end(pidfd)
            last.tell()
            self.pid = None
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_result(False)

    async def _listen(self, channel: Channel[Any]) -> None:
        """A worker that floods is read no faster than a busy one would be, and waits."""
        room, at = float(BURST), time.monotonic()
        while True:
            message, _ = await channel.receive()
            if isinstance(message, Done):
                answer = self._calls.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(True)
            elif isinstance(message, Ready):
                raise WireError("it said Ready twice")
            else:
                self._heard(message)
            now = time.monotonic()
            room = min(BURST, room + (now - at) * A_SECOND) - 1
            at = now
            if room < 0:
                await asyncio.sleep(-room / A_SECOND + 0.01)
            else:
                await asyncio.sleep(0)

    async def _pulse(self, channel: Channel[Any]) -> None:
        """One that hangs is ended like one that died."""
        while True:
            await asyncio.sleep(PULSE_S)
            if not await self.sync(SILENT_S) and self._channel is channel:
                log.warning("the network worker does not answer")
                self.replace()
                return

    def _enter(self, state: State) -> None:
        if state == "ready":
            self._gone_at = None
        elif self._gone_at is None:
            self._gone_at = time.monotonic()
        if state != self.state:
            self.state = state
            log.info("network worker", extra={"state": state, "worker": self.pid})
        if state == "ready":
            self._up.set()
        else:
            self._up.clear()


class _LastWords:
    """What it writes to stderr: the end of it is told when it has ended, made safe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._said = bytearray()
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._said += data
        del self._said[:-_WORDS_MOST]

    def tell(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        with contextlib.suppress(OSError):
            self._said += os.read(self._fd, _WORDS_MOST)
        os.close(self._fd)
        text = self._said[-2000:].decode("ascii", "replace").strip()
        if text:
            safe = "".join(c if c.isprintable() else " " for c in text)
            log.warning("the network worker's last words", extra={"error": safe})


def _spawn(uid: int, control: int, words: int) -> int:
    """By posix_spawn: a server with threads must not fork. It gets its channel as fd 3, and nothing else."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (null, null, words, control)]
    os.close(null)
    handed = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *PROGRAM, str(uid), str(os.getpid())],
            {**_ENV, **handed},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(moved)],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )
    finally:
        for fd in moved:
            os.close(fd)


async def _end(pidfd: int) -> None:
    """It keeps nothing that an orderly end would save."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    loop.add_reader(pidfd, gone.set)
    try:
        async with asyncio.timeout(END_S):
            await gone.wait()
    finally:
        loop.remove_reader(pidfd)
        _reap(pidfd)


def _reap(pidfd: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    os.close(pidfd)
