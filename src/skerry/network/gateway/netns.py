"""Sockets that live in a sandbox's network namespace and are used from outside.

A socket belongs to the namespace in which it was created, whatever process uses it later. So only socket(2) has to
happen inside: one thread enters by pidfd, creates the sockets and returns; binding, connecting and netlink are done
from outside.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from skerry.errors import SandboxUnavailable

T = TypeVar("T")
SocketKind = tuple[int, int, int]  # the arguments of socket(2): family, type, protocol
CLONE_NEWNET: Final = 0x40000000
_THREAD_NETNS: Final = "/proc/thread-self/ns/net"
_DIAL_TIMEOUT_S: Final = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """The one thread that enters namespaces. Short work with a namespace's sockets may run on it too, which keeps the
    event loop free."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-netns")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="skerry-netns-close")
        self._home, self._home_id = self._thread.submit(_open_own_netns).result()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on that thread to its end. If the caller is cancelled, its result is closed."""
        future = self._thread.submit(work)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(_close_unclaimed)
            raise

    def sockets(self, pidfd: int, kinds: Sequence[SocketKind]) -> list[socket.socket]:
        """Create sockets in the namespace of that process; only within `work` of `run`."""
        _enter(pidfd)
        made: list[socket.socket] = []
        try:
            if _identity() == self._home_id:  # never create a rule or listener in the host's namespace
                raise SandboxUnavailable("that process is in the host's network namespace")
            for kind in kinds:
                made.append(socket.socket(*kind))
        except BaseException:
            for one in made:
                one.close()
            raise
        finally:
            self._return_home()
        return made

    def set_sysctls(self, pidfd: int, values: Mapping[str, str]) -> None:
        """Set values under /proc/sys/net of the namespace of that process; only within `work` of `run`."""
        _enter(pidfd)
        try:
            if _identity() == self._home_id:
                raise SandboxUnavailable("that process is in the host's network namespace")
            write_sysctls(values)
        finally:
            self._return_home()

    def close_in_background(self, one: socket.socket) -> None:
        """Close a netlink socket on another thread: close(2) of an nftables socket waits about 12 ms until the kernel
        has freed the objects that its last transaction replaced."""
        self._closer.submit(one.close)

    async def dial(self, pidfd: int, port: int, timeout_s: float = _DIAL_TIMEOUT_S) -> socket.socket:
        """Connect to that port on the sandbox's loopback. Raise ConnectionRefusedError if nothing listens. The
        descriptor must refer to that process until this returns."""
        inside: list[tuple[int, str]] = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        failure: OSError | None = None
        for family, address in inside:
            try:
                made = await self.run(lambda family=family: self.sockets(pidfd, [(family, socket.SOCK_STREAM, 0)]))  # type: ignore[misc]
            except OSError as error:  # no IPv6 on this host
                failure = failure or error
                continue
            try:
                await _connect(made[0], (address, port), timeout_s)
            except OSError as error:
                made[0].close()
                failure = failure or error
            except BaseException:
                made[0].close()
                raise
            else:
                return made[0]
        raise failure or ConnectionRefusedError()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._closer.shutdown(wait=True)
        os.close(self._home)

    def _return_home(self) -> None:
        """Return to the host's namespace, or abort: a thread that stayed inside would create its next sockets in the
        wrong sandbox."""
        if _libc.setns(self._home, CLONE_NEWNET) != 0 or _identity() != self._home_id:
            os.abort()


def write_sysctls(values: Mapping[str, str]) -> None:
    """Set values of this thread's network namespace. Ignore those that this kernel has for the whole host only: they
    are missing or read-only."""
    for name, value in values.items():
        try:
            fd = os.open(f"/proc/sys/net/{name}", os.O_WRONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def _close_unclaimed(future: Future[Any]) -> None:
    """Close the result after its caller was cancelled."""
    if not future.cancelled() and future.exception() is None:
        made = future.result()
        for one in made if isinstance(made, list) else [made]:
            if hasattr(one, "close"):
                one.close()


async def _connect(one: socket.socket, address: tuple[str, int], timeout_s: float) -> None:
    one.setblocking(False)
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().sock_connect(one, address)


def _open_own_netns() -> tuple[int, tuple[int, int]]:
    return os.open(_THREAD_NETNS, os.O_RDONLY | os.O_CLOEXEC), _identity()


def _identity() -> tuple[int, int]:
    found = os.stat(_THREAD_NETNS)
    return found.st_dev, found.st_ino


def _enter(pidfd: int) -> None:
    if _libc.setns(pidfd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise SandboxUnavailable(f"cannot enter its network namespace: {os.strerror(number)}")
