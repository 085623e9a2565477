"""Sockets that live in a sandbox's network namespace and are used from outside.

A socket belongs to the namespace in which it was made, whoever uses it later. So all that has to happen inside is
socket(2): one thread goes in by pidfd, makes the sockets and goes back; binding, connecting and talking netlink is
done from where we are."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from skerry.errors import SandboxUnavailable

T = TypeVar("T")
Kind = tuple[int, int, int]  # as socket(2) takes them: family, type, protocol
CLONE_NEWNET: Final = 0x40000000
_OWN: Final = "/proc/thread-self/ns/net"
_DIAL_S: Final = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """The one thread that enters namespaces. Work that belongs to a namespace's sockets may be done on it too: it is
    short, and keeps the event loop free."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-netns")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="skerry-netns-close")
        self._home, self._here = self._thread.submit(_own).result()

    async def run(self, work: Callable[[], T]) -> T:
        """On that thread, to its end: who is cancelled meanwhile leaves no half of it behind."""
        future = self._thread.submit(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(_drop)
            raise

    def sockets(self, pidfd: int, kinds: Sequence[Kind]) -> list[socket.socket]:
        """Made in the namespace of that process; only for `work` of `run`."""
        _enter(pidfd)
        made: list[socket.socket] = []
        try:
            if _identity() == self._here:  # never a rule, never a listener, in the host's own
                raise SandboxUnavailable("that process has no network namespace of its own")
            for kind in kinds:
                made.append(socket.socket(*kind))
        except BaseException:
            for one in made:
                one.close()
            raise
        finally:
            self._go_back()
        return made

    def let_go(self, one: socket.socket) -> None:
        """Closes a netlink socket on a thread of its own: that of nftables waits in close(2), some 12 ms, until what
        its last transaction replaced is freed."""
        self._closer.submit(one.close)

    async def dial(self, pidfd: int, port: int, limit_s: float = _DIAL_S) -> socket.socket:
        """A connection to whoever listens on that port of its loopback; ConnectionRefusedError if nobody does. The
        descriptor has to stay that process's until it returns."""
        inside: list[tuple[int, str]] = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        refused: OSError | None = None
        for family, address in inside:
            try:
                made = await self.run(lambda family=family: self.sockets(pidfd, [(family, socket.SOCK_STREAM, 0)]))  # type: ignore[misc]
            except OSError as error:  # no IPv6 here
                refused = refused or error
                continue
            try:
                await _connect(made[0], (address, port), limit_s)
            except OSError as error:
                made[0].close()
                refused = refused or error
            except BaseException:
                made[0].close()
                raise
            else:
                return made[0]
        raise refused or ConnectionRefusedError()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._closer.shutdown(wait=True)
        os.close(self._home)

    def _go_back(self) -> None:
        """A thread that stayed inside would make its next sockets in the wrong sandbox: nothing may run on."""
        if _libc.setns(self._home, CLONE_NEWNET) != 0 or _identity() != self._here:
            os.abort()


def _drop(future: Future[Any]) -> None:
    """What was made for somebody who has left."""
    if not future.cancelled() and future.exception() is None:
        made = future.result()
        for one in made if isinstance(made, list) else [made]:
            if hasattr(one, "close"):
                one.close()


async def _connect(one: socket.socket, address: tuple[str, int], limit_s: float) -> None:
    one.setblocking(False)
    async with asyncio.timeout(limit_s):
        await asyncio.get_running_loop().sock_connect(one, address)


def _own() -> tuple[int, tuple[int, int]]:
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC), _identity()


def _identity() -> tuple[int, int]:
    found = os.stat(_OWN)
    return found.st_dev, found.st_ino


def _enter(pidfd: int) -> None:
    if _libc.setns(pidfd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise SandboxUnavailable(f"its network namespace can't be entered: {os.strerror(number)}")
