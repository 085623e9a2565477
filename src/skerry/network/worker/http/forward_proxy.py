"""The proxy that the proxy variables name: CONNECT, and requests with absolute targets. Its denials explain the
reason."""

from __future__ import annotations

from skerry.network.policy.policy import Verdict
from skerry.network.worker.connection import EgressConnection
from skerry.network.worker.dial import DialedUpstream, authorize, dial_upstream
from skerry.network.worker.dns.resolver import AddressDenied
from skerry.network.worker.http.headers import BadRequest, ParsedRequest
from skerry.network.worker.http.proxy import HttpProxy, describe_error, send_error
from skerry.network.worker.sandbox_context import SandboxContext
from skerry.network.worker.streams import SocketStream
from skerry.types.hosts import Address, BadHost, Host, parse_authority, show_host


class ForwardProxy:
    """One client of the proxy."""

    def __init__(self, context: SandboxContext, client: SocketStream, cgroup: int | None) -> None:
        self._context, self._client, self._cgroup = context, client, cgroup
        self._http_proxy = HttpProxy(context, client, cgroup, destination=None, connect=self._connect)
        self._tunnel: EgressConnection | None = None

    def denial(self) -> Verdict | None:
        return self._http_proxy.denial() if self._tunnel is None else self._tunnel.denial()

    def stop(self, verdict: Verdict) -> None:
        self._client.reset()
        if self._tunnel is None:
            self._http_proxy.stop(verdict)
        else:
            self._tunnel.stop(verdict)

    async def run(self) -> None:
        try:
            await self._http_proxy.run()
        finally:
            self._http_proxy.close()
            self._client.abort()

    async def _connect(self, request: ParsedRequest) -> None:
        """Open a tunnel, then treat it like a direct connection to that host."""
        try:
            host, port = parse_authority(request.target)
        except BadHost as error:
            raise BadRequest(f"its host is invalid: {error}") from None
        if port is None or request.body:
            raise BadRequest("CONNECT needs a host with a port, and no body")
        authorization = await authorize(self._context, host, port, self._cgroup)
        if not authorization.verdict.allowed:
            await self._deny(host, port, authorization.verdict)
            return
        dialed: DialedUpstream | None = None
        try:
            if self._context.player is None and not self._context.handlers.covers(host, port):
                dialed = await dial_upstream(self._context, host, port)
        except AddressDenied as denied:
            await self._deny(host, port, denied.verdict, denied.address)
            return
        except OSError as error:
            why = f"{show_host(host, port)} could not be reached: {describe_error(error)}"
            record = self._context.attempts.begin(
                "connection", show_host(host), authorization.verdict.why, port=port, rule=authorization.verdict.rule,
                cgroup=self._cgroup,
            )  # fmt: skip
            self._context.attempts.end(record, 0, 0, describe_error(error), unreachable=True)
            await send_error(self._client, 502, "Bad Gateway", why, None)
            return
        latest = self._context.policy.connect(host, port)  # the rules may have changed meanwhile
        if not latest.allowed and not (latest.unknown and authorization.approved):
            if dialed is not None:
                dialed.stream.abort()
            await self._deny(host, port, latest)
            return
        self._tunnel = EgressConnection(self._context, self._client, host, port, self._cgroup)
        self._tunnel.adopt(dialed, authorization)
        try:
            await self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        except BaseException:
            if dialed is not None:
                dialed.stream.abort()
            raise
        await self._tunnel.run_adopted()

    async def _deny(self, host: Host, port: int, verdict: Verdict, address: Address | None = None) -> None:
        self._context.attempts.denied(
            "connection", show_host(host), verdict.why, port=port, rule=verdict.rule, hint=verdict.hint,
            method="CONNECT", address=None if address is None else str(address), cgroup=self._cgroup,
        )  # fmt: skip
        await send_error(self._client, 403, "Forbidden by Skerry", verdict.why, verdict.hint)
