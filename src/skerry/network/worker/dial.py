"""Authorize a destination and dial it: from a host and port to a connected socket."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from skerry.network.policy.policy import Verdict, proxy_denied
from skerry.network.policy.rules import parse_proxy
from skerry.network.worker.audit import printable
from skerry.network.worker.dns.resolver import AddressDenied, connect_any, resolve_allowed
from skerry.network.worker.sandbox_context import MAX_PENDING_APPROVALS, SandboxContext
from skerry.network.worker.streams import SocketStream
from skerry.types import readable_size
from skerry.types.hosts import Address, Host, Name, carried, is_own, show_host

_MAX_PROXY_HEAD: Final = 16 << 10
_PROXY_TIMEOUT_S: Final = 15.0
_APPROVAL_GRACE_S: Final = 5.0


@dataclass(frozen=True)
class Authorization:
    verdict: Verdict
    approved: bool = False  # by an approval


@dataclass(frozen=True)
class DialedUpstream:
    """`by_proxy`: it ends at an upstream proxy; each request then names its destination."""

    stream: SocketStream
    address: Address | None = None  # None: inside a peer, or known only to an upstream proxy
    by_proxy: bool = False
    peer: str | None = None

    def denial(self, context: SandboxContext, host: Host, port: int) -> Verdict | None:
        """Return the reason why this connection no longer matches the rules for this host."""
        if self.peer != context.policy.peer(host):
            return Verdict(False, f"{show_host(host)} is no longer the same sandbox")
        verdict = check_address(context, host, port, self.address) if self.address is not None else None
        return None if verdict is None or verdict.allowed else verdict


async def authorize(context: SandboxContext, host: Host, port: int, cgroup: int | None) -> Authorization:
    """Decide by the policy and, if the policy asks, by an approval."""
    exhausted = quota_denial(context)
    if exhausted is not None:
        return Authorization(exhausted)
    verdict = context.policy.connect(host, port)
    if verdict.allowed or not verdict.unknown or context.rules.on_unknown != "ask":
        return Authorization(verdict)
    allowed, reason_given = await _request_approval(context, host, port, cgroup)
    reason = printable(reason_given or ("an approval allowed it" if allowed else "an approval denied it"))
    latest = context.policy.connect(host, port)  # the rules may have changed meanwhile: then they decide
    if latest.allowed or not latest.unknown:
        return Authorization(latest)
    return Authorization(Verdict(allowed, reason, None, None if allowed else verdict.hint, True), approved=allowed)


def quota_denial(context: SandboxContext) -> Verdict | None:
    """Return a denial if the sandbox's byte quota is exhausted."""
    if not context.meter.exhausted:
        return None
    why = f"the sandbox's limit of {readable_size(context.meter.max_bytes or 0)} of traffic is used up"
    return Verdict(False, why, None, "network.max_bytes must be larger")


async def _request_approval(context: SandboxContext, host: Host, port: int, cgroup: int | None) -> tuple[bool, str]:
    """Ask for each destination once, however many connections wait for the answer."""
    pending = context.pending_approvals.get((host, port))
    if pending is None:
        if len(context.pending_approvals) >= MAX_PENDING_APPROVALS:
            return False, f"{MAX_PENDING_APPROVALS} approvals are pending already"
        pending = asyncio.ensure_future(_await_approval(context, host, port, cgroup))
        context.pending_approvals[host, port] = pending
        pending.add_done_callback(lambda _: context.pending_approvals.pop((host, port), None))
    return await asyncio.shield(pending)


async def _await_approval(context: SandboxContext, host: Host, port: int, cgroup: int | None) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(context.rules.approval_timeout_s + _APPROVAL_GRACE_S):
            return await context.server.ask(show_host(host), port, cgroup)
    except (OSError, TimeoutError):
        return False, "no approval came in time"


async def dial_upstream(context: SandboxContext, host: Host, port: int, plain_http: bool = False) -> DialedUpstream:
    """Dial a destination that `authorize` allowed. Raise AddressDenied if an address may not be dialled, OSError (also
    a timeout) if it cannot. `plain_http`: send requests to an upstream proxy, since many proxies open tunnels to 443
    only. Deny a connection that changed rules no longer allow once it is established."""
    dialed = await _dial_upstream(context, host, port, plain_http)
    denial = dialed.denial(context, host, port)
    if denial is not None:
        dialed.stream.abort()
        raise AddressDenied(denial, dialed.address)
    return dialed


async def _dial_upstream(context: SandboxContext, host: Host, port: int, plain_http: bool) -> DialedUpstream:
    if context.player is not None:
        raise AddressDenied(Verdict(False, "the network is closed: responses come from a cassette"))
    peer = context.policy.peer(host)
    if peer is not None:
        return DialedUpstream(SocketStream(await context.server.dial(peer, port)), peer=peer)
    proxy = context.policy.proxy_for(host, port)
    if proxy is not None:
        if not isinstance(host, Name):
            _require_allowed(context, host, port, host)
        stream = await _dial_proxy(context, proxy)
        return (
            DialedUpstream(stream, by_proxy=True)
            if plain_http
            else DialedUpstream(await _open_tunnel(stream, host, port))
        )
    found = await resolve_allowed(host, context.resolver, lambda a: check_address(context, host, port, a))
    # by another name, or by its address, a proxy would lead anywhere
    for proxy_host in context.policy.proxies_on(port):
        proxy_addresses = await context.resolver.look_up(proxy_host) if isinstance(proxy_host, Name) else [proxy_host]
        if not set(proxy_addresses).isdisjoint(found):
            raise AddressDenied(proxy_denied(host, port))
    sock, address = await connect_any(found, port)
    return DialedUpstream(SocketStream(sock), address)


def check_address(context: SandboxContext, host: Host, port: int, address: Address) -> Verdict:
    own = any(is_own(one) for one in (address, *carried(address)))
    return context.policy.address(host, port, address, own=own)


def _require_allowed(context: SandboxContext, host: Host, port: int, address: Address) -> None:
    verdict = check_address(context, host, port, address)
    if not verdict.allowed:
        raise AddressDenied(verdict, address)


async def _dial_proxy(context: SandboxContext, proxy: str) -> SocketStream:
    """Dial an upstream proxy; its address is checked like any other."""
    proxy_host, proxy_port = parse_proxy(proxy)
    verdict = context.policy.upstream(proxy_host, proxy_port)
    if not verdict.allowed:
        raise AddressDenied(verdict)
    found = await resolve_allowed(
        proxy_host, context.resolver, lambda a: check_address(context, proxy_host, proxy_port, a)
    )
    sock, _ = await connect_any(found, proxy_port)
    return SocketStream(sock)


async def _open_tunnel(stream: SocketStream, host: Host, port: int) -> SocketStream:
    try:
        async with asyncio.timeout(_PROXY_TIMEOUT_S):
            await _send_connect(stream, show_host(host, port))
    except BaseException:
        stream.abort()
        raise
    return stream


async def _send_connect(stream: SocketStream, place: str) -> None:
    await stream.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = await stream.read(4096)
        if not data or len(head) > _MAX_PROXY_HEAD:
            raise ConnectionAbortedError("the upstream proxy closed the connection")
        head += data
    head, _, rest = head.partition(b"\r\n\r\n")
    status = b""
    with contextlib.suppress(IndexError):
        status = head.split(b"\r\n")[0].split(b" ")[1]
    if len(status) != 3 or not status.startswith(b"2"):
        raise ConnectionRefusedError(f"the upstream proxy answered {printable(status, 3) or 'without valid HTTP'}")
    stream.unread(rest)
