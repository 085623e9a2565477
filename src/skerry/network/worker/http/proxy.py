"""The HTTP proxy: judges each request separately and re-serializes requests and responses. Bytes are never forwarded as
they were framed, so that both sides see the same requests as the policy."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import h11

from skerry.network.policy.policy import Verdict
from skerry.network.worker.audit import AttemptRecord, MirroredExchange, printable
from skerry.network.worker.cassette import RECORD_AGAIN, NotRecorded, Player, Recording, request_url
from skerry.network.worker.dial import Authorization, DialedUpstream, authorize, dial_upstream, quota_denial
from skerry.network.worker.dns.resolver import AddressDenied
from skerry.network.worker.http.exchange import (
    CassetteExchange,
    HttpExchange,
    HttpUpstream,
    consume_body,
    put_back_body,
    send_whole,
)
from skerry.network.worker.http.filters import (
    BlockedByFilter,
    BodyFilter,
    ExchangeCopy,
    FilterDenial,
    HttpFilters,
    Interceptor,
    RequestHead,
    ResponseHead,
)
from skerry.network.worker.http.handlers import Destination, encode_headers, routed
from skerry.network.worker.http.handling import BodyCollector, Discarded, HandlerRun, reason_of
from skerry.network.worker.http.headers import (
    MAX_HEAD,
    BadRequest,
    ParsedRequest,
    end_to_end,
    override_header,
    parse_request,
    request_authority,
)
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.streams import ByteStream
from skerry.types import HttpResponse
from skerry.types.hosts import Address, Host, Name, show_host

FIRST_HEAD_TIMEOUT_S: Final = 10.0
_HEAD_TIMEOUT_S: Final = 30.0
_LINGER_S: Final = 1.0
_MAX_LINGER: Final = 1 << 20
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_REPEATABLE: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))
_DEFAULT_PORTS: Final = {True: 443, False: 80}

Connect = Callable[[ParsedRequest], Awaitable[None]]


@dataclass(frozen=True)
class _Request:
    """One request of the client. `url`: as the client made it. `head`: for `to`, before secrets are injected;
    `verdict` allows it."""

    parsed: ParsedRequest
    head_bytes: bytes
    url: str
    head: RequestHead
    to: Destination
    verdict: Verdict
    copies: tuple[ExchangeCopy, ...] = ()
    run: HandlerRun | None = None


class HttpProxy:
    """One client connection. `destination`: the host and port that all its requests must have; None: a forward proxy's
    client, whose requests name theirs. `connect`: handles a CONNECT there."""

    def __init__(
        self,
        context: SandboxContext,
        client: ByteStream,
        cgroup: int | None,
        *,
        tls: bool = False,
        destination: tuple[Host, int] | None,
        connect: Connect | None = None,
    ) -> None:
        self._context, self._client, self._cgroup = context, client, cgroup
        self._tls, self._destination, self._connect = tls, destination, connect
        self._approved: Verdict | None = None  # by an approval
        self._upstream: HttpUpstream | None = None
        self._adopted: DialedUpstream | None = None  # dialed before HTTP was detected
        self._cached_filters: tuple[Interceptor | None, Destination, HttpFilters | None] | None = None
        self._current: tuple[Host, int, str, str] | None = None
        self._redirected: tuple[Destination, str, str, bool] | None = None  # by a handler; whether it was approved
        self._first = True

    def adopt(self, dialed: DialedUpstream) -> None:
        """Use this connection, which leads to `destination`, for the first request."""
        self._adopted = dialed

    def approve(self, authorization: Authorization) -> None:
        """Keep an approval for the requests of this connection."""
        self._approved = authorization.verdict if authorization.approved else None

    def close(self) -> None:
        self._drop()
        if self._adopted is not None:
            self._adopted.stream.abort()
            self._adopted = None

    def denial(self) -> Verdict | None:
        """Return the reason why the current rules no longer allow the request in progress."""
        if self._current is None:
            return None
        host, port, method, target = self._current
        verdict = self._context.policy.request(host, port, method, target, self._tls)
        moved = self._upstream.dialed.denial(self._context, *self._upstream.destination) if self._upstream else None
        if moved is not None:
            return moved
        if not verdict.allowed and not (verdict.unknown and self._approved is not None):
            return verdict
        return self._redirect_denial()

    def _redirect_denial(self) -> Verdict | None:
        """Return the reason why the current rules no longer allow the host that a handler redirected to."""
        if self._redirected is None:
            return None
        to, method, target, approved = self._redirected
        verdict = self._context.policy.request(*to.place, method, target, to.tls)
        return None if verdict.allowed or (verdict.unknown and approved) else verdict

    def stop(self, verdict: Verdict) -> None:
        """Reset the request in progress and report the reason."""
        if self._upstream is not None:
            self._upstream.dialed.stream.reset()
        if self._current is not None:
            host, port, method, target = self._current
            self._context.attempts.denied(
                "request", show_host(host), verdict.why, port=port, rule=verdict.rule, hint=verdict.hint,
                method=method, path=target.split("?", 1)[0], cgroup=self._cgroup,
            )  # fmt: skip

    async def run(self) -> None:
        """Serve until one side closes or a request is denied."""
        try:
            while True:
                head = await self._head()
                if head is None or not await self._serve(head):
                    break
                self._current = self._redirected = None
        except BadRequest as error:
            await self._reject(str(error))
        await self._linger()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _head(self) -> bytes | None:
        data = bytearray(b"" if self._first else await self._client.read(MAX_HEAD))
        looked = 0  # bytes searched so far; they are not searched again, however small the pieces are
        async with asyncio.timeout(FIRST_HEAD_TIMEOUT_S if self._first else _HEAD_TIMEOUT_S):
            while (end := data.find(b"\r\n\r\n", max(0, looked - 3))) < 0:
                if _BARE_LF.search(data, max(0, looked - 1)) or len(data) > MAX_HEAD or not _may_be_request(data):
                    break
                looked = len(data)
                more = await self._client.read(MAX_HEAD)
                if not more:
                    return None
                data += more
        self._first = False
        if not data:
            return None
        head = bytes(data[: end + 4] if end >= 0 else data)
        if _BARE_LF.search(head):
            raise BadRequest("a line in it ends with a bare LF")
        if end < 0 or end > MAX_HEAD:
            raise BadRequest("it is not HTTP, or its head is too long")
        self._client.unread(bytes(data[end + 4 :]))
        return head

    async def _serve(self, head: bytes) -> bool:
        """Serve one request; return whether another may follow."""
        request = parse_request(head)
        if request.method == b"CONNECT":
            if self._connect is None:
                raise BadRequest("CONNECT is for proxies")
            await self._connect(request)
            return False
        host, port, target = request_authority(request)
        authorization = await self._authorize(request, host, port)
        if authorization is None:
            return False
        destination = self._destination or (host or Name(""), port or 80)
        verdict = self._verdict(destination, authorization, request.method, target)
        other = override_header(request.headers)
        if verdict.allowed and other is not None and self._context.policy.requests_only(*destination):
            why = f"rules look at its requests, and {other} would change the request"
            verdict = Verdict(False, why, verdict.rule, f"leave {other} out")
        if not verdict.allowed:
            await self._deny(destination, request, verdict)
            return False
        self.approve(authorization)
        self._current = (*destination, request.method.decode(), target.decode("latin-1"))
        await self._context.meter.wait_allowance(len(head))
        if self._context.player is not None:
            return await self._replay(self._context.player, head, request, target, destination, verdict)
        headers = tuple(one for one in end_to_end(request.headers) if one[0] != b"host")
        given = RequestHead(
            request.method, target, ((b"host", self._host(request, destination)), *headers), request.body
        )
        url = request_url(destination, target, self._tls)
        wanted = _Request(request, head, url, given, Destination(*destination, self._tls), verdict)
        wanted = replace(wanted, copies=self._copies(wanted))
        try:
            return await self._handle(wanted)
        finally:
            for copy in wanted.copies:
                if isinstance(copy, MirroredExchange):
                    copy.close("it did not complete")

    # -- handlers ------------------------------------------------------------------------------------------------------

    async def _handle(self, wanted: _Request) -> bool:
        """Apply the handler that covers the request, if there is one, and forward or answer it."""
        method, target = wanted.parsed.method.decode(), wanted.head.target.decode("latin-1")
        handler = self._context.handlers.find(*wanted.to.place, method, target)
        if handler is None:
            return await self._forward(wanted)
        run = HandlerRun(self._context, handler, wanted.url, self._cgroup)
        if not handler.bodies:
            return await self._run_handler(wanted, run)
        async with self._context.bodies:
            return await self._run_handler(wanted, run)

    async def _run_handler(self, wanted: _Request, run: HandlerRun) -> bool:
        try:
            body = await self._collect_body(wanted) if run.needs_request_body else None
            handled = await run.on_request(wanted.head, body)
        except BlockedByFilter as blocked:
            await self._deny(wanted.to.place, wanted.parsed, _verdict_of(blocked.denial), blocked.denial.status)
            return False
        verdict = replace(wanted.verdict, why=f"{wanted.verdict.why}; handled by {run.handler.host}")
        wanted = replace(wanted, head=handled.head, verdict=verdict, run=run if run.sees_response else None)
        if handled.answer is not None:
            return await self._answer(wanted, handled.answer, body)
        if body is not None:
            put_back_body(self._client, wanted.parsed, body)
        to = wanted.to.redirected(handled.redirect) if handled.redirect is not None else wanted.to
        checked = await self._judge_handled(wanted, to, redirected=handled.redirect is not None)
        return False if checked is None else await self._forward(checked)

    async def _collect_body(self, wanted: _Request) -> bytes:
        collector = BodyCollector()
        if wanted.parsed.body:
            await consume_body(self._context, self._client, wanted.head_bytes, wanted.parsed, collector)
        return bytes(collector.data)

    async def _judge_handled(self, wanted: _Request, to: Destination, *, redirected: bool) -> _Request | None:
        """Judge a request that a handler has changed, for the host that it goes to now. Return None if it is denied."""
        verdict, approved = wanted.verdict, False
        method, target = wanted.parsed.method.decode(), wanted.head.target.decode("latin-1")
        if redirected:
            authorization = await authorize(self._context, *to.place, self._cgroup)
            approved = authorization.approved
            verdict = authorization.verdict
            if verdict.allowed:
                verdict = self._context.policy.request(*to.place, method, target, to.tls)
                verdict = authorization.verdict if verdict.unknown and approved else verdict
            why = f"{verdict.why}; redirected from {show_host(*wanted.to.place)} by a handler"
            verdict = replace(verdict, why=why)
        other = override_header(wanted.head.headers)
        if verdict.allowed and other is not None and self._context.policy.requests_only(*to.place):
            why = f"rules look at its requests, and {other} would change the request"
            verdict = Verdict(False, why, verdict.rule, f"leave {other} out")
        if not verdict.allowed:
            await self._deny(to.place, wanted.parsed, verdict)
            return None
        if not redirected:
            return wanted
        self._redirected = (to, method, target, approved)
        return replace(wanted, to=to, head=routed(wanted.head, to), verdict=verdict)

    async def _answer(self, wanted: _Request, answer: HttpResponse, consumed: bytes | None) -> bool:
        """Answer for the host, which receives nothing. `consumed`: the body of the request, if it was read."""
        body, request = answer.body or b"", wanted.parsed
        record = self._record_start(wanted.to.place, request, wanted.verdict, (), None)
        sent, failure = 0, None
        try:
            passed: BodyFilter | None = None
            for copy in wanted.copies:
                passed = copy.request_filter(passed)
            if consumed and passed is not None:
                passed.feed(consumed)
            elif request.body and consumed is None:
                await consume_body(self._context, self._client, wanted.head_bytes, request, Discarded(passed))
            head = ResponseHead(answer.status, reason_of(answer.status), encode_headers(answer.headers))
            if body:
                await self._context.meter.wait_allowance(len(body))
            await send_whole(self._client, request, head, body, wanted.copies)
            sent = len(body)
            for copy in wanted.copies:
                copy.finish(True)
        except OSError as error:
            failure = describe_error(error)
            raise
        finally:
            self._context.meter.add(0, sent)
            self._context.attempts.end(record, 0, sent, failure)
        return not request.closes

    def _copies(self, wanted: _Request) -> tuple[ExchangeCopy, ...]:
        """Begin to copy a request as the client sent it: into the cassette, and to the trace."""
        recorder, interceptor, copies = self._context.recorder, self._context.interceptor, list[ExchangeCopy]()
        patterns = interceptor.patterns() if interceptor is not None else None
        if recorder is not None:
            copies.append(recorder.begin(wanted.parsed, wanted.url, patterns))
        if self._context.policy.mirrors(*wanted.to.place):
            report = self._context.server.report_exchange
            copies.append(
                MirroredExchange(self._context.sandbox, wanted.url, wanted.head, patterns, self._cgroup, report)
            )
        return tuple(copies)

    async def _authorize(self, request: ParsedRequest, host: Host | None, port: int | None) -> Authorization | None:
        """Check that the request is for the connection's destination or, at a forward proxy, that its destination is
        allowed."""
        exhausted = quota_denial(self._context)
        if self._destination is not None:
            if exhausted is not None:
                await self._deny(self._destination, request, exhausted)
                return None
            if host is None or (host == self._destination[0] and port in (None, self._destination[1])):
                return Authorization(
                    self._approved or self._context.policy.connect(*self._destination), self._approved is not None
                )
            why = f"a request for {show_host(host, port)} on a connection to {show_host(*self._destination)}"
            await self._deny(
                self._destination, request, Verdict(False, why, None, "Host and the connection must agree")
            )
            return None
        if host is None or request.target.startswith((b"/", b"*")):
            raise BadRequest("this is a proxy: the target must be an absolute http:// URL")
        authorization = await authorize(self._context, host, port or 80, self._cgroup)
        if not authorization.verdict.allowed:
            await self._deny((host, port or 80), request, authorization.verdict)
            return None
        return authorization

    def _verdict(
        self, destination: tuple[Host, int], authorization: Authorization, method: bytes, target: bytes
    ) -> Verdict:
        verdict = self._context.policy.request(*destination, method.decode(), target.decode("latin-1"), self._tls)
        return authorization.verdict if verdict.unknown and authorization.approved else verdict

    async def _forward(self, wanted: _Request) -> bool:
        request, to, destination, verdict = wanted.parsed, wanted.to, wanted.to.place, wanted.verdict
        record: AttemptRecord | None
        fresh = False
        while True:
            filters = self._filters(to)
            sent = filters.on_request(wanted.head) if filters is not None else wanted.head
            if isinstance(sent, FilterDenial):
                await self._deny(destination, request, _verdict_of(sent), sent.status)
                return False
            secrets = filters.secrets() if filters is not None else ()
            try:
                upstream, new = await self._upstream_for(to)
            except AddressDenied as denied:
                await self._deny(destination, request, denied.verdict, address=denied.address)
                return False
            except OSError as error:
                record = self._record_start(destination, request, verdict, secrets, None)
                self._context.attempts.end(record, 0, 0, describe_error(error), unreachable=True)
                await self._send_error(
                    502, "Bad Gateway", f"{show_host(*destination)} could not be reached: {describe_error(error)}", None
                )
                return False
            fresh = fresh or new
            if self._filters(to) is filters:
                break  # otherwise the rules changed meanwhile, and perhaps the secrets
        exchange = HttpExchange(
            self._context, self._client, wanted.head_bytes, request, sent, filters, wanted.copies, wanted.run
        )
        record = self._record_start(destination, request, verdict, secrets, upstream.dialed.address)
        failure: str | None = None
        try:
            return await self._exchange(exchange, upstream, fresh)
        except (AddressDenied, BlockedByFilter) as blocked:
            started, record = record, None
            if started is not None:
                started.sent, started.received = started.sent + exchange.sent, started.received + exchange.received
            verdict_given = blocked.verdict if isinstance(blocked, AddressDenied) else _verdict_of(blocked.denial)
            status = blocked.denial.status if isinstance(blocked, BlockedByFilter) else 403
            await self._deny(destination, request, verdict_given, status, started=exchange.started, record=started)
        except (OSError, h11.RemoteProtocolError) as error:
            failure = describe_error(error)
            if exchange.started or exchange.client_gone:
                self._client.abort()
            else:
                await self._send_error(502, "Bad Gateway", f"{show_host(*destination)} did not answer: {failure}", None)
        finally:
            if record is not None:
                failure = failure or _unrecorded(wanted.copies)
                self._context.attempts.end(record, exchange.sent, exchange.received, failure)
            if not exchange.reusable:
                self._drop()
        return False

    async def _replay(
        self, player: Player, head: bytes, request: ParsedRequest, target: bytes, destination: tuple[Host, int],
        verdict: Verdict,
    ) -> bool:  # fmt: skip
        """Answer from the cassette. A request that a secret's rules deny is denied as it was in the recording."""
        original = RequestHead(request.method, target, end_to_end(request.headers), request.body)
        filters = self._filters(Destination(*destination, self._tls))
        filtered = filters.on_request(original) if filters is not None else original
        if isinstance(filtered, FilterDenial):
            await self._deny(destination, request, _verdict_of(filtered), filtered.status)
            return False
        try:
            again = await CassetteExchange(self._context, self._client, head, request).run(
                player, request_url(destination, target, self._tls)
            )
        except NotRecorded as error:
            await self._deny(destination, request, Verdict(False, str(error), None, RECORD_AGAIN), 502)
            return False
        served = Verdict(True, f"{verdict.why}; served from the cassette", verdict.rule)
        self._context.attempts.end(self._record_start(destination, request, served, (), None), 0, 0)
        return again

    async def _exchange(self, exchange: HttpExchange, upstream: HttpUpstream, fresh: bool) -> bool:
        try:
            return await exchange.run(upstream)
        except (OSError, h11.RemoteProtocolError):
            # a kept connection may have been closed just when it was reused: no response came. The request may have
            # been executed, so only idempotent requests are repeated
            again = exchange.request.method in _REPEATABLE and not exchange.request.body
            if fresh or exchange.received or exchange.client_gone or not again:
                raise
        self._drop()
        to = Destination(*upstream.destination, upstream.tls)
        filters = self._filters(to)
        upstream, _ = await self._upstream_for(to)
        if self._filters(to) is not filters:
            raise ConnectionAbortedError("the rules were changed")
        return await exchange.run(upstream)

    def _record_start(
        self,
        destination: tuple[Host, int],
        request: ParsedRequest,
        verdict: Verdict,
        secrets: tuple[str, ...],
        address: Address | None,
    ) -> AttemptRecord:
        return self._context.attempts.begin(
            "request", show_host(destination[0]), verdict.why, port=destination[1], rule=verdict.rule,
            cgroup=self._cgroup, method=request.method.decode(), path=request.path, secrets=secrets,
            address=None if address is None else str(address),
        )  # fmt: skip

    # -- upstream ------------------------------------------------------------------------------------------------------

    async def _upstream_for(self, to: Destination) -> tuple[HttpUpstream, bool]:
        """Return a connection to the destination, and whether it is new."""
        kept, destination = self._upstream, to.place
        if (
            kept is not None
            and (kept.destination, kept.tls) == (destination, to.tls)
            and not kept.stale
            # new rules may send a secret there: the certificate must be verified for that
            and (not to.tls or kept.verified_by is self._context.interceptor)
            and not kept.dialed.denial(self._context, *destination)
        ):
            return kept, False
        self._drop()
        dialed = None
        if (destination, to.tls) == (self._destination, self._tls):  # not if a handler redirects the request
            dialed, self._adopted = self._adopted, None
        if dialed is None:
            dialed = await dial_upstream(self._context, *destination, plain_http=not to.tls)
        stream: ByteStream = dialed.stream
        interceptor = self._context.interceptor if to.tls else None
        try:
            if to.tls:
                if interceptor is None:
                    raise ConnectionAbortedError("its TLS can no longer be intercepted")
                stream = await interceptor.connect(dialed.stream, str(destination[0]), destination[1])
        except BaseException:
            dialed.stream.abort()
            raise
        self._upstream = HttpUpstream(destination, stream, dialed, to.tls, interceptor)
        return self._upstream, True

    def _drop(self) -> None:
        if self._upstream is not None:
            self._upstream.dialed.stream.abort()
            self._upstream = None

    def _filters(self, to: Destination) -> HttpFilters | None:
        """Return the filters of the current rules: a removed secret is not injected into the next request."""
        interceptor = self._context.interceptor
        if self._cached_filters is None or self._cached_filters[0] is not interceptor or self._cached_filters[1] != to:
            filters = interceptor.filters(str(to.host), to.port, to.tls) if interceptor is not None else None
            self._cached_filters = (interceptor, to, filters)
        return self._cached_filters[2]

    def _host(self, request: ParsedRequest, destination: tuple[Host, int]) -> bytes:
        """Return the Host as the client wrote it, if it is a name: it may be part of a signature."""
        if request.host is not None and self._destination is not None and isinstance(destination[0], Name):
            return request.host
        return show_host(
            destination[0], None if destination[1] == _DEFAULT_PORTS[self._tls] else destination[1]
        ).encode()

    # -- denials and errors --------------------------------------------------------------------------------------------

    async def _deny(
        self,
        destination: tuple[Host, int],
        request: ParsedRequest,
        verdict: Verdict,
        status: int = 403,
        started: bool = False,
        record: AttemptRecord | None = None,
        address: Address | None = None,
    ) -> None:
        why: dict[str, Any] = {"rule": verdict.rule, "hint": verdict.hint}
        if address is not None:
            why["address"] = str(address)
        if record is not None:
            self._context.attempts.deny(record, verdict.why, **why)
        else:
            self._context.attempts.denied(
                "request", show_host(destination[0]), verdict.why, port=destination[1], **why,
                method=request.method.decode(), path=request.path, cgroup=self._cgroup,
            )  # fmt: skip
        if started:
            self._client.abort()
        else:
            reason = "Forbidden by Skerry" if self._context.player is None or status != 502 else "Not in the cassette"
            await self._send_error(status, reason, verdict.why, verdict.hint)

    async def _reject(self, why: str) -> None:
        host, port = self._destination or ("(proxy)", None)
        shown = host if isinstance(host, str) else show_host(host)
        self._context.attempts.denied("request", shown, f"not a request: {why}", port=port, cgroup=self._cgroup)
        await self._send_error(400, "Bad Request", f"not a request that can be judged: {why}", None)

    async def _send_error(self, status: int, reason: str, why: str, hint: str | None) -> None:
        await send_error(self._client, status, reason, why, hint)

    async def _linger(self) -> None:
        """Close so that the client can read the last response: accept its remaining bytes for a moment."""
        await linger(self._client)


