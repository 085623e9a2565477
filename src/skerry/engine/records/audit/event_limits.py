"""Rate limits of the records that programs inside cause: they cannot fill the disk. No I/O.

Each type of event of a sandbox has a limit of its own, and so has each subject that its caller names, such as a secret:
a flood of one hides no other. Events above a limit are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

EVENTS_PER_S: Final = 10.0  # in the long run
MAX_EVENTS: Final = 200  # at once
MAX_BUCKETS: Final = 10_000


class BucketKey(NamedTuple):
    """The events that share a limit."""

    owner: str
    sandbox: str
    type: str
    subject: str = ""


class Admission(NamedTuple):
    """An event that is recorded. `omitted`: events before it that were not. `limited`: the limit is reached now, so
    that later ones may be missing, even if a killed server never records their number."""

    omitted: int
    limited: bool


@dataclass
class _Bucket:
    tokens: float
    at: float
    omitted: int = 0

    def refill(self, now: float) -> None:
        self.tokens = min(MAX_EVENTS, self.tokens + max(0.0, now - self.at) * EVENTS_PER_S)
        self.at = max(self.at, now)


class EventLimiter:
    """`now`: the time of a monotonic clock."""

    def __init__(self) -> None:
        self._buckets: dict[BucketKey, _Bucket] = {}  # the one that was not used for the longest time first
        self._evicted: dict[BucketKey, int] = {}

    def admit(self, keys: Sequence[BucketKey], now: float) -> Admission | None:
        """Count an event against each of its limits. Return None if all of them are exceeded."""
        buckets = [self._bucket(key, now) for key in keys]
        open_ones = [bucket for bucket in buckets if bucket.tokens >= 1]
        if not open_ones:
            buckets[0].omitted += 1
            return None
        for bucket in open_ones:
            bucket.tokens -= 1
        omitted = sum(bucket.omitted for bucket in buckets)
        for bucket in buckets:
            bucket.omitted = 0
        return Admission(omitted, all(bucket.tokens < 1 for bucket in buckets))

    def omit(self, key: BucketKey, count: int) -> None:
        """Count events that could not be written."""
        self._buckets.setdefault(key, _Bucket(0.0, 0.0)).omitted += count

    def take_omitted(self) -> dict[BucketKey, int]:
        """Return the numbers of omitted events that no record has yet, and forget them."""
        found, self._evicted = self._evicted, {}
        for key, bucket in self._buckets.items():
            if bucket.omitted:
                found[key] = found.get(key, 0) + bucket.omitted
                bucket.omitted = 0
        return found

    def _bucket(self, key: BucketKey, now: float) -> _Bucket:
        bucket = self._buckets.pop(key, None) or _Bucket(MAX_EVENTS, now)
        bucket.refill(now)
        while len(self._buckets) >= MAX_BUCKETS:
            oldest = next(iter(self._buckets))
            if omitted := self._buckets.pop(oldest).omitted:
                self._evicted[oldest] = self._evicted.get(oldest, 0) + omitted
        self._buckets[key] = bucket
        return bucket
