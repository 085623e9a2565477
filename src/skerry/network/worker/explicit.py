"""The proxy that the proxy variables name: CONNECT, and requests with whole addresses. What it refuses it explains."""

from __future__ import annotations

from skerry.network.hosts import Address, BadHost, Host, parse_authority, show_host
from skerry.network.policy import Verdict
from skerry.network.worker.carry import Connection
from skerry.network.worker.heads import BadRequest, Request
from skerry.network.worker.http import HttpMode, answer, said
from skerry.network.worker.reach import judge, reach
from skerry.network.worker.resolve import Refused
from skerry.network.worker.room import Room
from skerry.network.worker.streams import Wire


class Explicit:
    """One client of it."""

    def __init__(self, room: Room, client: Wire, cgroup: int | None) -> None:
        self._room, self._client, self._cgroup = room, client, cgroup
        self._mode = HttpMode(room, client, cgroup, place=None, connect=self._connect)
        self._tunnel: Connection | None = None

    def refusal(self) -> Verdict | None:
        return self._mode.refusal() if self._tunnel is None else self._tunnel.refusal()

    def stop(self, verdict: Verdict) -> None:
        self._client.cut()
        if self._tunnel is None:
            self._mode.stop(verdict)
        else:
            self._tunnel.stop(verdict)

    async def run(self) -> None:
        try:
            await self._mode.run()
        finally:
            self._mode.close()
            self._client.abort()

    async def _connect(self, request: Request) -> None:
        """The way to a host, and then the same as for a connection that came there by itself."""
        try:
            host, port = parse_authority(request.target)
        except BadHost as error:
            raise BadRequest(f"its host is none: {error}") from None
        if port is None or request.body:
            raise BadRequest("CONNECT needs a host with a port, and no body")
        judged = await judge(self._room, host, port, self._cgroup)
        if not judged.verdict.allowed:
            await self._refuse(host, port, judged.verdict)
            return
        try:
            reached = await reach(self._room, host, port)
        except Refused as refused:
            await self._refuse(host, port, refused.verdict, refused.address)
            return
        except OSError as error:
            why = f"{show_host(host, port)} could not be reached: {said(error)}"
            record = self._room.attempts.begin(
                "connection", show_host(host), judged.verdict.why, port=port, rule=judged.verdict.rule,
                cgroup=self._cgroup,
            )  # fmt: skip
            self._room.attempts.end(record, 0, 0, said(error), unreached=True)
            await answer(self._client, 502, "Bad Gateway", why, None)
            return
        latest = self._room.policy.connect(host, port)  # the rules may be others by now
        if not latest.allowed and not (latest.unknown and judged.granted):
            reached.wire.abort()
            await self._refuse(host, port, latest)
            return
        self._tunnel = Connection(self._room, self._client, host, port, self._cgroup)
        self._tunnel.begin(reached, judged)
        try:
            await self._client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        except BaseException:
            reached.wire.abort()
            raise
        await self._tunnel.tunnel()

    async def _refuse(self, host: Host, port: int, verdict: Verdict, address: Address | None = None) -> None:
        self._room.attempts.refused(
            "connection", show_host(host), verdict.why, port=port, rule=verdict.rule, hint=verdict.hint,
            method="CONNECT", address=None if address is None else str(address), cgroup=self._cgroup,
        )  # fmt: skip
        await answer(self._client, 403, "Forbidden by Skerry", verdict.why, verdict.hint)
