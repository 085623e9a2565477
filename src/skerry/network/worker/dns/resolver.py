"""From a name to a connected socket: look it up once, check every address, dial only checked addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from skerry.network.policy.policy import Verdict
from skerry.types.hosts import Address, Host, Name, plain

_THREADS: Final = 32
_THREADS_PER_SANDBOX: Final = 6
_LOOKUP_TIMEOUT_S: Final = 15.0
_DIAL_TIMEOUT_S: Final = 15.0
_FIRST_DIAL_TIMEOUT_S: Final = 4.0  # while another address remains to be tried
_MAX_ADDRESSES: Final = 16


class AddressDenied(Exception):
    """An address that may not be dialled."""

    def __init__(self, verdict: Verdict, address: Address | None = None) -> None:
        super().__init__(verdict.why)
        self.verdict, self.address = verdict, address


class Resolver:
    """Looks names up in threads, for all sandboxes. Without a cache: every connection looks the name up and checks its
    addresses, so that a name cannot pass the check and then be dialled at another address."""

    def __init__(self, lookup: Callable[[Name], list[Address]] | None = None, threads: int = _THREADS) -> None:
        """`lookup`: returns the addresses of a name; by default the host's resolver."""
        self._lookup = lookup or system_lookup
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="names")

    def for_sandbox(self) -> SandboxResolver:
        return SandboxResolver(self._threads, self._lookup)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class SandboxResolver:
    """One sandbox's share of the threads: its slow names delay no other sandbox."""

    def __init__(self, threads: ThreadPoolExecutor, lookup: Callable[[Name], list[Address]]) -> None:
        self._threads, self._lookup = threads, lookup
        self._free = asyncio.Semaphore(_THREADS_PER_SANDBOX)

    async def look_up(self, name: Name, limit_s: float = _LOOKUP_TIMEOUT_S) -> list[Address]:
        """Return the name's addresses from the host's resolver."""
        async with asyncio.timeout(limit_s):
            await self._free.acquire()
            # a thread cannot be stopped: its slot is free when it has ended, not when the caller stops waiting
            pending = asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, name)
            pending.add_done_callback(self._finished)
            return (await asyncio.shield(pending))[:_MAX_ADDRESSES]

    def _finished(self, pending: asyncio.Future[list[Address]]) -> None:
        self._free.release()
        if not pending.cancelled():
            pending.exception()  # retrieved even if no caller waits any more


def system_lookup(name: Name) -> list[Address]:
    found: dict[Address, None] = {}
    for _, _, _, _, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP):
        with contextlib.suppress(ValueError):
            found.setdefault(plain(str(where[0])))
    return list(found)


async def resolve_allowed(host: Host, resolver: SandboxResolver, check: Callable[[Address], Verdict]) -> list[Address]:
    """Return the addresses that may be dialled, in order. Raise AddressDenied if any may not: a name with both an open
    and a closed address is an attack."""
    found = await resolver.look_up(host) if isinstance(host, Name) else [host]
    if not found:
        raise OSError("it has no address")
    for address in found:
        verdict = check(address)
        if not verdict.allowed:
            raise AddressDenied(verdict, address)
    return found


async def connect_any(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
    """Connect to the first address that answers."""
    problem: Exception = OSError("it has no address")
    for at, address in enumerate(addresses):
        sock = socket.socket(
            socket.AF_INET if address.version == 4 else socket.AF_INET6,
            socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        )
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S if at == len(addresses) - 1 else _FIRST_DIAL_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        except (OSError, TimeoutError) as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock, address
    raise problem
