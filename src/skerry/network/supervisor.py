"""Runs the network worker, exchanges messages with it, and restarts it whenever it ends. Every message is validated,
and a worker that floods the channel cannot keep the server from its work."""

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
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from skerry.network.channel import ChannelError, WorkerChannel, reject_fds
from skerry.network.messages import (
    MAX_MESSAGE_FROM_WORKER,
    ChangeRules,
    Done,
    FromServer,
    FromWorker,
    Ready,
    Sync,
)

log = logging.getLogger("skerry.network")
PROGRAM = ("-I", "-m", "skerry.network.worker")
READY_TIMEOUT_S: Final = 20.0
MESSAGE_BURST, MESSAGES_PER_SECOND = 10_000, 5_000  # messages that the worker may send
MAX_UNREAD: Final = 1 << 20
HEARTBEAT_S, HEARTBEAT_TIMEOUT_S = 1.0, 30.0
SAMPLE_S: Final = 0.5  # between looks at a worker that has not answered yet
# A worker that owes an answer hangs if it did not run for so long although no CPU or disk kept it waiting, or if it
# used so much CPU time without an answer. On an overloaded host it waits for a CPU, and neither is true.
MAX_IDLE_S, MAX_BUSY_S = 2.0, 3.0
MIN_STABLE_S: Final = 5.0  # a worker that ran this long did not fail at its start
RESTART_DELAYS_S: Final = (
    0.0,
    0.05,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
)  # before the next start, by the number of consecutive failures at start
STOP_TIMEOUT_S: Final = 5.0
_MAX_STDERR: Final = 16 << 10
# Look names up exactly as the policy judged them, never below the host's search domains, and give up soon on a dead
# name server.
_RESOLVER_ENV: Final = {"LOCALDOMAIN": "", "RES_OPTIONS": "timeout:3 attempts:2"}
_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **_RESOLVER_ENV}
_INHERITED_ENV: Final = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RES_OPTIONS",
    "LOCALDOMAIN",
)  # the host's trusted certificates and resolver options

State = Literal["starting", "ready", "down", "closed"]


