"""The sandboxes that this server holds: finding, locking, listing and counting them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress

from skerry.config import Settings
from skerry.engine.sandboxes.record import SandboxTable
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import NotFound, QuotaExceeded
from skerry.types import Caller, SandboxInfo


class SandboxRegistry:
    """Every sandbox with an owner, by id. Pooled sandboxes are not here: the pool holds them."""

    def __init__(self, settings: Settings, table: SandboxTable) -> None:
        self.table = table
        self._settings = settings
        self._sandboxes: dict[str, Sandbox] = {}

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, caller: Caller, ref: str) -> Sandbox:
        """Return the caller's sandbox with that id or name. An administrator also finds others by id."""
        sandbox = self._sandboxes.get(ref)
        if sandbox is None or sandbox.record.state == "deleting" or not sandbox.record.is_seen_by(caller):
            record = self.table.find(caller, ref)
            sandbox = self._sandboxes.get(record.id) if record is not None else None
        if sandbox is None:
            raise NotFound(f"sandbox {ref!r} not found", hint="`skerry ls` lists yours", details={"sandbox": ref})
        return sandbox

    def id_of(self, caller: Caller, ref: str) -> str:
        """Return the ID of the caller's sandbox with that name; else the text, such as a deleted sandbox's ID."""
        with suppress(NotFound):
            return self.find(caller, ref).record.id
        return ref

    def get(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox with that id, of any owner."""
        return self._sandboxes.get(sandbox_id)

    def list(self, caller: Caller, labels: dict[str, str], state: str | None) -> builtins.list[SandboxInfo]:
        """List the caller's sandboxes, oldest first; an administrator's list has everyone's."""
        found = []
        for sandbox in self._sandboxes.values():
            info = sandbox.record.info()
            if sandbox.record.state == "deleting" or not sandbox.record.is_seen_by(caller):
                continue
            if labels.items() <= info.labels.items() and state in (None, info.state):
                found.append(info)
        return sorted(found, key=lambda info: info.created_at)

    def ids(self) -> set[str]:
        return set(self._sandboxes)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._sandboxes.values())

    def __len__(self) -> int:
        return len(self._sandboxes)

    @asynccontextmanager
    async def locked(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Hold a sandbox's lock. Raise NotFound if it was deleted before the lock was ours."""
        async with sandbox.lock:
            if sandbox.record.state == "deleting":
                raise NotFound(f"sandbox {sandbox.record.id!r} not found", details={"sandbox": sandbox.record.id})
            yield

    # -- membership ---------------------------------------------------------------------------------------------------

    def add(self, sandboxes: Iterable[Sandbox]) -> None:
        self._sandboxes.update((sandbox.record.id, sandbox) for sandbox in sandboxes)

    def remove(self, sandbox_id: str) -> None:
        del self._sandboxes[sandbox_id]

    # -- counting -----------------------------------------------------------------------------------------------------

    @property
    def live_count(self) -> int:
        """Return how many sandboxes take up the host."""
        return sum(sandbox.counts_as_live for sandbox in self._sandboxes.values())

    @property
    def is_starting(self) -> bool:
        """Return whether any sandbox is being created or started."""
        return any(sandbox.starting or sandbox.record.state == "creating" for sandbox in self._sandboxes.values())

    def check_capacity(self, owner: str, more: int = 1) -> None:
        """Raise QuotaExceeded if the operator's maxima do not allow that many more live sandboxes."""
        owners = [sandbox.record.owner for sandbox in self._sandboxes.values() if sandbox.counts_as_live]
        for count, name in ((len(owners), "max.sandboxes"), (owners.count(owner), "max.sandboxes_per_owner")):
            if count + more > self._settings[name]:
                raise QuotaExceeded(
                    f"{count} sandboxes are live, and {name} allows {self._settings[name]}",
                    hint="delete some (`skerry ls`, `skerry rm`), or have the operator raise it",
                    details={"maximum": self._settings[name], "setting": name},
                )
