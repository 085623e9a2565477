"""From a host and a port that something inside wants, to a connected socket: judged, then dialled."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from skerry.network.hosts import Address, Host, Name, carried, show_host
from skerry.network.policy import Verdict, for_the_worker
from skerry.network.ranges import is_own
from skerry.network.rules import parse_proxy
from skerry.network.worker.attempts import safe
from skerry.network.worker.resolve import Refused, addresses_of, dial
from skerry.network.worker.room import ASKED_MOST, Room
from skerry.network.worker.streams import Wire

_PROXY_HEAD_MOST: Final = 16 << 10
_PROXY_S: Final = 15.0
_LATE_S: Final = 5.0


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    granted: bool = False  # by somebody who was asked


@dataclass(frozen=True)
class Reached:
    """`by_proxy`: it ends at an upstream proxy, which is told in each request where that is to go."""

    wire: Wire
    address: Address | None = None  # None: inside a peer, or known to an upstream proxy only
    by_proxy: bool = False
    peer: str | None = None

    def refusal(self, room: Room, host: Host, port: int) -> Verdict | None:
        """Why what was dialled is no longer what the rules mean by this host."""
        if self.peer != room.policy.peer(host):
            return Verdict(False, f"{show_host(host)} is another sandbox now, or none")
        verdict = verdict_of(room, host, port, self.address) if self.address is not None else None
        return None if verdict is None or verdict.allowed else verdict


async def judge(room: Room, host: Host, port: int, cgroup: int | None) -> Judged:
    """What the policy says to it; where that is to ask, the answer."""
    spent = used_up(room)
    if spent is not None:
        return Judged(spent)
    verdict = room.policy.connect(host, port)
    if verdict.allowed or not verdict.unknown or room.rules.on_unknown != "ask":
        return Judged(verdict)
    allowed, who = await _ask(room, host, port, cgroup)
    said = safe(who or ("somebody who was asked allowed it" if allowed else "somebody who was asked refused it"))
    latest = room.policy.connect(host, port)  # the rules may be others by now: then they say it
    if latest.allowed or not latest.unknown:
        return Judged(latest)
    return Judged(Verdict(allowed, said, None, None if allowed else verdict.hint, True), granted=allowed)


def used_up(room: Room) -> Verdict | None:
    """Why nothing more may be sent at all."""
    if not room.meter.over:
        return None
    why = f"the sandbox's total of {room.meter.total:,} bytes is used up"
    return Verdict(False, why, None, "network.total must be larger")


async def _ask(room: Room, host: Host, port: int, cgroup: int | None) -> tuple[bool, str]:
    """The same question is asked once, however many connections wait for the answer."""
    pending = room.asked.get((host, port))
    if pending is None:
        if len(room.asked) >= ASKED_MOST:
            return False, f"{ASKED_MOST} questions are open already"
        pending = asyncio.ensure_future(_answer(room, host, port, cgroup))
        room.asked[host, port] = pending
        pending.add_done_callback(lambda _: room.asked.pop((host, port), None))
    return await asyncio.shield(pending)


async def _answer(room: Room, host: Host, port: int, cgroup: int | None) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(room.rules.ask_s + _LATE_S):
            return await room.outside.ask(show_host(host), port, cgroup)
    except (OSError, TimeoutError):
        return False, "nobody answered in time"


async def reach(room: Room, host: Host, port: int, plain_http: bool = False) -> Reached:
    """A connection to what `judge` allowed. Raises Refused where an address may not be dialled, OSError (a time-out is
    one) where it can't. `plain_http`: an upstream proxy is given requests, since many open tunnels to 443 only. What
    the rules no longer allow when it is there, because they were changed meanwhile, is refused as well."""
    reached = await _reach(room, host, port, plain_http)
    late = reached.refusal(room, host, port)
    if late is not None:
        reached.wire.abort()
        raise Refused(late, reached.address)
    return reached


async def _reach(room: Room, host: Host, port: int, plain_http: bool) -> Reached:
    peer = room.policy.peer(host)
    if peer is not None:
        return Reached(Wire(await room.outside.dial(peer, port)), peer=peer)
    proxy = room.policy.proxy_for(host, port)
    if proxy is not None:
        if not isinstance(host, Name):
            _check(room, host, port, host)
        wire = await _to_proxy(room, proxy)
        return Reached(wire, by_proxy=True) if plain_http else Reached(await _tunnel(wire, host, port))
    found = await addresses_of(host, room.share, lambda a: verdict_of(room, host, port, a))
    for via in room.policy.proxies_on(port):  # by another name, or by its address, it would lead anywhere
        there = await room.share.look_up(via) if isinstance(via, Name) else [via]
        if not set(there).isdisjoint(found):
            raise Refused(for_the_worker(host, port))
    sock, address = await dial(found, port)
    return Reached(Wire(sock), address)


def verdict_of(room: Room, host: Host, port: int, address: Address) -> Verdict:
    own = any(is_own(one) for one in (address, *carried(address)))
    return room.policy.address(host, port, address, own=own)


def _check(room: Room, host: Host, port: int, address: Address) -> None:
    verdict = verdict_of(room, host, port, address)
    if not verdict.allowed:
        raise Refused(verdict, address)


async def _to_proxy(room: Room, proxy: str) -> Wire:
    """Its own address is judged like any other."""
    via, via_port = parse_proxy(proxy)
    verdict = room.policy.upstream(via, via_port)
    if not verdict.allowed:
        raise Refused(verdict)
    found = await addresses_of(via, room.share, lambda a: verdict_of(room, via, via_port, a))
    sock, _ = await dial(found, via_port)
    return Wire(sock)


async def _tunnel(wire: Wire, host: Host, port: int) -> Wire:
    try:
        async with asyncio.timeout(_PROXY_S):
            await _connect(wire, show_host(host, port))
    except BaseException:
        wire.abort()
        raise
    return wire


async def _connect(wire: Wire, place: str) -> None:
    await wire.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = await wire.read(4096)
        if not data or len(head) > _PROXY_HEAD_MOST:
            raise ConnectionAbortedError("the upstream proxy broke off")
        head += data
    head, _, rest = head.partition(b"\r\n\r\n")
    status = b""
    with contextlib.suppress(IndexError):
        status = head.split(b"\r\n")[0].split(b" ")[1]
    if len(status) != 3 or not status.startswith(b"2"):
        raise ConnectionRefusedError(f"the upstream proxy said {safe(status, 3) or 'nothing that is HTTP'}")
    wire.unread(rest)
