"""What a unit may be billed beyond its limit, since snapshots hold some of it.

btrfs bills an extent for ever to the subvolume that wrote it: also when that one has deleted it, and only a snapshot or
a fork still holds it. So a unit that was captured gets an allowance:

    allowed = limit + held + min(shared, STEP)

    held     billed to the unit, but no longer in its tree: measured (`subvolumes.measure`), exact
    shared   in its tree, and in a snapshot: what becomes held when the unit deletes it. Granted ahead, a step at a
             time, so that deleting and writing again works at once; nobody has to wait for a measurement

A unit that uses what was granted ahead is measured. If its tree has reached the limit, the grant ends. So a tree never
exceeds its limit by more than a step, and by that for a moment only; what only snapshots hold never counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.storage.subvolumes import Measure

STEP = 512 << 20
_AGAIN_S, _BLOCKED_AGAIN_S = 0.5, 2.0
_FASTEST, _LONGEST_S = 1 << 30, 10.0  # bytes a second that a disk can take: one that has far to go can wait
_PATIENCE = 20  # a measurement may take a twentieth of the time


@dataclass
class Account:
    """What is known of one captured unit. `captured` is the transaction of its last capture."""

    limit: int
    captured: int = 0
    held: int = 0
    shared: int = 0
    most: int | None = None  # held can't be more than was billed at the last capture; None: not known since a start
    seen: int = 0
    exact: bool = False
    blocked: bool = False
    changed: int = 0  # the last transaction that changed it, when it was measured
    due: float = 0.0
    look_due: float = 0.0

    @property
    def firm(self) -> int:
        """Up to here no tree can be beyond its limit."""
        return self.limit + self.held

    @property
    def allowed(self) -> int:
        return self.firm + min(self.shared, max(STEP, self.limit >> 3))

    def capture(self, transaction: int, billed: int) -> None:
        """All that is in its tree now is in a snapshot too."""
        self.look(billed)
        self.captured, self.most = transaction, billed
        self.shared = 0 if self.blocked else min(max(billed - self.held, 0), self.limit)

    def look(self, billed: int) -> None:
        """What is billed no more may have been held: a snapshot was dropped."""
        if self.most is None:
            self.most = billed
        if billed < self.seen:
            self.held = max(self.held - (self.seen - billed), 0)
            self.exact = False
        self.seen = billed

    def wants_measure(self, now: float) -> bool:
        margin = min(max(self.limit >> 4, 16 << 20), self.limit >> 2)
        far = self.firm - margin - self.seen
        self.look_due = now + min(max(far, 0) / _FASTEST, _LONGEST_S)
        if now < self.due or far >= 0:
            return False
        return self.blocked or not self.exact or self.seen > self.firm

    def unchanged(self, now: float) -> None:
        self.due = now + _BLOCKED_AGAIN_S

    def settle(self, found: Measure, billed: int, now: float) -> None:
        self.seen = billed
        self.held = max(billed - found.live - found.young, 0)
        if self.most is not None:  # what is deleted while its tree is being read looks as if a snapshot held it
            self.held = min(self.held, self.most + (self.limit >> 4))
        self.blocked = found.live >= self.limit
        self.shared = 0 if self.blocked else found.shared + found.young
        self.exact = found.young == 0
        self.due = now + max(_BLOCKED_AGAIN_S if self.blocked else _AGAIN_S, found.seconds * _PATIENCE)