async def send_error(client: ByteStream, status: int, reason: str, why: str, hint: str | None) -> None:
    text = f"skerry: {printable(why)}\n" + (f"hint: {printable(hint)}\n" if hint else "")
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    await client.write(f"{head}Connection: close\r\n\r\n{text}".encode())


async def linger(client: ByteStream) -> None:
    try:
        await client.finish()
        async with asyncio.timeout(_LINGER_S):
            left = _MAX_LINGER
            while left > 0 and (data := await client.read()):
                left -= len(data)
    except (OSError, TimeoutError):
        pass
    client.close()


def describe_error(error: BaseException) -> str:
    """Describe an error for the log and the client, never with text from a server."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, h11.RemoteProtocolError):
        return "its response is not HTTP"
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)  # not the event loop's wording
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__, 120)


def _may_be_request(data: bytearray) -> bool:
    return not data or data[:1].isalpha()


def _unrecorded(copies: tuple[ExchangeCopy, ...]) -> str | None:
    """Return the reason why an exchange is missing in the cassette."""
    reason = next((copy.why for copy in copies if isinstance(copy, Recording) and copy.why is not None), None)
    return None if reason is None else f"not recorded: {reason}"


def _verdict_of(denial: FilterDenial) -> Verdict:
    return Verdict(False, denial.why, denial.rule, denial.hint)
