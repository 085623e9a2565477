"""From a name to a connected socket: looked up once, every address checked, and only a checked address dialled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from skerry.network.hosts import Address, Host, Name, plain
from skerry.network.policy import Verdict

_THREADS: Final = 32
_SHARE: Final = 6
_LOOK_UP_S: Final = 15.0
_DIAL_S: Final = 15.0
_FIRST_DIAL_S: Final = 4.0  # while there is another address to try
_ADDRESSES_MOST: Final = 16


class Refused(Exception):
    """An address that may not be dialled."""

    def __init__(self, verdict: Verdict, address: Address | None = None) -> None:
        super().__init__(verdict.why)
        self.verdict, self.address = verdict, address


class Resolver:
    """Looks names up in threads, for all sandboxes. Nothing is kept: the next connection asks again, and what it is
    told is checked again, so that no name can be good when it is looked at and bad when it is dialled."""

    def __init__(self, ask: Callable[[Name], list[Address]] | None = None, threads: int = _THREADS) -> None:
        """`ask`: who knows the addresses; the host's own resolver, unless it is given."""
        self._ask = ask or host_addresses
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="names")

    def share(self) -> Share:
        return Share(self._threads, self._ask)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Share:
    """One sandbox's part of the threads: its slow names keep nobody else waiting."""

    def __init__(self, threads: ThreadPoolExecutor, ask: Callable[[Name], list[Address]]) -> None:
        self._threads, self._ask = threads, ask
        self._free = asyncio.Semaphore(_SHARE)

    async def look_up(self, name: Name, limit_s: float = _LOOK_UP_S) -> list[Address]:
        """Its addresses, as the host's own resolver tells them."""
        async with asyncio.timeout(limit_s):
            await self._free.acquire()
            # the thread can't be stopped: its place is free again when it is done, not when nobody waits any more
            asked = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, name)
            asked.add_done_callback(self._returned)
            return (await asyncio.shield(asked))[:_ADDRESSES_MOST]

    def _returned(self, asked: asyncio.Future[list[Address]]) -> None:
        self._free.release()
        if not asked.cancelled():
            asked.exception()  # nobody may be there any more to see it


def host_addresses(name: Name) -> list[Address]:
    found: dict[Address, None] = {}
    for _, _, _, _, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP):
        with contextlib.suppress(ValueError):
            found.setdefault(plain(str(where[0])))
    return list(found)


async def addresses_of(host: Host, share: Share, check: Callable[[Address], Verdict]) -> list[Address]:
    """Those that may be dialled, in order. Refused if one of them may not: a name that points to both an open and a
    closed address is lying about one of them."""
    found = await share.look_up(host) if isinstance(host, Name) else [host]
    if not found:
        raise OSError("it has no address")
    for address in found:
        verdict = check(address)
        if not verdict.allowed:
            raise Refused(verdict, address)
    return found


async def dial(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
    """Connected to the first of them that answers."""
    problem: Exception = OSError("it has no address")
    for at, address in enumerate(addresses):
        sock = socket.socket(
            socket.AF_INET if address.version == 4 else socket.AF_INET6,
            socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        )
        try:
            async with asyncio.timeout(_DIAL_S if at == len(addresses) - 1 else _FIRST_DIAL_S):
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
