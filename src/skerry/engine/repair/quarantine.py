"""Quarantine: data on disk that neither the database nor a record file describes. It is set aside for a retention time,
and never removed at start.

<state>/quarantine/<entry>.json   its kind, id, place and the time when it was found
<state>/quarantine/<entry>/       a ledger
<storage>/q/<entry>/              an upper, a volume or a snapshot

Leftovers of a crash are different: their names are in the table `known_data`, because a server writes a name there
before it creates data that has no row yet, and at each start the names of all data in use. They are removed at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from skerry.engine.database import Database
from skerry.engine.host import Host
from skerry.engine.images.layer_users import LayerUser
from skerry.errors import SkerryError
from skerry.storage import tree
from skerry.types import parse_span

log = logging.getLogger("skerry.engine")
CHECK_INTERVAL_S = 3600.0
Kind = Literal["upper", "volume", "snapshot", "ledger", "sandbox", "record", "row"]


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sandbox`: a running sandbox, which stays where it is. `record`, `row`: a record file or row that can't be read;
    `content` is the row. `layers`: the layers that the data stands on, if known."""

    version: Literal[1] = 1
    kind: Kind
    id: str
    found_at: float
    reason: str
    path: str | None = None
    layers: tuple[str, ...] | None = None
    content: str | None = None


def read_entries(directory: Path) -> dict[str, QuarantineEntry]:
    """Return the entries by name. Ignore entries of data that a killed server did not move, or an operator removed."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for file in sorted(directory.glob("*.json")):
            try:
                entry = msgspec.json.decode(file.read_bytes(), type=QuarantineEntry)
            except (OSError, msgspec.MsgspecError) as error:
                log.error("failed to read a quarantine entry", extra={"path": str(file), "error": str(error)})
                continue
            if entry.path is None or os.path.lexists(entry.path):
                found[file.name.removesuffix(".json")] = entry
    return found


class Quarantine(LayerUser):
    """Used from the event loop's thread, except for the methods that say otherwise."""

    def __init__(self, host: Host, database: Database) -> None:
        self._host, self._database = host, database
        self._directory = tree.private_directory(host.settings.state_dir / "quarantine")
        self._entries = read_entries(self._directory)

    # -- known data ---------------------------------------------------------------------------------------------------

    def expect(self, kind: Kind, *names: str) -> None:
        """Record that data with these names is about to exist without a row: after a crash it is a leftover."""
        with self._database.transaction() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO known_data VALUES (?, ?)", [(kind, name) for name in names])

    def set_known(self, kind: Kind, names: Iterable[str]) -> None:
        """Replace the known names of a kind by those of the data in use."""
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM known_data WHERE kind = ?", (kind,))
            cursor.executemany("INSERT INTO known_data VALUES (?, ?)", [(kind, name) for name in names])

    def leftovers(self, kind: Kind, names: Iterable[str]) -> set[str]:
        """Return the data among these names, which have no owner, that may be removed."""
        known = self._database.read("SELECT name FROM known_data WHERE kind = ?", kind)
        return {row["name"] for row in known} & set(names)

    # -- entries ------------------------------------------------------------------------------------------------------

    def ids(self) -> set[str]:
        """Return the ids of the sandboxes with data here."""
        return {entry.id for entry in self._entries.values() if entry.kind in ("upper", "ledger", "sandbox")}

    def running(self) -> set[str]:
        """Return the sandboxes without a row that were found running."""
        return {entry.id for entry in self._entries.values() if entry.kind == "sandbox"}

    def layers(self) -> set[str]:
        """Return the layers that the data stands on: every layer, if that is unknown for any of it."""
        stacks = [e.layers for e in self._entries.values() if e.kind in ("upper", "snapshot", "sandbox")]
        if any(layers is None for layers in stacks):
            return set(self._host.layers.digests())
        return {layer for layers in stacks for layer in layers or ()}

    async def take_upper(self, upper: str) -> None:
        await self._take("upper", upper, self._host.driver.quarantined(f"upper-{upper}"))

    async def take_snapshot(self, name: str) -> None:
        await self._take("snapshot", name, self._host.driver.quarantined(f"snapshot-{name}"))

    async def take_volume(self, volume: str) -> None:
        await self._take("volume", volume, self._host.driver.quarantined(f"volume-{volume}"))

    async def take_ledger(self, place: Path) -> None:
        await self._take("ledger", place.name, self._directory / f"ledger-{place.name}", place)

    def hold_sandbox(self, sandbox_id: str) -> None:
        """Leave a running sandbox without a row alone. It has no gateway, so nothing gets out of it."""
        if sandbox_id not in self.running():
            self._enter("sandbox", sandbox_id, None)
            log.error("a running sandbox has no record; it is left alone", extra={"sandbox": sandbox_id})

    async def _take(self, kind: Kind, name: str, target: Path, source: Path | None = None) -> None:
        """Enter it first: the next server continues where a killed one stopped."""
        target = _unused(target)
        self._enter(kind, name, target)
        try:
            if source is not None:
                os.rename(source, target)
            elif kind in ("upper", "volume"):
                await asyncio.to_thread(self._host.driver.quarantine_upper, name, target)
            else:
                await asyncio.to_thread(self._host.driver.quarantine_snapshot, name, target)
            log.error("moved unknown data into quarantine", extra={"kind": kind, "id": name, "path": str(target)})
        except (SkerryError, OSError) as error:
            log.error("failed to move data into quarantine", extra={"kind": kind, "id": name, "error": str(error)})

    def _enter(self, kind: Kind, name: str, path: Path | None) -> None:
        reason = "the database and the record files do not have it"
        entry = QuarantineEntry(
            kind=kind, id=name, found_at=time.time(), reason=reason, path=str(path) if path is not None else None
        )
        self._entries[path.name if path is not None else f"{kind}-{name}"] = entry
        write_entry(self._directory, entry)

    # -- removal ------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Remove entries after their retention time, and forget names of data that no longer exists."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            kept = parse_span(self._host.settings["storage.keep_quarantine"])
            await self.purge(older_than=time.time() - kept)
            there = await asyncio.to_thread(self._host.driver.snapshots)
            self.set_known("snapshot", self.leftovers("snapshot", there))

    async def purge(self, older_than: float) -> list[QuarantineEntry]:
        """Remove the data and entries found before that time, and return them."""
        gone = {name: entry for name, entry in self._entries.items() if entry.found_at < older_than}
        for name, entry in gone.items():
            try:
                await self._remove(entry)
            except (SkerryError, OSError) as error:
                log.error("failed to remove quarantined data", extra={"id": entry.id, "error": str(error)})
                continue
            self._directory.joinpath(f"{name}.json").unlink(missing_ok=True)
            del self._entries[name]
        return list(gone.values())

    async def _remove(self, entry: QuarantineEntry) -> None:
        if entry.kind == "sandbox":
            await self._host.runtime(None).clear(entry.id)
            await asyncio.to_thread(self._host.driver.delete, entry.id)
        elif entry.path is not None and entry.kind in ("upper", "volume", "snapshot"):
            await asyncio.to_thread(self._host.driver.remove_quarantined, Path(entry.path))
        elif entry.path is not None:
            await asyncio.to_thread(tree.remove, Path(entry.path))


def _unused(path: Path) -> Path:
    return _unused(path.with_name(f"{path.name}-again")) if os.path.lexists(path) else path


def write_entry(directory: Path, entry: QuarantineEntry) -> None:
    name = Path(entry.path).name if entry.path is not None else f"{entry.kind}-{entry.id}"
    tree.write_atomically(directory / f"{name}.json", msgspec.json.encode(entry))
