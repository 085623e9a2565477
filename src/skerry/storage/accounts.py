"""Accounts of captured uppers: one small file each in the pool, so that the next server finds them. All other values of
an account are measured again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.storage import subvolumes
from skerry.storage.subvolumes import Measure
from skerry.storage.tree import private_directory

MOUNT_SPACE = 16 << 20  # more than a mount of a full upper reserves


class UpperAccounts:
    """<home>/c/<upper> holds "limit transaction". The directory is outside all uppers, so no upper's limit blocks a
    write."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._groups = Path()
        self._accounts: dict[str, UpperAccount] = {}
        self._ids: dict[str, int] = {}
        self._noted: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def open(self, groups: Path) -> None:
        self._groups = groups
        private_directory(self._home / "c")
        alive = set(os.listdir(self._home / "u"))
        for upper in os.listdir(self._home / "c"):
            if upper not in alive:
                self._forget_file(upper)
            elif upper not in self._accounts:
                with contextlib.suppress(ValueError, OSError):
                    limit, captured = (self._home / "c" / upper).read_text().split()
                    self._accounts[upper] = UpperAccount(int(limit), int(captured))

    def billed(self, upper: Path) -> int:
        """Return the bytes billed at the pool's last commit, plus later reservations."""
        return sum(self._read(upper, "referenced", "rsv_data"))

    def used(self, upper: Path) -> int:
        """Return the billed bytes that the upper's own tree still holds, as far as known without measuring."""
        billed = self.billed(upper)
        with self._lock:
            account = self._accounts.get(upper.name)
            if account is None:
                return billed
            account.look(billed)
            return max(billed - account.held, 0)

    def captured(self, upper: Path, snapshot: Path) -> None:
        with subvolumes.opened(snapshot) as fd:
            transaction, _ = subvolumes.born(fd)
        billed = self.billed(upper)
        with self._lock:
            if upper.name not in self._accounts:
                self._accounts[upper.name] = UpperAccount(self._read(upper, "max_referenced")[0])
            self._accounts[upper.name].capture(transaction, billed)
            self._apply(upper)

    def resize(self, upper: Path, limit: int) -> None:
        """Set a new limit; the caller has measured."""
        with self._lock:
            if account := self._accounts.get(upper.name):
                account.limit, account.look_due = limit, 0.0
                self._apply(upper)
            else:
                subvolumes.set_limit(self._home, upper, limit)

    @contextlib.contextmanager
    def extended(self, upper: Path) -> Iterator[None]:
        """Extend the limit of a full upper for a moment. A crash in between leaves it a few MiB larger, until the next
        capture or resize."""
        allowed = self._read(upper, "max_referenced")[0]
        if self.billed(upper) + MOUNT_SPACE <= allowed:
            yield
            return
        subvolumes.set_limit(self._home, upper, allowed + MOUNT_SPACE)
        try:
            yield
        finally:
            with self._lock:
                account = self._accounts.get(upper.name)
                subvolumes.set_limit(self._home, upper, account.allowed if account is not None else allowed)

    def reconcile(self) -> None:
        """Check every captured upper; measure those that come near their allowance."""
        for name, account in list(self._accounts.items()):
            now, upper = time.monotonic(), self._home / "u" / name
            if now < account.look_due:
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                billed = self.billed(upper)
                with self._lock:
                    account.look(billed)
                    wants = account.wants_measure(now)
                if wants:
                    self.measure(upper, if_changed=True)

    def measure(self, upper: Path, *, if_changed: bool = False) -> int:
        """Return the bytes of the upper's own tree, and correct its allowance."""
        account = self._accounts.get(upper.name)
        if account is None:
            return self.billed(upper)
        with subvolumes.opened(upper) as fd:
            committed = subvolumes.commit(fd)
            changed = subvolumes.changed(fd)
            referenced, reserved = self._read(upper, "referenced", "rsv_data")
            same = (changed, referenced + reserved, True) == (account.changed, account.seen, account.exact)
            if if_changed and same:
                account.unchanged(time.monotonic())
                return account.seen - account.held
            found = subvolumes.measure(fd, account.captured, committed, reserved)
        with self._lock:
            account.settle(found, referenced + reserved, time.monotonic())
            account.changed = changed
            self._apply(upper)
        return found.live

    def forget(self, upper: str) -> None:
        with self._lock:
            known = self._accounts.pop(upper, None)
            self._noted.pop(upper, None)
            self._ids.pop(upper, None)
        if known is not None:
            self._forget_file(upper)

    def _apply(self, upper: Path) -> None:
        account = self._accounts.get(upper.name)
        if account is None:  # deleted meanwhile
            return
        subvolumes.set_limit(self._home, upper, account.allowed)
        facts = (account.limit, account.captured)
        if self._noted.get(upper.name) == facts:
            return
        note = self._home / "c" / upper.name
        # on a full disk, continue without the file; the next capture writes it again
        with contextlib.suppress(OSError):
            temporary = note.with_name(f".{note.name}")
            temporary.write_text(f"{facts[0]} {facts[1]}")
            os.rename(temporary, note)
            self._noted[upper.name] = facts

    def _forget_file(self, upper: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._home / "c" / upper)

    def _read(self, upper: Path, *names: str) -> list[int]:
        if (group := self._ids.get(upper.name)) is None:
            with subvolumes.opened(upper) as fd:
                group = subvolumes.root_id(fd)
            if upper.name in self._accounts:
                self._ids[upper.name] = group
        return [_number(f"{self._groups}/0_{group}/{name}") for name in names]