class Supervisor:
    """`on_message` is called with every message that is not an answer to a call. `on_ready` is called when a new worker
    accepts messages: the caller must then send its whole state again. `on_end` is called with the reason before a
    hanging worker is killed, and so before its connections are reset. Use from the event loop's thread only."""

    def __init__(
        self,
        uid: int,
        on_message: Callable[[FromWorker], None],
        on_ready: Callable[[], None],
        on_end: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._uid = uid
        self._on_message, self._on_ready, self._on_end = on_message, on_ready, on_end
        self._reason = ""
        self._channel: WorkerChannel[Any] | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._heard = 0  # messages from the worker
        self.state: State = "starting"
        self.pid: int | None = None
        self.starts = 0
        self._down_since: float | None = time.monotonic()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop the worker, which ends with its channel."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._set_state("closed")

    @property
    def down_s(self) -> float:
        """Seconds since a worker last accepted messages."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait for a worker that accepts messages; return whether there is one in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_ready.wait()
        return self.state == "ready"

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: FromServer, fds: Sequence[int] = ()) -> bool:
        """Send a message. Return False if no worker is ready: the next one gets the whole state through `on_ready`."""
        if self._channel is None or self.state != "ready":
            return False
        try:
            self._channel.send(message, fds)
        except ChannelError as error:
            log.warning("the network worker does not read", extra={"error": str(error)})
            return False
        return True

    @property
    def unread(self) -> bool:
        """Whether messages of the worker wait to be read."""
        return self._channel is not None and self._channel.unread

    def restart(self, reason: str) -> None:
        """End the current worker; another one takes its place."""
        self._reason = reason
        if self._channel is not None:
            self._channel.close()

    async def wait_drained(self) -> bool:
        """Wait until the worker has read most of its messages: for a caller with many to send. False: the worker has
        ended."""
        channel = self._channel
        while channel is not None and channel.unsent > MAX_UNREAD:
            await asyncio.sleep(0.005)
            if self._channel is not channel:
                return False
        return channel is not None

    async def sync(self, timeout_s: float, sandbox: str | None = None) -> bool:
        """Wait until every report (of one sandbox) has arrived; return False if the worker did not confirm it in
        time."""
        return await self._call(lambda number: Sync(number=number, sandbox=sandbox), timeout_s)

    async def change(self, make: Callable[[int], ChangeRules], timeout_s: float) -> bool:
        return await self._call(make, timeout_s)

    async def _call(self, make: Callable[[int], Sync | ChangeRules], timeout_s: float) -> bool:
        number = next(self._numbers)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            if not self.send(make(number)):
                return False
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            return False
        finally:
            self._calls.pop(number, None)

    # -- running the worker -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._run_worker()
            except (OSError, EOFError, ValueError) as error:
                log.warning("the network worker ended", extra={"error": str(error) or type(error).__name__})
            except Exception:
                log.exception("the network worker failed")
            failures = 0 if time.monotonic() - began > MIN_STABLE_S else failures + 1
            self._set_state("down")
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S) - 1)])

    async def _run_worker(self) -> None:
        """Run one worker from its start to its end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stderr, their_stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            reject_fds(ours)
            self._set_state("starting")
            pid = _spawn(self._uid, theirs.fileno(), their_stderr)
            pidfd = os.pidfd_open(pid)
        except BaseException:
            ours.close()
            os.close(stderr)
            raise
        finally:
            theirs.close()
            os.close(their_stderr)
        self.pid, self.starts = pid, self.starts + 1
        channel: WorkerChannel[Any] = WorkerChannel(ours, FromWorker, MAX_MESSAGE_FROM_WORKER)
        self._channel, self._reason = channel, "ended"
        heartbeat: asyncio.Task[None] | None = None
        tail = _StderrTail(stderr)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                message, _ = await channel.receive()
            if not isinstance(message, Ready):
                raise ChannelError("its first message is not Ready")
            self._set_state("ready")
            self._on_ready()
            heartbeat = asyncio.get_running_loop().create_task(self._heartbeat(channel, pid))
            await self._receive_all(channel)
        finally:
            self._set_state("down")
            self._channel = None
            if heartbeat is not None:
                heartbeat.cancel()
            self._on_end(self._reason)
            channel.close()
            await _stop(pidfd)
            tail.log_and_close()
            self.pid = None
            for answer in self._calls.values():
                if not answer.done():
                    answer.set_result(False)

    async def _receive_all(self, channel: WorkerChannel[Any]) -> None:
        """Receive messages. A worker that floods is read no faster than a busy one, and must wait."""
        tokens, at = float(MESSAGE_BURST), time.monotonic()
        while True:
            message, _ = await channel.receive()
            self._heard += 1
            if isinstance(message, Done):
                answer = self._calls.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(True)
            elif isinstance(message, Ready):
                raise ChannelError("it sent Ready twice")
            else:
                self._on_message(message)
            now = time.monotonic()
            tokens = min(MESSAGE_BURST, tokens + (now - at) * MESSAGES_PER_SECOND) - 1
            at = now
            if tokens < 0:
                await asyncio.sleep(-tokens / MESSAGES_PER_SECOND + 0.01)
            else:
                await asyncio.sleep(0)

    async def _heartbeat(self, channel: WorkerChannel[Any], pid: int) -> None:
        """Restart a worker that hangs. Its connections are reset when it is killed."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            reason = await self._hang(channel, pid)
            if reason is not None and self._channel is channel:
                log.warning("the network worker hangs", extra={"error": reason, "worker": pid})
                self.restart("hung")
                return

    async def _hang(self, channel: WorkerChannel[Any], pid: int) -> str | None:
        """Ask for an answer; return the reason if the worker hangs before it answers."""
        watch = HangWatch()
        answer = asyncio.ensure_future(self.sync(HEARTBEAT_TIMEOUT_S, ""))
        try:
            while True:
                done, _ = await asyncio.wait((answer,), timeout=SAMPLE_S)
                if done:
                    return None if answer.result() else "it did not answer in time"
                if channel.unread:  # perhaps the answer: this process was slow
                    watch = HangWatch()
                elif (reason := watch.add(_sample(pid), (self._heard, channel.unsent), time.monotonic())) is not None:
                    return reason
        finally:
            answer.cancel()

    def _set_state(self, state: State) -> None:
        if state == "ready":
            self._down_since = None
        elif self._down_since is None:
            self._down_since = time.monotonic()
        if state != self.state:
            self.state = state
            log.info("network worker", extra={"state": state, "worker": self.pid})
        if state == "ready":
            self._is_ready.set()
        else:
            self._is_ready.clear()


class WorkerSample(NamedTuple):
    """`state`: as in /proc/PID/stat. `switches`: how often its main thread began or ended to run."""

    state: str
    cpu_s: float
    switches: int


class HangWatch:
    """Judges samples of a worker that owes an answer. Pure. A stopped or blocked worker does not run; one in an endless
    loop runs and answers nothing. A worker that waits for a CPU (state R) or a disk (D) does not hang."""

    def __init__(self) -> None:
        self._idle: tuple[int, float, int] | None = None  # switches, since, samples
        self._busy: tuple[object, float] | None = None  # progress, CPU time then

    def add(self, sample: WorkerSample | None, progress: object, now: float) -> str | None:
        """Return the reason if it hangs. `progress`: anything that changes when the worker handles messages."""
        if sample is None:  # it has ended
            return None
        if self._busy is None or self._busy[0] != progress:
            self._busy = (progress, sample.cpu_s)
        if sample.state in "RD" or self._idle is None or self._idle[0] != sample.switches:
            self._idle = None if sample.state in "RD" else (sample.switches, now, 1)
        else:
            self._idle = (sample.switches, self._idle[1], self._idle[2] + 1)
        if self._idle is not None and self._idle[2] > 2 and now - self._idle[1] >= MAX_IDLE_S:
            return f"it owes an answer and did not run for {MAX_IDLE_S:.0f} s (state {sample.state})"
        if sample.cpu_s - self._busy[1] >= MAX_BUSY_S:
            return f"it used {MAX_BUSY_S:.0f} s of CPU time without an answer"
        return None


def _sample(pid: int) -> WorkerSample | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    switches = sum(int(line.split()[1]) for line in status.splitlines() if "voluntary_ctxt_switches" in line)
    return WorkerSample(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), switches)


class _StderrTail:
    """Keeps the end of the worker's stderr and logs it, made printable, when the worker has ended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._data += data
        del self._data[:-_MAX_STDERR]

    def log_and_close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        with contextlib.suppress(OSError):
            self._data += os.read(self._fd, _MAX_STDERR)
        os.close(self._fd)
        text = self._data[-2000:].decode("ascii", "replace").strip()
        if text:
            safe = "".join(c if c.isprintable() else " " for c in text)
            log.warning("the network worker's stderr", extra={"error": safe})


def _spawn(uid: int, control: int, stderr: int) -> int:
    """Start with posix_spawn: a server with threads must not fork. The worker gets its channel as fd 3 and nothing
    else."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (null, null, stderr, control)]
    os.close(null)
    handed = {name: os.environ[name] for name in _INHERITED_ENV if name in os.environ}
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


async def _stop(pidfd: int) -> None:
    """Kill the worker: it has no state that an orderly end would save."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    loop.add_reader(pidfd, gone.set)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await gone.wait()
    finally:
        loop.remove_reader(pidfd)
        _reap(pidfd)


def _reap(pidfd: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    os.close(pidfd)
