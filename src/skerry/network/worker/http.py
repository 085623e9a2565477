"""HTTP mode: request by request, each judged for itself, written anew for upstream and its response written anew for
the client. What came in never goes on as it was framed, so that both sides see the same requests as the judge."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11

from skerry.network.hosts import Address, Host, Name, show_host
from skerry.network.policy import Verdict
from skerry.network.worker.attempts import Record, safe
from skerry.network.worker.exchange import Exchange, Upstream
from skerry.network.worker.heads import HEAD_MOST, BadRequest, Request, authority, end_to_end, overriding, parse_request
from skerry.network.worker.hooks import Blocked, Hooks, Inspection, Refusal, RequestHead
from skerry.network.worker.reach import Judged, Reached, judge, reach, used_up
from skerry.network.worker.resolve import Refused
from skerry.network.worker.room import Room
from skerry.network.worker.streams import Stream

FIRST_HEAD_S: Final = 10.0
_HEAD_S: Final = 30.0
_LINGER_S: Final = 1.0
_LINGER_MOST: Final = 1 << 20
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_AGAIN: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
_PORTS: Final = {True: 443, False: 80}

Connect = Callable[[Request], Awaitable[None]]


class HttpMode:
    """One client connection. `place`: where all its requests must go; None: an explicit proxy's client, whose requests
    say where. `connect`: what becomes of a CONNECT there."""

    def __init__(
        self,
        room: Room,
        client: Stream,
        cgroup: int | None,
        *,
        tls: bool = False,
        place: tuple[Host, int] | None,
        connect: Connect | None = None,
    ) -> None:
        self._room, self._client, self._cgroup = room, client, cgroup
        self._tls, self._place, self._connect = tls, place, connect
        self._granted: Verdict | None = None  # by somebody who was asked
        self._upstream: Upstream | None = None
        self._ready: Reached | None = None  # dialled before HTTP mode began
        self._hooked: tuple[Inspection | None, tuple[Host, int], Hooks | None] | None = None
        self._current: tuple[Host, int, str, str] | None = None
        self._first = True

    def adopt(self, reached: Reached) -> None:
        """The first request may use this connection, which leads to `place`."""
        self._ready = reached

    def grant(self, judged: Judged) -> None:
        """What somebody who was asked has allowed stays so for the requests of this connection."""
        self._granted = judged.verdict if judged.granted else None

    def close(self) -> None:
        self._drop()
        if self._ready is not None:
            self._ready.wire.abort()
            self._ready = None

    def refusal(self) -> Verdict | None:
        """Why the request that is under way is no longer allowed by the rules as they are now."""
        if self._current is None:
            return None
        host, port, method, target = self._current
        verdict = self._room.policy.request(host, port, method, target, self._tls)
        elsewhere = self._upstream.reached.refusal(self._room, host, port) if self._upstream is not None else None
        if elsewhere is not None:
            return elsewhere
        return None if verdict.allowed or (verdict.unknown and self._granted is not None) else verdict

    def stop(self, verdict: Verdict) -> None:
        """Cuts the request that is under way, and tells why."""
        if self._upstream is not None:
            self._upstream.reached.wire.cut()
        if self._current is not None:
            host, port, method, target = self._current
            self._room.attempts.refused(
                "request", show_host(host), verdict.why, port=port, rule=verdict.rule, hint=verdict.hint,
                method=method, path=target.split("?", 1)[0], cgroup=self._cgroup,
            )  # fmt: skip

    async def run(self) -> None:
        """Until one side closes, or something must not go on."""
        try:
            while True:
                head = await self._head()
                if head is None or not await self._serve(head):
                    break
                self._current = None
        except BadRequest as error:
            await self._bad(str(error))
        await self._linger()

    # -- a request -----------------------------------------------------------------------------------------------------

    async def _head(self) -> bytes | None:
        data = bytearray(b"" if self._first else await self._client.read(HEAD_MOST))
        looked = 0  # so far; what was looked at is not looked at again, however small the pieces are
        async with asyncio.timeout(FIRST_HEAD_S if self._first else _HEAD_S):
            while (end := data.find(b"\r\n\r\n", max(0, looked - 3))) < 0:
                if _BARE_LF.search(data, max(0, looked - 1)) or len(data) > HEAD_MOST or not _begins(data):
                    break
                looked = len(data)
                more = await self._client.read(HEAD_MOST)
                if not more:
                    return None
                data += more
        self._first = False
        if not data:
            return None
        head = bytes(data[: end + 4] if end >= 0 else data)
        if _BARE_LF.search(head):
            raise BadRequest("a line in it ends with a bare LF")
        if end < 0 or end > HEAD_MOST:
            raise BadRequest("it is not HTTP, or its head is too long")
        self._client.unread(bytes(data[end + 4 :]))
        return head

    async def _serve(self, head: bytes) -> bool:
        """Whether another request may follow."""
        request = parse_request(head)
        if request.method == b"CONNECT":
            if self._connect is None:
                raise BadRequest("CONNECT is for proxies")
            await self._connect(request)
            return False
        host, port, target = authority(request)
        judged = await self._judged(request, host, port)
        if judged is None:
            return False
        where = self._place or (host or Name(""), port or 80)
        verdict = self._verdict(where, judged, request.method, target)
        other = overriding(request.headers)
        if verdict.allowed and other is not None and self._room.policy.requests_only(*where):
            why = f"rules look at its requests, and {other} would make another request of this one"
            verdict = Verdict(False, why, verdict.rule, f"leave {other} out")
        if not verdict.allowed:
            await self._refuse(where, request, verdict)
            return False
        self.grant(judged)
        self._current = (*where, request.method.decode(), target.decode("latin-1"))
        await self._room.meter.room(len(head))
        return await self._forward(head, request, target, where, verdict)

    async def _judged(self, request: Request, host: Host | None, port: int | None) -> Judged | None:
        """Whether the request is for where the connection leads to, or, at an explicit proxy, may go where it says."""
        spent = used_up(self._room)
        if self._place is not None:
            if spent is not None:
                await self._refuse(self._place, request, spent)
                return None
            if host is None or (host == self._place[0] and port in (None, self._place[1])):
                return Judged(self._granted or self._room.policy.connect(*self._place), self._granted is not None)
            why = f"a request for {show_host(host, port)} on a connection to {show_host(*self._place)}"
            await self._refuse(self._place, request, Verdict(False, why, None, "Host and the connection must agree"))
            return None
        if host is None or request.target.startswith((b"/", b"*")):
            raise BadRequest("this is a proxy: the target must be a whole http:// address")
        judged = await judge(self._room, host, port or 80, self._cgroup)
        if not judged.verdict.allowed:
            await self._refuse((host, port or 80), request, judged.verdict)
            return None
        return judged

    def _verdict(self, where: tuple[Host, int], judged: Judged, method: bytes, target: bytes) -> Verdict:
        verdict = self._room.policy.request(*where, method.decode(), target.decode("latin-1"), self._tls)
        return judged.verdict if verdict.unknown and judged.granted else verdict

    async def _forward(
        self, head: bytes, request: Request, target: bytes, where: tuple[Host, int], verdict: Verdict
    ) -> bool:
        headers = tuple(one for one in end_to_end(request.headers) if one[0] != b"host")
        asked = RequestHead(request.method, target, ((b"host", self._host(request, where)), *headers), request.body)
        record: Record | None
        fresh = False
        while True:
            hooks = self._hooks(where)
            sent = hooks.on_request(asked) if hooks is not None else asked
            if isinstance(sent, Refusal):
                await self._refuse(where, request, _verdict_of(sent), sent.status)
                return False
            secrets = hooks.secrets() if hooks is not None else ()
            try:
                upstream, new = await self._reach(where)
            except Refused as refused:
                await self._refuse(where, request, refused.verdict, address=refused.address)
                return False
            except OSError as error:
                record = self._begin(where, request, verdict, secrets, None)
                self._room.attempts.end(record, 0, 0, said(error), unreached=True)
                await self._answer(502, "Bad Gateway", f"{show_host(*where)} could not be reached: {said(error)}", None)
                return False
            fresh = fresh or new
            if self._hooks(where) is hooks:
                break  # else the rules were changed meanwhile, and with them perhaps the secrets
        exchange = Exchange(self._room, self._client, head, request, sent, hooks)
        record = self._begin(where, request, verdict, secrets, upstream.reached.address)
        trouble: str | None = None
        try:
            return await self._exchange(exchange, upstream, fresh)
        except (Refused, Blocked) as stopped:
            begun, record = record, None
            if begun is not None:
                begun.sent, begun.received = begun.sent + exchange.sent, begun.received + exchange.received
            told = stopped.verdict if isinstance(stopped, Refused) else _verdict_of(stopped.refusal)
            status = stopped.refusal.status if isinstance(stopped, Blocked) else 403
            await self._refuse(where, request, told, status, begun=exchange.begun, record=begun)
        except (OSError, h11.RemoteProtocolError) as error:
            trouble = said(error)
            if exchange.begun or exchange.client_gone:
                self._client.abort()
            else:
                await self._answer(502, "Bad Gateway", f"{show_host(*where)} did not answer: {trouble}", None)
        finally:
            if record is not None:
                self._room.attempts.end(record, exchange.sent, exchange.received, trouble)
            if not exchange.reusable:
                self._drop()
        return False

    async def _exchange(self, exchange: Exchange, upstream: Upstream, fresh: bool) -> bool:
        try:
            return await exchange.run(upstream)
        except (OSError, h11.RemoteProtocolError):
            # a kept connection may have been closed just as it was used again: nothing came back. What was done may be
            # done twice then, so only requests of which that makes no difference are repeated
            again = exchange.request.method in _AGAIN and not exchange.request.body
            if fresh or exchange.received or exchange.client_gone or not again:
                raise
        self._drop()
        hooks = self._hooks(upstream.place)
        upstream, _ = await self._reach(upstream.place)
        if self._hooks(upstream.place) is not hooks:
            raise ConnectionAbortedError("the rules were changed")
        return await exchange.run(upstream)

    def _begin(
        self,
        where: tuple[Host, int],
        request: Request,
        verdict: Verdict,
        secrets: tuple[str, ...],
        address: Address | None,
    ) -> Record:
        return self._room.attempts.begin(
            "request", show_host(where[0]), verdict.why, port=where[1], rule=verdict.rule, cgroup=self._cgroup,
            method=request.method.decode(), path=request.path, secrets=secrets,
            address=None if address is None else str(address),
        )  # fmt: skip

    # -- upstream ------------------------------------------------------------------------------------------------------

    async def _reach(self, where: tuple[Host, int]) -> tuple[Upstream, bool]:
        """A connection there, and whether it is a new one."""
        kept = self._upstream
        if kept is not None and kept.place == where and not kept.stale and not kept.reached.refusal(self._room, *where):
            return kept, False
        self._drop()
        reached, self._ready = self._ready, None
        if reached is None:
            reached = await reach(self._room, *where, plain_http=not self._tls)
        stream: Stream = reached.wire
        try:
            if self._tls:
                inspection = self._room.inspection
                if inspection is None:
                    raise ConnectionAbortedError("its TLS can't be opened any more")
                stream = await inspection.connect(reached.wire, str(where[0]))
        except BaseException:
            reached.wire.abort()
            raise
        self._upstream = Upstream(where, stream, reached)
        return self._upstream, True

    def _drop(self) -> None:
        if self._upstream is not None:
            self._upstream.reached.wire.abort()
            self._upstream = None

    def _hooks(self, where: tuple[Host, int]) -> Hooks | None:
        """Those of the latest rules: a secret that was taken away is not given to the next request."""
        inspection = self._room.inspection
        if self._hooked is None or self._hooked[0] is not inspection or self._hooked[1] != where:
            hooks = inspection.hooks(str(where[0]), where[1], self._tls) if inspection is not None else None
            self._hooked = (inspection, where, hooks)
        return self._hooked[2]

    def _host(self, request: Request, where: tuple[Host, int]) -> bytes:
        """As the client spelled it, where that is a name: it may have been signed."""
        if request.host is not None and self._place is not None and isinstance(where[0], Name):
            return request.host
        return show_host(where[0], None if where[1] == _PORTS[self._tls] else where[1]).encode()

    # -- saying no -----------------------------------------------------------------------------------------------------

    async def _refuse(
        self,
        where: tuple[Host, int],
        request: Request,
        verdict: Verdict,
        status: int = 403,
        begun: bool = False,
        record: Record | None = None,
        address: Address | None = None,
    ) -> None:
        why: dict[str, Any] = {"rule": verdict.rule, "hint": verdict.hint}
        if address is not None:
            why["address"] = str(address)
        if record is not None:
            self._room.attempts.deny(record, verdict.why, **why)
        else:
            self._room.attempts.refused(
                "request", show_host(where[0]), verdict.why, port=where[1], **why,
                method=request.method.decode(), path=request.path, cgroup=self._cgroup,
            )  # fmt: skip
        if begun:
            self._client.abort()
        else:
            await self._answer(status, "Forbidden by Skerry", verdict.why, verdict.hint)

    async def _bad(self, why: str) -> None:
        host, port = self._place or ("(proxy)", None)
        shown = host if isinstance(host, str) else show_host(host)
        self._room.attempts.refused("request", shown, f"not a request: {why}", port=port, cgroup=self._cgroup)
        await self._answer(400, "Bad Request", f"not a request that can be judged: {why}", None)

    async def _answer(self, status: int, reason: str, why: str, hint: str | None) -> None:
        await answer(self._client, status, reason, why, hint)

    async def _linger(self) -> None:
        """Closed so that the client reads the last answer: what it is still sending is taken for a moment."""
        await linger(self._client)


async def answer(client: Stream, status: int, reason: str, why: str, hint: str | None) -> None:
    text = f"skerry: {safe(why)}\n" + (f"hint: {safe(hint)}\n" if hint else "")
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    await client.write(f"{head}Connection: close\r\n\r\n{text}".encode())


async def linger(client: Stream) -> None:
    try:
        await client.finish()
        async with asyncio.timeout(_LINGER_S):
            left = _LINGER_MOST
            while left > 0 and (data := await client.read()):
                left -= len(data)
    except (OSError, TimeoutError):
        pass
    client.close()


def said(error: BaseException) -> str:
    """For the log and for the client: never what a server wrote."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, h11.RemoteProtocolError):
        return "what it answered is not HTTP"
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)  # not what the event loop made of it
    return safe(getattr(error, "strerror", None) or str(error) or type(error).__name__, 120)


def _begins(data: bytearray) -> bool:
    return not data or data[:1].isalpha()


def _verdict_of(refusal: Refusal) -> Verdict:
    return Verdict(False, refusal.why, refusal.rule, refusal.hint)
