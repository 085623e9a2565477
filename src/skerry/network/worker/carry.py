"""One connection from inside, from the moment its host and port are known to its end."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from skerry.network.hosts import Address, Host, show_host
from skerry.network.policy import Verdict
from skerry.network.worker.attempts import Record
from skerry.network.worker.hooks import Blocked, Filter
from skerry.network.worker.http import HttpMode, said
from skerry.network.worker.reach import Judged, Reached, judge, reach
from skerry.network.worker.relay import filtered, relay
from skerry.network.worker.resolve import Refused
from skerry.network.worker.room import Room
from skerry.network.worker.sniff import TUNNELLED, FirstLine, Seen, disagreement, sniff
from skerry.network.worker.streams import Stream, Wire

FIRST_BYTES_S: Final = 10.0
_CLIENT_FIRST: Final = frozenset((80, 443))
_TLS_S: Final = 15.0
_PATIENCE_S: Final = 0.3
_TURN_S: Final = 0.02


class Connection:
    """`run` takes it to its end and never leaves a socket behind. `refusal` says whether rules still allow it."""

    def __init__(self, room: Room, client: Wire, host: Host, port: int, cgroup: int | None) -> None:
        self._room, self._client, self.host, self.port, self._cgroup = room, client, host, port, cgroup
        self._reached: Reached | None = None
        self._judged: Judged | None = None
        self._record: Record | None = None
        self._mode: HttpMode | None = None
        self._opaque = False  # bytes nobody looks into
        self._sent = self._received = 0
        self._trouble: str | None = None
        self._unreached = False

    # -- for the rules' changes ----------------------------------------------------------------------------------------

    def refusal(self) -> Verdict | None:
        """Why the rules, as they are now, no longer allow it; None if they do, or if it is not decided yet."""
        if self._judged is None:
            return None
        policy = self._room.policy
        verdict = policy.connect(self.host, self.port)
        if not verdict.allowed and not (self._judged.granted and verdict.unknown):
            return verdict
        elsewhere = self._reached.refusal(self._room, self.host, self.port) if self._reached is not None else None
        if elsewhere is not None:
            return elsewhere
        if self._opaque and policy.inspects(self.host, self.port):
            return Verdict(False, "its requests must be seen from now on")
        return None if self._mode is None else self._mode.refusal()

    def stop(self, verdict: Verdict) -> None:
        """Cuts it, and tells why. Whoever runs it is to be cancelled."""
        self._client.cut()
        if self._reached is not None:
            self._reached.wire.cut()
        if self._mode is not None:
            self._mode.stop(verdict)
        else:
            self._refuse(verdict)

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            if await self._admitted():
                await self._carry()
        finally:
            self._end()

    def begin(self, reached: Reached, judged: Judged) -> None:
        """For what an explicit proxy's CONNECT has judged and reached already: new rules may end it from now on."""
        self._judged, self._reached = judged, reached

    async def tunnel(self) -> None:
        """As `run`, after `begin`."""
        try:
            await self._carry()
        finally:
            self._end()

    def _end(self) -> None:
        self._client.abort()  # after an orderly end there is nothing left to reset
        if self._reached is not None:
            self._reached.wire.abort()
        if self._record is not None:
            self._room.attempts.end(self._record, self._sent, self._received, self._trouble, unreached=self._unreached)

    async def _admitted(self) -> bool:
        judged = await judge(self._room, self.host, self.port, self._cgroup)
        if judged.verdict.allowed:
            self._judged = judged
            return True
        self._refuse(judged.verdict)
        return False

    async def _carry(self) -> None:
        try:
            seen = await self._look()
            if seen is None or self._unfit(seen):
                return
            if seen.kind == "tls" and self._room.policy.inspects(self.host, self.port):
                await self._inspect()
            elif seen.kind == "http":
                await self._http(self._client, tls=False)
            else:
                await self._relay(seen)
        except Refused as refused:
            self._refuse(refused.verdict, refused.address)
        except Blocked as blocked:
            self._refuse(Verdict(False, blocked.refusal.why, blocked.refusal.rule, blocked.refusal.hint))
        except TimeoutError:
            self._trouble = "it took too long"
        except OSError as error:
            self._trouble = said(error)

    async def _look(self) -> Seen | None:
        """What the client begins with. Where it may be the server that begins, that is dialled first."""
        patience = None
        if self.port not in _CLIENT_FIRST and not self._room.policy.inspects(self.host, self.port):
            patience = _PATIENCE_S
            upstream = await self._dialled()
            if await _first_of(self._client, upstream) is upstream:
                return Seen("other")
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                return await sniff(self._client, patience)
        except TimeoutError:
            self._refuse(Verdict(False, f"its first bytes did not come within {FIRST_BYTES_S:.0f} s"))
        return None

    def _unfit(self, seen: Seen) -> bool:
        """Refuses what may not go on as what it is."""
        why, hint = None, None
        if seen.kind == "tls":
            why = disagreement(seen, self.host, self.port)
            hint = None if why is None else "server name and host must be the same"
            if why is None and self._room.policy.inspects(self.host, self.port) and self._room.inspection is None:
                why = "its TLS must be opened, and there is no certificate authority to do that with"
        elif seen.kind in ("other", "unclear"):
            if self._room.policy.inspects(self.host, self.port):
                why = "its requests must be seen, and this is neither HTTP nor TLS"
            elif seen.kind == "other" and self.port in _CLIENT_FIRST and not seen.first.startswith(TUNNELLED):
                why = f"neither HTTP nor TLS, on port {self.port}"
        elif seen.kind == "nothing" and self._reached is None:
            self._trouble = "the client said nothing"
            self._begin()
            return True
        if why is not None:
            self._refuse(Verdict(False, why, None, hint))
        return why is not None

    async def _relay(self, seen: Seen) -> None:
        self._opaque = True
        upstream = await self._dialled()
        room = self._room
        watch: Filter | None = room.inspection.wire() if room.inspection is not None and seen.kind != "tls" else None
        both = (room.pipes, room.meter, self._out, self._in)
        if seen.kind == "unclear":
            line = FirstLine(watch)
            await filtered(self._client, upstream, line, *both, settled=lambda: line.settled)
        elif watch is not None:
            await filtered(self._client, upstream, watch, *both)
        else:
            await relay(self._client, upstream, *both)

    async def _inspect(self) -> None:
        inspection = self._room.inspection
        assert inspection is not None  # noqa: S101 -- `_unfit` has seen to it
        try:
            async with asyncio.timeout(_TLS_S):
                while not self._room.shakes.take():  # noqa: ASYNC110 -- it is time that is waited for
                    await asyncio.sleep(_TURN_S)
                client = await inspection.accept(self._client, str(self.host))
        except (ssl.SSLError, TimeoutError) as error:
            self._begin()
            self._trouble = f"TLS with the client failed: {said(error)}"
            return
        try:
            await self._http(client, tls=True)
        finally:
            client.close()

    async def _http(self, client: Stream, tls: bool) -> None:
        reached, self._reached = self._reached, None
        judged = self._judged
        assert judged is not None  # noqa: S101 -- nothing is carried unjudged
        mode = HttpMode(self._room, client, self._cgroup, tls=tls, place=(self.host, self.port))
        mode.grant(judged)
        if self._record is not None:  # told so far as a connection; from here on, request by request
            self._room.attempts.end(self._record, 0, 0)
            self._record = None
        try:
            self._mode = mode
            if reached is not None:
                mode.adopt(reached)
            await mode.run()
        finally:
            mode.close()

    # -- small things --------------------------------------------------------------------------------------------------

    async def _dialled(self) -> Wire:
        """Told as begun once it is there, or can't be; what is refused here was never begun."""
        if self._reached is None:
            try:
                self._reached = await reach(self._room, self.host, self.port)
            except OSError:
                self._unreached = True
                self._begin()
                raise
        self._begin()
        return self._reached.wire

    def _begin(self) -> None:
        if self._record is None:
            assert self._judged is not None  # noqa: S101 -- only what was allowed begins
            verdict = self._judged.verdict
            self._record = self._room.attempts.begin(
                "connection", show_host(self.host), verdict.why, port=self.port, rule=verdict.rule,
                cgroup=self._cgroup,
                address=None if self._reached is None or self._reached.address is None else str(self._reached.address),
            )  # fmt: skip

    def _refuse(self, verdict: Verdict, address: Address | None = None) -> None:
        where = None if address is None else str(address)
        if self._record is not None and not self._sent and not self._received:
            record, self._record = self._record, None
            why = {"rule": verdict.rule, "hint": verdict.hint, **({} if where is None else {"address": where})}
            self._room.attempts.deny(record, verdict.why, **why)
            return
        self._room.attempts.refused(
            "connection", show_host(self.host), verdict.why, port=self.port, rule=verdict.rule, hint=verdict.hint,
            address=where, cgroup=self._cgroup,
        )  # fmt: skip
        self._trouble = "refused"

    def _out(self, count: int) -> None:
        self._sent += count
        self._room.meter.add(count, 0)

    def _in(self, count: int) -> None:
        self._received += count
        self._room.meter.add(0, count)


async def _first_of(client: Wire, upstream: Wire) -> Wire:
    """Who has something to say first."""
    waits = {asyncio.ensure_future(one.readable()): one for one in (client, upstream)}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    ready = {waits[wait] for wait in done}
    return client if client in ready else upstream
