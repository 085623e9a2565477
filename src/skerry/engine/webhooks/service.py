"""`engine.webhooks`: sends deliveries, one at a time for each target, and tries failed ones again.

A delivery is sent at least once: a server that is killed between the response and the database sends it again, with
the same ID. The headers are those of the Standard Webhooks specification."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import random
import sqlite3
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from skerry._version import __version__
from skerry.engine.tasks import Tasks
from skerry.engine.webhooks.post import PostError, post
from skerry.engine.webhooks.queue import MAX_DEAD, MAX_DELAY_S, Target, WebhookQueue, encode_event, new_id
from skerry.errors import HostUnsupported, InvalidRequest, NotFound
from skerry.types import Event, WebhookDelivery, WebhookInfo, WebhookTest

log = logging.getLogger("skerry.engine")
GROWTH: Final = 3.0  # of the delay, from one attempt to the next
JITTER: Final = 0.2  # receivers that recover must not get all deliveries at the same moment
PAUSE_S: Final = 5.0  # after an error of this server itself
MAX_LISTED: Final = MAX_DEAD
MAX_SECRETS: Final = 4096  # bytes of a file
GONE: Final = 410
_PREFIX: Final = "whsec_"
_HINT: Final = 'one line with whsec_ and 24 to 64 random bytes in base64: echo "whsec_$(openssl rand -base64 32)"'


@dataclass
class _Counters:
    """Since the server started."""

    sent: int = 0
    failed: int = 0
    gone: bool = False
    last_error: str | None = None
    last_sent_at: float | None = None


@dataclass(frozen=True)
class _Outcome:
    status: int | None = None
    error: str | None = None
    retry_after: float = 0.0


class WebhookService:
    def __init__(self, queue: WebhookQueue, tasks: Tasks) -> None:
        self._queue, self._tasks = queue, tasks
        self._counters = {name: _Counters() for name in queue.targets}

    def start(self) -> None:
        """Send in the background."""
        for target in self._queue.targets.values():
            self._tasks.spawn(self._send_all(target))

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send_all(self, target: Target) -> None:
        while True:
            more = self._queue.more
            try:
                wait = await self._send_next(target)
            except sqlite3.Error as error:  # the disk is full; the delivery is sent again later
                log.error("failed to update a webhook's queue", extra={"webhook": target.name, "error": str(error)})
                await asyncio.sleep(PAUSE_S)
                continue
            if wait is None or wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await more.wait()

    async def _send_next(self, target: Target) -> float | None:
        """Send the next delivery if it is due. Return the seconds until there may be another; None: unknown."""
        found = self._queue.next(target.name)
        if found is None:
            return None
        delivery, wait = found
        counters = self._counters[target.name]
        if counters.gone:
            self._queue.bury(target.name, f"the receiver answered {GONE}")
            return None
        if wait > 0:
            return wait
        outcome = await _send(target, delivery.id, delivery.body.encode())
        if outcome.error is None:
            self._queue.sent(delivery)
            counters.sent, counters.last_sent_at = counters.sent + 1, time.time()
        else:
            self._note_failure(target, delivery, outcome, counters)
        return 0.0

    def _note_failure(self, target: Target, delivery: WebhookDelivery, outcome: _Outcome, counters: _Counters) -> None:
        error = outcome.error or ""
        counters.failed, counters.last_error = counters.failed + 1, error
        counters.gone = outcome.status == GONE
        dead = counters.gone or delivery.attempts + 1 >= target.max_attempts
        retry_in = None if dead else max(_delay(target, delivery.attempts), min(outcome.retry_after, MAX_DELAY_S))
        self._queue.failed(delivery, outcome.status, error, retry_in)
        extra = {"webhook": target.name, "delivery": delivery.id, "type": delivery.type, "error": error[:300]}
        log.warning("failed to send a webhook" + (", and gave up" if dead else ""), extra=extra)

    # -- operators ----------------------------------------------------------------------------------------------------

    def list(self) -> list[WebhookInfo]:
        counts = self._queue.counts()
        return [self._info(target, counts) for target in self._queue.targets.values()]

    def _info(self, target: Target, counts: dict[tuple[str, str], int]) -> WebhookInfo:
        known, name = self._counters[target.name], target.name
        return WebhookInfo(
            name=name, url=_without_query(target.url), events=target.events, waiting=counts.get((name, "waiting"), 0),
            dead=counts.get((name, "dead"), 0), sent=known.sent, failed=known.failed, gone=known.gone,
            last_error=known.last_error, last_sent_at=known.last_sent_at,
        )  # fmt: skip

    async def test(self, name: str) -> WebhookTest:
        """Send a test event now, without the queue."""
        target, delivery = self._target(name), new_id()
        event = Event(seq=0, at=time.time(), type="webhook.test")
        outcome = await _send(target, delivery, encode_event("", event))
        return WebhookTest(ok=outcome.error is None, id=delivery, status=outcome.status, error=outcome.error)

    def dead(self, name: str | None, limit: int) -> Sequence[WebhookDelivery]:
        return self._queue.dead(name, min(limit, MAX_LISTED))

    def retry(self, name: str, ids: Sequence[str]) -> int:
        """Send dead deliveries again, those with these IDs or all."""
        target = self._target(name)
        self._counters[target.name].gone = False
        return self._queue.retry(target.name, ids)

    def _target(self, name: str) -> Target:
        target = self._queue.targets.get(name)
        if target is None:
            raise NotFound(f"webhook {name[:80]!r} not found", hint="`skerry webhook ls` lists them")
        return target


async def _send(target: Target, delivery: str, body: bytes) -> _Outcome:
    moment = str(int(time.time()))
    headers = {"user-agent": f"skerry/{__version__}", "webhook-id": delivery, "webhook-timestamp": moment}
    try:
        if target.secret_file is not None:
            keys = await asyncio.to_thread(read_secrets, target.secret_file)
            headers["webhook-signature"] = " ".join(sign(key, delivery, moment, body) for key in keys)
        response = await post(target.url, body, headers, timeout_s=target.timeout_s, max_body=None)
    except PostError as error:
        return _Outcome(error=str(error))
    except (HostUnsupported, InvalidRequest) as error:
        return _Outcome(error=error.message)
    if 200 <= response.status < 300:
        return _Outcome(response.status)
    after = response.retry_after or ""
    seconds = float(after) if after.isascii() and after.isdecimal() and len(after) < 10 else 0.0
    return _Outcome(response.status, f"the receiver answered {response.status}", seconds)


def sign(key: bytes, delivery: str, moment: str, body: bytes) -> str:
    """Return the signature of a delivery: `v1,` and an HMAC-SHA256 in base64."""
    digest = hmac.digest(key, f"{delivery}.{moment}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


def read_secrets(path: str) -> list[bytes]:
    """Return the keys in a file. Raise HostUnsupported if it cannot be read, or other users can read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o007:
                raise HostUnsupported(f"{path}: not a file that only its owner can read", hint=f"chmod 600 {path}")
            lines = file.read(MAX_SECRETS + 1).decode("ascii").split()
    except (OSError, ValueError) as error:
        raise HostUnsupported(f"{path}: the secret of a webhook cannot be read: {error}", hint=_HINT) from error
    keys = [_key(line, path) for line in lines]
    if not keys:
        raise HostUnsupported(f"{path}: no secret", hint=_HINT)
    return keys


def _key(line: str, path: str) -> bytes:
    try:
        key = base64.b64decode(line.removeprefix(_PREFIX), validate=True) if line.startswith(_PREFIX) else b""
    except binascii.Error:
        key = b""
    if not 24 <= len(key) <= 64:
        raise HostUnsupported(f"{path}: not a secret of a webhook", hint=_HINT)
    return key


def _delay(target: Target, attempts: int) -> float:
    """Return the seconds before the next attempt, after so many earlier ones and this one."""
    delay = min(target.retry_delay_s * GROWTH ** min(attempts, 30), MAX_DELAY_S)
    return delay * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 -- not a secret


def _without_query(url: str) -> str:
    return urlsplit(url)._replace(query="").geturl()
