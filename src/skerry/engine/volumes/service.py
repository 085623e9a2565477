"""Volumes as the API sees them, and their rows in the database.

The data of a volume appears before its row and disappears after it. The name of the data is recorded first: the next
server removes data without a row that this database has made, and sets other data aside (`repair.quarantine`)."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from skerry.config import Settings
from skerry.engine.concurrency import OwnerQuota
from skerry.engine.database import Database
from skerry.engine.faults import fault_point
from skerry.engine.hooks import Hook
from skerry.engine.host import Host
from skerry.engine.images.archives import ArchiveExport, disconnected, start_export, through_pipe
from skerry.engine.repair.quarantine import Quarantine
from skerry.engine.sandboxes.record import SandboxRecord
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.engine.volumes.buckets import find_endpoint, find_program
from skerry.errors import Conflict, HostUnsupported, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.images.archive.unpack import UnpackLimits, unpack
from skerry.runtimes import DEFAULT_USER
from skerry.types import (
    BucketForm,
    Caller,
    ImportedVolume,
    VolumeInfo,
    VolumeMount,
    VolumeRequest,
    format_size,
    parse_size,
    parse_span,
    parse_volumes,
    readable_size,
)

log = logging.getLogger("skerry.engine")
Runner = Callable[[Callable[[], None]], Awaitable[None]]
MAX_HEADERS = 1 << 30  # bytes of an archive beyond the files in it
_decode = msgspec.json.Decoder(VolumeInfo).decode


class VolumeTable:
    """Used from the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, info: VolumeInfo) -> None:
        row = (info.id, info.owner, info.name, info.created_at, msgspec.json.encode(info))
        try:
            with self._database.transaction(durable=True) as cursor:
                cursor.execute("INSERT INTO volumes VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError as error:
            raise _taken(info.name) from error

    def remove(self, info: VolumeInfo) -> None:
        with self._database.transaction(durable=True) as cursor:
            cursor.execute("DELETE FROM volumes WHERE id = ?", (info.id,))

    def find(self, caller: Caller, ref: str) -> VolumeInfo | None:
        """By ID or name, among the caller's own; an administrator also finds another's by its ID."""
        found = self._read("id = ? OR (name = ? AND owner = ?)", ref, ref, caller.owner)
        mine = [info for info in found if info.owner == caller.owner or caller.scope == "admin"]
        return mine[0] if mine else None

    def list(self, owner: str | None = None) -> builtins.list[VolumeInfo]:
        return self._read("true") if owner is None else self._read("owner = ?", owner)

    def _read(self, condition: str, *values: object) -> builtins.list[VolumeInfo]:
        query = f"SELECT body FROM volumes WHERE {condition} ORDER BY created_at, id"  # noqa: S608 - no foreign text
        return [_decode(row["body"]) for row in self._database.read(query, *values)]


class VolumeService(Hook):
    """`engine.volumes`."""

    def __init__(
        self,
        settings: Settings,
        table: VolumeTable,
        host: Host,
        quarantine: Quarantine,
        registry: SandboxRegistry,
        slots: OwnerQuota,
        tasks: Tasks,
    ) -> None:
        self._settings, self._table, self._driver = settings, table, host.driver
        self._quarantine, self._registry, self._slots, self._tasks = quarantine, registry, slots, tasks
        self._making: Counter[str] = Counter()  # by owner
        self._read: Counter[str] = Counter()  # by volume: copies under way

    async def recover(self) -> None:
        """Remove what a killed server left half made or half deleted; set unknown data aside."""
        there = await asyncio.to_thread(self._driver.volumes)
        known = {info.id for info in self._table.list()}
        leftovers = self._quarantine.leftovers("volume", there - known)
        for volume in there - known - leftovers:
            await self._quarantine.take_volume(volume)
        for volume in leftovers:
            await self._delete_data(volume)
        self._quarantine.set_known("volume", there & known)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, caller: Caller, ref: str) -> VolumeInfo:
        return (await self._measured([self._find(caller, ref)], caller))[0]

    async def list(self, caller: Caller) -> builtins.list[VolumeInfo]:
        """Return the caller's volumes, oldest first; an administrator's list has those of all owners."""
        return await self._measured(self._table.list(None if caller.scope == "admin" else caller.owner), caller)

    def _find(self, caller: Caller, ref: str) -> VolumeInfo:
        found = self._table.find(caller, ref)
        if found is None:
            raise NotFound(
                f"volume {ref[:80]!r} not found", hint="`skerry volume ls` lists yours", details={"volume": ref}
            )
        return found

    async def _measured(self, infos: builtins.list[VolumeInfo], caller: Caller) -> builtins.list[VolumeInfo]:
        used = await asyncio.to_thread(lambda: [self._used(info.id) for info in infos])
        return [
            replace(info, used=bytes_, sandboxes=tuple(self._users(info, caller)))
            for info, bytes_ in zip(infos, used, strict=True)
        ]

    def _used(self, volume: str) -> int | None:
        try:
            return self._driver.usage(volume)
        except (SkerryError, OSError) as error:
            log.warning("failed to measure a volume", extra={"volume": volume, "error": str(error)})
            return None

    # -- mounting -----------------------------------------------------------------------------------------------------

    def resolve(self, caller: Caller, volumes: dict[str, str], secrets: Collection[str]) -> tuple[VolumeMount, ...]:
        """Return the mounts of a new sandbox of the caller. From the moment that it is in the registry, its volumes
        cannot be deleted: the caller does not wait in between. `secrets`: the names of the sandbox's secrets."""
        return tuple(self._resolve(caller, mount, secrets) for mount in parse_volumes(volumes))

    def _resolve(self, caller: Caller, mount: VolumeMount, secrets: Collection[str]) -> VolumeMount:
        if mount.bucket is not None:
            return self._resolve_bucket(mount, mount.bucket, secrets)
        if mount.volume is None:
            form = self._settings["mounts"].get(mount.name)
            if form is None:
                raise NotFound(
                    f"directory @{mount.name} not found", hint="the operator lists directories: [mounts.NAME] path = …"
                )
            return replace(mount, read_only=mount.read_only or form.read_only)
        info = self._table.find(caller, mount.name)
        if info is None:
            raise NotFound(
                f"volume {mount.name!r} not found", hint=f"`skerry volume create {mount.name}` creates it",
                details={"volume": mount.name},
            )  # fmt: skip
        read_only = mount.read_only or info.kind == "snapshot"
        if info.owner != caller.owner and not read_only:
            raise Conflict(
                f"volume {info.id} belongs to another owner, and only its own sandboxes can write to it",
                hint=f"mount it read-only: {info.id}:ro",
            )
        name = info.name if info.owner == caller.owner else info.id
        return replace(mount, name=name, volume=info.id, read_only=read_only)

    def _resolve_bucket(self, mount: VolumeMount, bucket: BucketForm, secrets: Collection[str]) -> VolumeMount:
        find_endpoint(self._settings["buckets"], bucket)
        find_program()
        if bucket.secret is not None and bucket.secret not in secrets:
            raise InvalidRequest(
                f"volumes: the sandbox has no secret {bucket.secret}, which {mount.name} names",
                hint=f'its value is KEY_ID:KEY, like secrets=[Secret("{bucket.secret}", hosts=[…], value=…)]',
            )
        return mount

    def _users(self, info: VolumeInfo, caller: Caller, *, writing: bool = False) -> Iterator[str]:
        """Yield the sandboxes that mount a volume; with `writing`, only those that could write to it now."""
        for sandbox in self._registry:
            mounted = [one for one in sandbox.record.spec.volumes if one.volume == info.id]
            if writing and (not sandbox.counts_as_live or all(one.read_only for one in mounted)):
                continue
            if mounted:
                yield _shown(sandbox.record, caller)

    def before_start(self, record: SandboxRecord) -> None:
        """Refuse the start of a sandbox that could write to a volume during a copy of its files."""
        if self._driver.clones_live:
            return
        for mount in record.spec.volumes:
            if mount.volume in self._read and not mount.read_only:
                raise Conflict(
                    f"volume {mount.name} is being copied",
                    hint=f"try again after the copy, or mount it read-only: {mount.name}:ro",
                )

    # -- making and deleting ------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: VolumeRequest) -> VolumeInfo:
        info = self._new(caller, request.name, request.size)
        return await self._tasks.shield(self._make(info, lambda: self._make_empty(info)))

    async def snapshot(self, caller: Caller, ref: str, name: str) -> VolumeInfo:
        """Make a copy that never changes, of the current state of a volume."""
        return await self._copy(caller, ref, name, None, "snapshot")

    async def clone(self, caller: Caller, ref: str, request: VolumeRequest) -> VolumeInfo:
        """Make a volume that starts with the current files of another one."""
        return await self._copy(caller, ref, request.name, request.size, "volume")

    async def delete(self, caller: Caller, ref: str) -> None:
        info = self._find(caller, ref)
        users = [f"sandbox {name}" for name in self._users(info, caller)]
        if users or self._read[info.id]:
            shown = ", ".join(users[:3]) + " and others" * (len(users) > 3) or "a copy that is being made"
            raise Conflict(
                f"volume {info.name} is in use by {shown}", hint="delete those first (`skerry rm`)",
                details={"volume": info.id, "users": users[:100]},
            )  # fmt: skip
        await self._tasks.shield(self._delete(info))

    async def _delete(self, info: VolumeInfo) -> None:
        """Remove the record before the first await, so that no sandbox can mount the volume any more; then the data."""
        self._table.remove(info)
        fault_point("delete_volume.record")
        await self._delete_data(info.id)
        fault_point("delete_volume.data")

    async def _delete_data(self, volume: str) -> None:
        try:
            await asyncio.to_thread(self._driver.delete, volume)
        except (SkerryError, OSError) as error:  # the next server repeats it
            log.error("failed to remove the files of a volume", extra={"volume": volume, "error": str(error)})

    def _new(
        self,
        caller: Caller,
        name: str,
        size: str | int | None,
        kind: Literal["volume", "snapshot"] = "volume",
        source: str | None = None,
    ) -> VolumeInfo:
        """Return the volume to be, checked against the operator's maxima."""
        if not self._driver.enforces_limit:
            raise HostUnsupported(
                f"this host's storage driver ({self._driver.name}) can't hold a volume to its size",
                hint="`skerry doctor` lists the missing parts",
            )
        number = parse_size(self._settings["volumes.size"] if size is None else size)
        most = min(parse_size(self._settings["max.volume_size"] or self._driver.capacity), self._driver.capacity)
        if number > most:
            raise QuotaExceeded(
                f"size: {readable_size(number)} is more than this server allows ({readable_size(most)})",
                hint=f"ask for at most {readable_size(most)}", details={"maximum": most},
            )  # fmt: skip
        mine = self._table.list(caller.owner)
        if any(info.name == name for info in mine):
            raise _taken(name)
        if len(mine) + self._making[caller.owner] >= self._settings["volumes.per_owner"]:
            raise QuotaExceeded(
                f"you have {len(mine)} volumes, and volumes.per_owner allows {self._settings['volumes.per_owner']}",
                hint="delete some (`skerry volume ls`, `skerry volume rm`), or have the operator raise it",
            )
        return VolumeInfo(
            id=new_id("vl-"), name=name, size=format_size(number), created_at=time.time(), owner=caller.owner,
            kind=kind, source=source,
        )  # fmt: skip

    async def _make_slowly(self, info: VolumeInfo, fill: Callable[[], None]) -> VolumeInfo:
        """Make the data in a thread for large copies: starts of sandboxes do not wait for it."""
        with self._slots.taken(info.owner):
            return await self._make(info, fill, self._slots.run)

    async def _make(self, info: VolumeInfo, fill: Callable[[], None], run: Runner = asyncio.to_thread) -> VolumeInfo:
        """Make the data in a thread, then the row."""
        self._making[info.owner] += 1
        try:
            self._quarantine.expect("volume", info.id)
            await run(fill)
            fault_point("volume.data")
            self._table.insert(info)
            fault_point("volume.record")
        except BaseException:
            await self._delete_data(info.id)
            raise
        finally:
            self._making[info.owner] -= 1
        log.info("created a volume", extra={"volume": info.id, "owner": info.owner})
        return replace(info, used=await asyncio.to_thread(self._used, info.id))

    def _make_empty(self, info: VolumeInfo) -> None:
        """Its files belong to the default user of sandboxes."""
        self._driver.create(info.id, parse_size(info.size))
        os.chown(self._files(info.id), DEFAULT_USER, DEFAULT_USER)

    def _files(self, volume: str) -> Path:
        return self._driver.path(volume) / "upper"

    async def _copy(
        self, caller: Caller, ref: str, name: str, size: str | int | None, kind: Literal["volume", "snapshot"]
    ) -> VolumeInfo:
        source = self._find(caller, ref)
        info = self._new(caller, name, source.size if size is None else size, kind, source.id)
        return await self._tasks.shield(self._clone(source, info, caller))

    async def _clone(self, source: VolumeInfo, info: VolumeInfo, caller: Caller) -> VolumeInfo:
        def fill() -> None:
            self._driver.clone(source.id, info.id, parse_size(info.size))

        self._check_still(source, caller)
        with self._reading(source):  # no await before: a sandbox must not start in between
            make = self._make if self._driver.clones_live else self._make_slowly
            return await make(info, fill)

    @contextmanager
    def _reading(self, info: VolumeInfo) -> Iterator[None]:
        """Keep a volume from being deleted, and with most drivers from being changed, while it is being copied."""
        self._read[info.id] += 1
        try:
            yield
        finally:
            self._read[info.id] -= 1
            self._read = +self._read

    def _check_still(self, info: VolumeInfo, caller: Caller) -> None:
        """Most drivers copy file by file: what a sandbox writes meanwhile would be copied half."""
        if not self._driver.clones_live and (users := list(self._users(info, caller, writing=True))):
            raise Conflict(
                f"volume {info.name} can't be copied while sandbox {users[0]} can write to it",
                hint=f"stop the sandbox first: this host's storage driver is {self._driver.name}; btrfs needs no stop",
            )

    # -- archives -----------------------------------------------------------------------------------------------------

    async def export(self, caller: Caller, ref: str) -> ArchiveExport:
        """Return the current files of a volume as a tar archive."""
        info = self._find(caller, ref)
        self._check_still(info, caller)
        with ExitStack() as stack:
            stack.enter_context(self._slots.taken(caller.owner))
            stack.enter_context(self._reading(info))
            files = self._files(info.id)
            if self._driver.clones_live:
                token = await self._capture(info.id)
                stack.callback(self._driver.discard, token)
                files = self._driver.captured(token)
            return await start_export([files], None, self._slots, stack.pop_all(), self._stall_timeout_s)

    async def _capture(self, volume: str) -> str:
        """If the caller leaves meanwhile, nothing is kept."""
        capturing = asyncio.ensure_future(asyncio.to_thread(self._driver.capture, volume))
        try:
            return await asyncio.shield(capturing)
        except asyncio.CancelledError:
            capturing.add_done_callback(self._discard)
            raise

    def _discard(self, capturing: asyncio.Future[str]) -> None:
        if not capturing.cancelled() and capturing.exception() is None:
            self._driver.discard(capturing.result())

    async def import_(self, caller: Caller, request: VolumeRequest, chunks: AsyncIterator[bytes]) -> ImportedVolume:
        """Create a volume with the files of a tar archive. If the caller leaves in the middle, nothing is kept."""
        info = self._new(caller, request.name, request.size)
        notices: builtins.list[str] = []

        async def work(source: int, over: threading.Event) -> VolumeInfo:
            def fill() -> None:
                notices.extend(self._unpack(info, source, over))

            return await self._make_slowly(info, fill)

        made = await through_pipe(self._tasks, chunks, self._stall_timeout_s, work)
        return ImportedVolume(volume=made, notices=tuple(notices))

    def _unpack(self, info: VolumeInfo, source: int, over: threading.Event) -> tuple[str, ...]:
        def check(read: int) -> None:
            if over.is_set():
                raise disconnected()

        self._make_empty(info)
        files, size = self._files(info.id), parse_size(info.size)
        files.rmdir()  # the archive has its owner and mode
        limits = UnpackLimits(bytes=2 * size + MAX_HEADERS, min_free=0)
        try:
            done = unpack(source, files, limits=limits, layer=False, whole=True, progress=check)
        except QuotaExceeded as error:
            raise QuotaExceeded(
                f"the archive does not fit into a volume of {info.size}", hint="create a larger one: --size"
            ) from error
        check(done.read)
        self._driver.sync(info.id)
        return done.notices

    @property
    def _stall_timeout_s(self) -> float:
        return parse_span(self._settings["archive.stall_timeout"])


def _shown(record: SandboxRecord, caller: Caller) -> str:
    if record.is_seen_by(caller):
        return record.name or record.id
    return "of another owner"


def _taken(name: str) -> Conflict:
    return Conflict(
        f"volume {name!r} already exists", hint=f"choose another name, or delete it: `skerry volume rm {name}`",
        details={"name": name},
    )  # fmt: skip
