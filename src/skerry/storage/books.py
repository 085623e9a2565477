"""The accounts of the units that were captured: one small file each in the pool, so that the next server finds them.
What an account holds beyond that is measured again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from skerry.storage import subvolumes
from skerry.storage.allowance import Account
from skerry.storage.tree import private_directory


class Books:
    """<home>/c/<unit> holds "limit transaction". The directory belongs to no unit, so no unit's limit stops a note."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._groups = Path()
        self._accounts: dict[str, Account] = {}
        self._ids: dict[str, int] = {}
        self._noted: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def open(self, groups: Path) -> None:
        self._groups = groups
        private_directory(self._home / "c")
        alive = set(os.listdir(self._home / "u"))
        for unit in os.listdir(self._home / "c"):
            if unit not in alive:
                self._forget_file(unit)
            elif unit not in self._accounts:
                with contextlib.suppress(ValueError, OSError):
                    limit, captured = (self._home / "c" / unit).read_text().split()
                    self._accounts[unit] = Account(int(limit), int(captured))

    def billed(self, unit: Path) -> int:
        """As of the pool's last commit, and what is reserved since."""
        return sum(self._read(unit, "referenced", "rsv_data"))

    def used(self, unit: Path) -> int:
        """What is billed and the unit's own tree still holds, as far as is known without measuring."""
        billed = self.billed(unit)
        with self._lock:
            account = self._accounts.get(unit.name)
            if account is None:
                return billed
            account.look(billed)
            return max(billed - account.held, 0)

    def captured(self, unit: Path, snapshot: Path) -> None:
        with subvolumes.opened(snapshot) as fd:
            transaction, _ = subvolumes.born(fd)
        billed = self.billed(unit)
        with self._lock:
            if unit.name not in self._accounts:
                self._accounts[unit.name] = Account(self._read(unit, "max_referenced")[0])
            self._accounts[unit.name].capture(transaction, billed)
            self._apply(unit)

    def resize(self, unit: Path, limit: int) -> None:
        """The caller has measured."""
        with self._lock:
            if account := self._accounts.get(unit.name):
                account.limit, account.look_due = limit, 0.0
                self._apply(unit)
            else:
                subvolumes.set_limit(self._home, unit, limit)

    def reconcile(self) -> None:
        """Looks at every captured unit; measures those that come near to what they may have."""
        for name, account in list(self._accounts.items()):
            now, unit = time.monotonic(), self._home / "u" / name
            if now < account.look_due:
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                billed = self.billed(unit)
                with self._lock:
                    account.look(billed)
                    wants = account.wants_measure(now)
                if wants:
                    self.measure(unit, if_changed=True)

    def measure(self, unit: Path, *, if_changed: bool = False) -> int:
        """What the unit's own tree takes; its allowance is right afterwards."""
        account = self._accounts.get(unit.name)
        if account is None:
            return self.billed(unit)
        with subvolumes.opened(unit) as fd:
            committed = subvolumes.commit(fd)
            changed = subvolumes.changed(fd)
            referenced, reserved = self._read(unit, "referenced", "rsv_data")
            same = (changed, referenced + reserved, True) == (account.changed, account.seen, account.exact)
            if if_changed and same:
                account.unchanged(time.monotonic())
                return account.seen - account.held
            found = subvolumes.measure(fd, account.captured, committed, reserved)
        with self._lock:
            account.settle(found, referenced + reserved, time.monotonic())
            account.changed = changed
            self._apply(unit)
        return found.live

    def forget(self, unit: str) -> None:
        with self._lock:
            known = self._accounts.pop(unit, None)
            self._noted.pop(unit, None)
            self._ids.pop(unit, None)
        if known is not None:
            self._forget_file(unit)

    def _apply(self, unit: Path) -> None:
        account = self._accounts.get(unit.name)
        if account is None:  # deleted meanwhile
            return
        subvolumes.set_limit(self._home, unit, account.allowed)
        facts = (account.limit, account.captured)
        if self._noted.get(unit.name) == facts:
            return
        note = self._home / "c" / unit.name
        with contextlib.suppress(OSError):  # on a full disk it goes on without; the next capture writes it again
            temporary = note.with_name(f".{note.name}")
            temporary.write_text(f"{facts[0]} {facts[1]}")
            os.rename(temporary, note)
            self._noted[unit.name] = facts

    def _forget_file(self, unit: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._home / "c" / unit)

    def _read(self, unit: Path, *names: str) -> list[int]:
        if (group := self._ids.get(unit.name)) is None:
            with subvolumes.opened(unit) as fd:
                group = subvolumes.root_id(fd)
            if unit.name in self._accounts:
                self._ids[unit.name] = group
        return [int((self._groups / f"0_{group}" / name).read_text()) for name in names]
