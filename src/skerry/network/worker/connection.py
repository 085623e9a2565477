"""One connection from inside, from the moment its host and port are known to its end."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from skerry.network.policy.policy import Verdict
from skerry.network.worker.audit import AttemptRecord
from skerry.network.worker.dial import Authorization, DialedUpstream, authorize, dial_upstream
from skerry.network.worker.dns.resolver import AddressDenied
from skerry.network.worker.http.filters import BlockedByFilter, BodyFilter
from skerry.network.worker.http.proxy import HttpProxy, describe_error
from skerry.network.worker.relay import relay, relay_filtered
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.sniff import SSH_BANNER, FirstLineFilter, SniffResult, sni_mismatch, sniff
from skerry.network.worker.streams import ByteStream, SocketStream
from skerry.types.hosts import Address, Host, show_host

FIRST_BYTES_TIMEOUT_S: Final = 10.0
_CLIENT_FIRST: Final = frozenset((80, 443))
_TLS_TIMEOUT_S: Final = 15.0
_SNIFF_TIMEOUT_S: Final = 0.3
_HANDSHAKE_RETRY_S: Final = 0.02


class EgressConnection:
    """`run` serves it to its end and never leaves a socket open. `denial` reports whether rules still allow it."""

    def __init__(
        self, context: SandboxContext, client: SocketStream, host: Host, port: int, cgroup: int | None
    ) -> None:
        self._context, self._client, self.host, self.port, self._cgroup = context, client, host, port, cgroup
        self._dialed: DialedUpstream | None = None
        self._authorization: Authorization | None = None
        self._record: AttemptRecord | None = None
        self._http_proxy: HttpProxy | None = None
        self._opaque = False  # bytes are relayed without being read
        self._sent = self._received = 0
        self._error: str | None = None
        self._unreachable = False

    # -- changes of the rules ------------------------------------------------------------------------------------------

    def denial(self) -> Verdict | None:
        """Return the reason why the current rules no longer allow it; None if they do, or if it is not decided yet."""
        if self._authorization is None:
            return None
        policy = self._context.policy
        verdict = policy.connect(self.host, self.port)
        if not verdict.allowed and not (self._authorization.approved and verdict.unknown):
            return verdict
        redirected = self._dialed.denial(self._context, self.host, self.port) if self._dialed is not None else None
        if redirected is not None:
            return redirected
        if self._opaque and policy.intercepts_tls(self.host, self.port):
            return Verdict(False, "its requests must be inspected from now on")
        return None if self._http_proxy is None else self._http_proxy.denial()

    def stop(self, verdict: Verdict) -> None:
        """Reset the connection and report the reason. The caller must cancel the task that runs it."""
        self._client.reset()
        if self._dialed is not None:
            self._dialed.stream.reset()
        if self._http_proxy is not None:
            self._http_proxy.stop(verdict)
        else:
            self._deny(verdict)

    # -- serving -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            if await self._authorize():
                await self._serve()
        finally:
            self._finish()

    def adopt(self, dialed: DialedUpstream | None, authorization: Authorization) -> None:
        """Take an upstream that a forward proxy's CONNECT has authorized and dialled, if it is not a cassette: new
        rules may end it from now on."""
        self._authorization, self._dialed = authorization, dialed

    async def run_adopted(self) -> None:
        """Serve it like `run`, after `adopt`."""
        try:
            await self._serve()
        finally:
            self._finish()

    @property
    def _intercepts(self) -> bool:
        """Whether the connection's TLS is intercepted: its rules require it, or its requests are recorded or replayed.
        A peer's certificate is its own, so that TLS to a peer is not recorded."""
        if self._context.player is not None:
            return True
        recorded = self._context.recorder is not None and self._context.policy.peer(self.host) is None
        return recorded or self._context.policy.intercepts_tls(self.host, self.port)

    def _finish(self) -> None:
        self._client.abort()  # no effect after an orderly end
        if self._dialed is not None:
            self._dialed.stream.abort()
        if self._record is not None:
            self._context.attempts.end(
                self._record, self._sent, self._received, self._error, unreachable=self._unreachable
            )

    async def _authorize(self) -> bool:
        authorization = await authorize(self._context, self.host, self.port, self._cgroup)
        if authorization.verdict.allowed:
            self._authorization = authorization
            return True
        self._deny(authorization.verdict)
        return False

    async def _serve(self) -> None:
        try:
            sniffed = await self._sniff()
            if sniffed is None or self._denied_as(sniffed):
                return
            if sniffed.kind == "tls" and self._intercepts:
                await self._intercept()
            elif sniffed.kind == "http":
                await self._http(self._client, tls=False)
            elif self._context.player is not None:
                self._deny(Verdict(False, "neither HTTP nor TLS: a cassette has no other exchanges"))
            else:
                await self._relay(sniffed)
        except AddressDenied as denied:
            self._deny(denied.verdict, denied.address)
        except BlockedByFilter as blocked:
            self._deny(Verdict(False, blocked.denial.why, blocked.denial.rule, blocked.denial.hint))
        except TimeoutError:
            self._error = "it took too long"
        except OSError as error:
            self._error = describe_error(error)

    async def _sniff(self) -> SniffResult | None:
        """Detect the client's protocol. If the server may speak first, dial it first."""
        timeout_s = None
        server_first = self.port not in _CLIENT_FIRST and self._context.player is None
        if server_first and not self._context.policy.intercepts_tls(self.host, self.port):
            timeout_s = _SNIFF_TIMEOUT_S
            upstream = await self._dial()
            if await _first_readable(self._client, upstream) is upstream:
                return SniffResult("other")
        try:
            async with asyncio.timeout(FIRST_BYTES_TIMEOUT_S):
                return await sniff(self._client, timeout_s)
        except TimeoutError:
            self._deny(Verdict(False, f"its first bytes did not come within {FIRST_BYTES_TIMEOUT_S:.0f} s"))
        return None

    def _denied_as(self, sniffed: SniffResult) -> bool:
        """Deny the connection if its protocol is not allowed here; return whether it has ended."""
        why, hint = None, None
        if sniffed.kind == "tls":
            why = sni_mismatch(sniffed, self.host, self.port)
            hint = None if why is None else "server name and host must be the same"
            if why is None and self._intercepts and self._context.interceptor is None:
                why = "its TLS must be intercepted, but the sandbox has no CA"
        elif sniffed.kind in ("other", "unclear"):
            if self._context.policy.intercepts_tls(self.host, self.port):
                why = "its requests must be inspected, but this is neither HTTP nor TLS"
            elif sniffed.kind == "other" and self.port in _CLIENT_FIRST and not sniffed.first.startswith(SSH_BANNER):
                why = f"neither HTTP nor TLS, on port {self.port}"
        elif sniffed.kind == "nothing" and self._dialed is None:
            self._error = "the client sent nothing"
            self._record_start()
            return True
        if why is not None:
            self._deny(Verdict(False, why, None, hint))
        return why is not None

    async def _relay(self, sniffed: SniffResult) -> None:
        self._opaque = True
        upstream = await self._dial()
        context = self._context
        if context.recorder is not None:
            context.recorder.omit(show_host(self.host, self.port), "it is neither HTTP nor intercepted TLS")
        body_filter: BodyFilter | None = (
            context.interceptor.raw_filter() if context.interceptor is not None and sniffed.kind != "tls" else None
        )
        both = (context.pipes, context.meter, self._count_sent, self._count_received)
        if sniffed.kind == "unclear":
            line = FirstLineFilter(body_filter)
            await relay_filtered(self._client, upstream, line, *both, settled=lambda: line.settled)
        elif body_filter is not None:
            await relay_filtered(self._client, upstream, body_filter, *both)
        else:
            await relay(self._client, upstream, *both)

    async def _intercept(self) -> None:
        interceptor = self._context.interceptor
        assert interceptor is not None  # noqa: S101 -- `_denied_as` has checked it
        try:
            async with asyncio.timeout(_TLS_TIMEOUT_S):
                while not self._context.handshakes.take():  # noqa: ASYNC110 -- it waits for time to pass
                    await asyncio.sleep(_HANDSHAKE_RETRY_S)
                client = await interceptor.accept(self._client, str(self.host))
        except (ssl.SSLError, TimeoutError) as error:
            self._record_start()
            self._error = f"TLS with the client failed: {describe_error(error)}"
            return
        try:
            await self._http(client, tls=True)
        finally:
            client.close()

    async def _http(self, client: ByteStream, tls: bool) -> None:
        dialed, self._dialed = self._dialed, None
        authorization = self._authorization
        assert authorization is not None  # noqa: S101 -- only authorized connections are served
        proxy = HttpProxy(self._context, client, self._cgroup, tls=tls, destination=(self.host, self.port))
        proxy.approve(authorization)
        if self._record is not None:  # reported as a connection so far; from here on, request by request
            self._context.attempts.end(self._record, 0, 0)
            self._record = None
        try:
            self._http_proxy = proxy
            if dialed is not None:
                proxy.adopt(dialed)
            await proxy.run()
        finally:
            proxy.close()

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _dial(self) -> SocketStream:
        """Dial the upstream, and record the start once it is connected or has failed; a denied address is not recorded
        as started."""
        if self._dialed is None:
            try:
                self._dialed = await dial_upstream(self._context, self.host, self.port)
            except OSError:
                self._unreachable = True
                self._record_start()
                raise
        self._record_start()
        return self._dialed.stream

    def _record_start(self) -> None:
        if self._record is None:
            assert self._authorization is not None  # noqa: S101 -- only an allowed connection starts
            verdict = self._authorization.verdict
            self._record = self._context.attempts.begin(
                "connection", show_host(self.host), verdict.why, port=self.port, rule=verdict.rule,
                cgroup=self._cgroup,
                address=None if self._dialed is None or self._dialed.address is None else str(self._dialed.address),
            )  # fmt: skip

    def _deny(self, verdict: Verdict, address: Address | None = None) -> None:
        where = None if address is None else str(address)
        if self._record is not None and not self._sent and not self._received:
            record, self._record = self._record, None
            why = {"rule": verdict.rule, "hint": verdict.hint, **({} if where is None else {"address": where})}
            self._context.attempts.deny(record, verdict.why, **why)
            return
        self._context.attempts.denied(
            "connection", show_host(self.host), verdict.why, port=self.port, rule=verdict.rule, hint=verdict.hint,
            address=where, cgroup=self._cgroup,
        )  # fmt: skip
        self._error = "denied"

    def _count_sent(self, count: int) -> None:
        self._sent += count
        self._context.meter.add(count, 0)

    def _count_received(self, count: int) -> None:
        self._received += count
        self._context.meter.add(0, count)


async def _first_readable(client: SocketStream, upstream: SocketStream) -> SocketStream:
    """Return the side that is readable first."""
    waits = {asyncio.ensure_future(one.readable()): one for one in (client, upstream)}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    ready = {waits[wait] for wait in done}
    return client if client in ready else upstream