def _number(path: str) -> int:
    """Read a number of the kernel. Called for each failed command: without the objects of pathlib and io."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 64))
    finally:
        os.close(fd)


# The allowance: bytes that an upper may be billed beyond its limit, because snapshots hold some of them.
#
# btrfs bills an extent forever to the subvolume that wrote it, even when that subvolume has deleted it and only a
# snapshot or a fork still holds it. So a captured upper gets an allowance:
#
#     allowed = limit + held + min(shared, STEP)
#
#     held     billed to the upper, but no longer in its tree: measured (`subvolumes.measure`), exact
#     shared   in its tree and in a snapshot: becomes held when the upper deletes it. Granted in advance, one step at
#              a time, so that deleting and writing again works at once, without waiting for a measurement
#
# An upper that uses its advance is measured. If its tree has reached the limit, the advance ends. So a tree exceeds its
# limit by at most one step, and only briefly; bytes that only snapshots hold never count.

STEP = 512 << 20
_AGAIN_S, _BLOCKED_AGAIN_S = 0.5, 2.0
_FASTEST, _MAX_DELAY_S = 1 << 30, 10.0  # bytes per second that a disk can take: an upper far from its limit can wait
_MEASURE_RATIO = 20  # a measurement may take a twentieth of the time


@dataclass
class UpperAccount:
    """The state of one captured upper. `captured` is the transaction of its last capture."""

    limit: int
    captured: int = 0
    held: int = 0
    shared: int = 0
    most: int | None = None  # upper bound of `held`: billed at the last capture; None: unknown since the server started
    seen: int = 0
    exact: bool = False
    blocked: bool = False
    changed: int = 0  # the last transaction that changed it, when it was measured
    due: float = 0.0
    look_due: float = 0.0

    @property
    def firm(self) -> int:
        """Return the billed bytes up to which a tree cannot exceed its limit."""
        return self.limit + self.held

    @property
    def allowed(self) -> int:
        return self.firm + min(self.shared, max(STEP, self.limit >> 3))

    def capture(self, transaction: int, billed: int) -> None:
        """Record a capture: everything in its tree is now in a snapshot too."""
        self.look(billed)
        self.captured, self.most = transaction, billed
        self.shared = 0 if self.blocked else min(max(billed - self.held, 0), self.limit)

    def look(self, billed: int) -> None:
        """Adjust to the billed bytes. If they fell, a dropped snapshot may have freed held bytes."""
        if self.most is None:
            self.most = billed
        if billed < self.seen:
            self.held = max(self.held - (self.seen - billed), 0)
            self.exact = False
        self.seen = billed

    def wants_measure(self, now: float) -> bool:
        margin = min(max(self.limit >> 4, 16 << 20), self.limit >> 2)
        far = self.firm - margin - self.seen
        self.look_due = now + min(max(far, 0) / _FASTEST, _MAX_DELAY_S)
        if now < self.due or far >= 0:
            return False
        return self.blocked or not self.exact or self.seen > self.firm

    def unchanged(self, now: float) -> None:
        self.due = now + _BLOCKED_AGAIN_S

    def settle(self, found: Measure, billed: int, now: float) -> None:
        self.seen = billed
        self.held = max(billed - found.live - found.young, 0)
        if self.most is not None:  # data deleted while its tree is read looks as if a snapshot held it
            self.held = min(self.held, self.most + (self.limit >> 4))
        self.blocked = found.live >= self.limit
        self.shared = 0 if self.blocked else found.shared + found.young
        self.exact = found.young == 0
        self.due = now + max(_BLOCKED_AGAIN_S if self.blocked else _AGAIN_S, found.seconds * _MEASURE_RATIO)
