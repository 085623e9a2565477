"""`engine.audit`: records actions and events, makes them durable in groups, and lists, verifies and exports them.

An action's record is in the kernel before its effect begins, so it survives the death of the server. `Action.durable`
waits until it is on disk: one `fdatasync` in a thread serves all actions that wait at that time, and it runs while
their effects do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

from skerry.engine.records.audit.chain import RESULT
from skerry.engine.records.audit.event_limits import BucketKey, EventLimiter
from skerry.engine.records.audit.index import AuditFilter, AuditIndex
from skerry.engine.records.audit.keys import KeyStore
from skerry.engine.records.audit.segments import AuditLog, SealedLog
from skerry.engine.records.audit.verification import verify
from skerry.errors import AuditUnavailable, NotFound
from skerry.types import AuditKeys, AuditPage, AuditReport, Caller

log = logging.getLogger("skerry.engine")
SYNC_DELAY_S: Final = 0.05  # the longest time until a record that no caller waits for is on its way to the disk
PROBE_INTERVAL_S: Final = 5.0  # a probe of the disk follows the last sync after at least this time
SEAL_DELAY_S: Final = 60.0
MAX_UNSEALED: Final = 1000
MAX_RECORD: Final = 32 << 10
FREEING: Final = {"sandbox.delete", "snapshot.delete", "image.delete", "image.prune", "file.remove", "pool.drain"}
OMITTED_DELAY_S: Final = 10.0  # the longest time until the number of omitted events is recorded
PIECE: Final = 256 << 10
# Effects inside of a sandbox: they end with the host, and thousands of them happen in a second.
INSIDE: Final = frozenset(("process", "file", "code", "session", "context", "terminal", "port"))
Sync = Literal["boundary", "all"]


class Action:
    """An action that was recorded and may begin."""

    __slots__ = ("_audit", "_ended", "_last", "_result", "_waits", "seq")

    def __init__(self, audit: AuditService, seq: int, waits: bool) -> None:
        self._audit, self.seq, self._waits = audit, seq, waits
        self._ended, self._last = False, seq
        self._result: dict[str, Any] = {}

    async def durable(self) -> None:
        """Wait until the record, and the one of the result if the action has ended, is on disk, if actions of this kind
        wait (`INSIDE`, `audit.sync`). If that fails, raise AuditUnavailable: the effect has happened."""
        if self._waits:
            await self._audit.synced(self._last)

    def end(
        self, status: int, code: str | None = None, sandbox: str | None = None, params: dict[str, Any] | None = None
    ) -> None:
        """Record the result, once."""
        if not self._ended:
            self._ended = True
            self._result = {"type": RESULT, "of": self.seq, "sandbox": sandbox, "params": params}
            try:
                self._last = self._audit.append(status=status, code=code, **self._result)
            except AuditUnavailable as error:
                raise _not_durable(error.message) from error

    def replace_result(self, status: int, code: str) -> None:
        """Record that the caller of an action that has ended got this error in place of the recorded result. Its
        details stay: the effect has happened."""
        if self._ended:
            self._audit.append(status=status, code=code, **self._result)


class AuditExport:
    """All lines up to a seal. Retention keeps them until `aclose`."""

    def __init__(self, sealed: SealedLog, kept: contextlib.AsyncExitStack) -> None:
        self._sealed, self._kept = sealed, kept

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        end = self._sealed.end
        for segment in self._sealed.segments:
            left = end.offset if segment.first == end.segment else segment.path.stat().st_size
            with segment.path.open("rb") as file:
                while left > 0 and (data := await asyncio.to_thread(file.read, min(left, PIECE))):
                    left -= len(data)
                    yield data

    async def aclose(self) -> None:
        await self._kept.aclose()


class AuditService:
    """Used from the event loop's thread only; threads sync, index and verify."""

    def __init__(self, keys: KeyStore, records: AuditLog, index: AuditIndex, sync: Sync) -> None:
        self._keys, self._log, self._index, self._sync = keys, records, index, sync
        self._thread = ThreadPoolExecutor(1, "audit-sync")
        self._readers = ThreadPoolExecutor(1, "audit-read")
        self._synced = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._sync_timer: asyncio.TimerHandle | None = None
        self._seal_timer: asyncio.TimerHandle | None = None
        self._syncing = False
        self._closed = False
        self._failure: str | None = None  # of the last attempt to write to the disk
        self._synced_at = time.monotonic()
        self._limiter = EventLimiter()
        self._omitted_timer: asyncio.TimerHandle | None = None

    # -- recording ----------------------------------------------------------------------------------------------------

    def begin(
        self, name: str, *, owner: str, actor: str, source: str, sandbox: str | None, params: dict[str, Any] | None
    ) -> Action:
        """Record an action before its effect. Raise AuditUnavailable if the disk has no space for its record and
        its result: the action must not begin."""
        self._log.reserve(MAX_RECORD, freeing=name in FREEING)
        seq = self.append(type=name, owner=owner, actor=actor, source=source, sandbox=sandbox, params=params or None)
        inside = name.partition(".")[0] in INSIDE
        if inside and self._sync == "all":
            self._start_sync()  # while the effect happens: the response of a command waits for this record only
        return Action(self, seq, not inside or self._sync == "all")

    def event(
        self, name: str, *, owner: str, sandbox: str, params: dict[str, Any], subjects: Sequence[str] = ()
    ) -> None:
        """Record an event inside of a sandbox. Events above the rate limit are counted, and a later record has their
        number. `subjects`: names with a limit of their own, in place of that of the type; their number must be bounded.
        A failure is logged: the event has happened."""
        keys = [BucketKey(owner, sandbox, name, subject) for subject in subjects or ("",)]
        admitted = self._limiter.admit(keys, time.monotonic())
        if admitted is None:
            self._record_omitted_later()
            return
        if admitted.omitted:
            params = {**params, "omitted": admitted.omitted}
        if admitted.limited:
            params = {**params, "limited": True}
        if not self._append_event(name, owner, sandbox, params):
            self._limiter.omit(keys[0], admitted.omitted + 1)
            self._record_omitted_later()

    def _append_event(self, name: str, owner: str, sandbox: str, params: dict[str, Any]) -> bool:
        try:
            self._log.reserve(MAX_RECORD)
            self.append(type=name, owner=owner, actor="sandbox", sandbox=sandbox, params=params)
        except AuditUnavailable as error:
            log.error("failed to record an event", extra={"sandbox": sandbox, "type": name, "error": error.message})
            return False
        return True

    def _record_omitted_later(self) -> None:
        if self._omitted_timer is None and not self._closed:
            self._omitted_timer = asyncio.get_running_loop().call_later(OMITTED_DELAY_S, self._record_omitted)

    def _record_omitted(self) -> None:
        """Record the numbers of omitted events, for which no other event may follow."""
        if self._omitted_timer is not None:
            self._omitted_timer.cancel()
            self._omitted_timer = None
        for key, count in self._limiter.take_omitted().items():
            params: dict[str, Any] = {"omitted": count, **({"subject": key.subject} if key.subject else {})}
            if not self._append_event(key.type, key.owner, key.sandbox, params):
                self._limiter.omit(key, count)
                self._record_omitted_later()

    def last_event(self) -> int | None:
        """Return the number of the newest event with one in `params`; None if no recent record has one."""
        return self._log.last_event()

    def append(self, **fields: Any) -> int:
        """Write a record and return its number."""
        try:
            line, _ = self._log.append(**fields)
        except AuditUnavailable as error:
            self._failure = error.message
            raise
        if self._sync_timer is None and not self._syncing:
            self._sync_timer = asyncio.get_running_loop().call_later(SYNC_DELAY_S, self._start_sync)
        return line.seq

    # -- durability ---------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise AuditUnavailable before the next action if the disk has failed and fails again."""
        if self._failure is not None:
            try:
                await self._wait_for_sync(self._log.seq)
            except AuditUnavailable as error:
                raise AuditUnavailable(error.message, hint=_REFUSED_HINT) from error

    async def probe(self) -> bool:
        """Return whether the next action could be recorded. A disk that fails is noticed without any action."""
        if self._failure is not None or time.monotonic() - self._synced_at > PROBE_INTERVAL_S:
            with contextlib.suppress(AuditUnavailable):
                await self._wait_for_sync(self._log.seq)
        return self.is_writable

    @property
    def is_writable(self) -> bool:
        """Return whether the next action could be recorded, as far as that is known."""
        return self._failure is None and self._log.has_room(MAX_RECORD)

    async def synced(self, seq: int) -> None:
        """Wait until the record with that number is on disk."""
        if seq > self._synced:
            await self._wait_for_sync(seq)

    async def _wait_for_sync(self, seq: int) -> None:
        if self._closed:
            raise AuditUnavailable("the audit log is closed: the server is stopping")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((seq, waiter))
        self._start_sync()
        await waiter

    def _start_sync(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self._syncing or self._closed:
            return
        self._syncing = True
        target, loop = self._log.seq, asyncio.get_running_loop()
        try:
            descriptor = self._log.descriptor()
        except OSError:  # too many open files: a wait here is better than an error of actions that had their effect
            self._finish_sync(target, self._log.sync())
            return
        work = loop.run_in_executor(self._thread, _sync, descriptor)
        work.add_done_callback(lambda done: self._finish_sync(target, None if done.cancelled() else done.exception()))

    def _finish_sync(self, target: int, error: BaseException | None) -> None:
        self._syncing = False
        ready = [waiter for seq, waiter in self._waiters if seq <= target and not waiter.done()]
        self._waiters = [(seq, waiter) for seq, waiter in self._waiters if seq > target]
        if error is not None:
            self._failure = str(error)
            log.error("failed to sync the audit log", extra={"error": str(error)})
        else:
            self._failure, self._synced_at = None, time.monotonic()
            self._synced = max(self._synced, target)
            self._log.publish_checkpoint(target)
        for waiter in ready:
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(_not_durable(f"the audit log cannot be written: {error}"))
        if self._closed:
            return
        self._seal_if_due()
        if self._waiters:
            self._start_sync()
        elif self._log.seq > self._synced and error is None and self._sync_timer is None:
            self._sync_timer = asyncio.get_running_loop().call_later(SYNC_DELAY_S, self._start_sync)

    def _seal_if_due(self) -> None:
        if self._log.unsealed >= MAX_UNSEALED:
            self._seal()
        elif self._log.unsealed and self._seal_timer is None:
            self._seal_timer = asyncio.get_running_loop().call_later(SEAL_DELAY_S, self._seal)

    def _seal(self) -> None:
        """Seal the log, and start a new segment if it is time for one. The index follows in a thread."""
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal_timer = None
        if self._closed:
            return
        try:
            self._log.seal()
            self._log.maintain()
        except AuditUnavailable as error:
            log.error("failed to seal the audit log", extra={"error": error.message})
            return
        self._readers.submit(_update_index, self._index, tuple(self._log.segments))
        self._start_sync()

    async def close(self) -> None:
        self._record_omitted()
        self._closed = True
        for timer in (self._sync_timer, self._seal_timer, self._omitted_timer):
            if timer is not None:
                timer.cancel()
        for executor in (self._thread, self._readers):
            await asyncio.to_thread(executor.shutdown)
        self._log.close()
        self._index.close()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def list(self, caller: Caller, wanted: AuditFilter, before: int | None, limit: int) -> AuditPage:
        """Return records that the caller may see: an administrator all, others those of their owner."""
        if caller.scope != "admin":
            if wanted.owner not in (None, caller.owner):
                raise NotFound(f"owner {wanted.owner!r} not found")
            wanted = AuditFilter(caller.owner, wanted.sandbox, wanted.actor, wanted.type, wanted.since)
        segments = tuple(self._log.segments)

        def read() -> AuditPage:
            self._index.update(segments)
            return self._index.page(wanted, before, limit, segments)

        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def verify(self) -> AuditReport:
        """Seal the log and verify all of it."""
        async with self._sealed() as sealed:
            files = [segment.path for segment in sealed.segments]

            def work() -> AuditReport:
                return verify(files, self._keys.trusted(), [sealed.seal], end=sealed.end)

            return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def export(self) -> AuditExport:
        """Seal the log and return all lines up to the seal. Raise AuditUnavailable if the disk fails."""
        async with contextlib.AsyncExitStack() as kept:
            sealed = await kept.enter_async_context(self._sealed())
            return AuditExport(sealed, kept.pop_all())

    @contextlib.asynccontextmanager
    async def _sealed(self) -> AsyncIterator[SealedLog]:
        """Seal the log and yield it up to the seal, which is on disk. Records that follow during the sync are behind
        its end."""
        with self._log.sealed() as sealed:
            try:
                await self.synced(sealed.seal.seq)
            except AuditUnavailable as error:
                raise AuditUnavailable(error.message, hint=_SEAL_HINT) from error
            yield sealed

    def keys(self) -> AuditKeys:
        point = self._keys.checkpoint_text()
        return AuditKeys(keys=tuple(self._keys.list()), checkpoint=point)

    async def rotate_key(self) -> AuditKeys:
        """Sign with a new key from now on. The old public keys stay."""
        self._log.rotate_key()
        await self.synced(self._log.seq)
        return self.keys()


_REFUSED_HINT: Final = "nothing was done; check the disk of the state directory, then try again"
_SEAL_HINT: Final = "the log cannot be sealed now; check the disk of the state directory, then try again"


def _not_durable(message: str) -> AuditUnavailable:
    return AuditUnavailable(
        message,
        hint="the action had its effect, but the host may lose its record; check the disk of the state directory",
        details={"effect": True},
    )


def _sync(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _update_index(index: AuditIndex, segments: tuple[Any, ...]) -> None:
    try:
        index.update(segments)
    except AuditUnavailable as error:
        log.error("failed to index the audit log", extra={"error": error.message})
    except Exception:
        log.exception("failed to index the audit log")
