"""Previews: published ports of sandboxes. This module keeps the table, tokens and expiry; the worker serves them."""

from __future__ import annotations

import builtins
import hashlib
import logging
import secrets
import sqlite3
import time
from dataclasses import dataclass

from skerry.engine.database import Database
from skerry.engine.hooks import Hook
from skerry.engine.network.gateway import GatewayManager, WorkerHandler
from skerry.engine.network.preview_listener import Addresses, PreviewListener
from skerry.engine.sandboxes.lifecycle import Lifecycle
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.sandboxes.spec import new_id
from skerry.engine.tasks import Tasks
from skerry.errors import Conflict, NotFound, QuotaExceeded, SkerryError
from skerry.network.messages import (
    DisconnectPreviews,
    FromWorker,
    ListenPreviews,
    PreviewUsed,
    SharePreview,
    UnsharePreview,
)
from skerry.types import Caller, PreviewInfo, PreviewRequest, parse_span

log = logging.getLogger("skerry.engine")
MAX_PER_SANDBOX = 64
TOKEN_BYTES = 32


@dataclass(frozen=True)
class PreviewRecord:
    """A preview as stored. The token is stored in clear text: its owner may read it again. It stays while the preview
    is public."""

    sandbox: str
    port: int
    id: str
    public: bool
    token: str
    created_at: float
    expires: float | None
    name: str | None = None

    @property
    def over(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    def share(self) -> SharePreview:
        hashed = None if self.public else hashlib.sha256(self.token.encode()).hexdigest()
        return SharePreview(
            sandbox=self.sandbox, port=self.port, token_hash=hashed, expires=self.expires, name=self.name
        )

    def info(self, addresses: Addresses) -> PreviewInfo:
        place = f"{self.name or self.port}-{self.sandbox}"
        return PreviewInfo(
            id=self.id, port=self.port, url=addresses.url(place), path_url=addresses.path_url(place),
            public=self.public, created_at=self.created_at, expires=self.expires,
            token=None if self.public else self.token, name=self.name,
        )  # fmt: skip


class PreviewService(Hook, WorkerHandler):
    """`engine.previews`."""

    def __init__(
        self,
        listener: PreviewListener,
        database: Database,
        gateways: GatewayManager,
        registry: SandboxRegistry,
        lifecycle: Lifecycle,
        tasks: Tasks,
    ) -> None:
        self._listener, self._database, self._gateways = listener, database, gateways
        self._registry, self._lifecycle, self._tasks = registry, lifecycle, tasks
        self._known: dict[tuple[str, int], PreviewRecord] = {}

    async def open(self) -> None:
        """Listen, and take up the previews of an earlier server. Those of deleted sandboxes go."""
        await self._listener.open()
        for row in self._database.read("SELECT * FROM previews"):
            preview = _preview(row)
            self._known[preview.sandbox, preview.port] = preview
        known = self._registry.ids()
        for key, preview in list(self._known.items()):
            if preview.over or preview.sandbox not in known:
                self._forget(*key)
        self.on_worker_start()

    def close(self) -> None:
        self._listener.close()

    # -- for the API --------------------------------------------------------------------------------------------------

    def create(self, caller: Caller, ref: str, request: PreviewRequest) -> PreviewInfo:
        """Create the preview of a port, or change an existing one. It keeps its name and token unless the request has
        others."""
        sandbox, addresses, now = self._registry.find(caller, ref), self._listener.addresses, time.time()
        before = self._of(sandbox.record.id, request.port)
        if before is None and len(self._of_sandbox(sandbox.record.id)) >= MAX_PER_SANDBOX:
            raise QuotaExceeded(f"{sandbox.record.id} already has {MAX_PER_SANDBOX} previews", hint="revoke some")
        self._check_name(sandbox.record.id, request)
        preview = PreviewRecord(
            sandbox=sandbox.record.id, port=request.port, public=request.public,
            id=before.id if before else new_id("pv-"),
            token=request.token or (before.token if before else secrets.token_urlsafe(TOKEN_BYTES)),
            created_at=before.created_at if before else now,
            expires=None if request.expires is None else now + parse_span(request.expires, "expires"),
            name=request.name or (before.name if before else None),
        )  # fmt: skip
        with self._database.transaction(durable=sandbox.record.name is not None) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO previews (sandbox, port, id, public, token, created_at, expires, name)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (preview.sandbox, preview.port, preview.id, preview.public, preview.token, preview.created_at,
                 preview.expires, preview.name),
            )  # fmt: skip
        self._known[preview.sandbox, preview.port] = preview
        self._gateways.send(preview.share())
        log.info("exposed port", extra={"sandbox": preview.sandbox, "port": preview.port, "public": preview.public})
        return preview.info(addresses)

    def list(self, caller: Caller, ref: str) -> builtins.list[PreviewInfo]:
        """Return the previews of one sandbox, sorted by port."""
        sandbox_id = self._registry.find(caller, ref).record.id
        found = sorted(self._of_sandbox(sandbox_id), key=lambda one: one.port)
        return [preview.info(self._listener.addresses) for preview in found]

    def remove(self, caller: Caller, ref: str, port: int) -> None:
        """Revoke a preview and close its open connections."""
        sandbox_id = self._registry.find(caller, ref).record.id
        if self._of(sandbox_id, port) is None:
            raise NotFound(f"{sandbox_id} has no preview of port {port}", hint=f"`skerry preview ls {ref}` lists them")
        self._forget(sandbox_id, port)
        log.info("revoked preview", extra={"sandbox": sandbox_id, "port": port})

    # -- hooks --------------------------------------------------------------------------------------------------------

    async def on_deleted(self, sandbox: Sandbox) -> None:
        for key in [key for key in self._known if key[0] == sandbox.record.id]:
            self._forget(*key)

    # -- for the worker -----------------------------------------------------------------------------------------------

    def on_worker_start(self) -> None:
        """Send everything to a new worker. The listener comes last: requests may be waiting there already, and would be
        answered "not found" for a preview that the worker does not know yet."""
        if self._listener.socket is None:
            return
        for preview in self._known.values():
            self._gateways.send(preview.share())
        addresses = self._listener.addresses
        listen = ListenPreviews(
            domains=addresses.domains, secure=addresses.secure, max_per_address=self._listener.max_per_address
        )
        self._gateways.send(listen, (self._listener.socket.fileno(),))

    def shared(self, sandbox_id: str, port: int) -> Sandbox | None:
        """The sandbox, if that port of it is shown."""
        return self._registry.get(sandbox_id) if self._of(sandbox_id, port) is not None else None

    def on_worker_message(self, message: FromWorker) -> bool:
        if not isinstance(message, PreviewUsed):
            return False
        sandbox = self._registry.get(message.sandbox)
        if sandbox is not None:
            self._gateways.count_served(sandbox, message.sent, message.received)
            self._used(sandbox)
        return True

    def _used(self, sandbox: Sandbox) -> None:
        """There is traffic: not idle; and paused it could not answer."""
        if not self._of_sandbox(sandbox.record.id):
            return
        sandbox.mark_active()
        if sandbox.record.state == "paused":
            self._tasks.spawn(self._resume(sandbox))

    async def _resume(self, sandbox: Sandbox) -> None:
        try:
            with sandbox.in_use():
                await self._lifecycle.ensure_running(sandbox)
        except SkerryError:  # no auto-resume: requests to the preview must not wait for ever
            self._gateways.send(DisconnectPreviews(sandbox=sandbox.record.id))

    # -- internals ----------------------------------------------------------------------------------------------------

    def _check_name(self, sandbox_id: str, request: PreviewRequest) -> None:
        for other in self._of_sandbox(sandbox_id):
            if request.name is not None and other.name == request.name and other.port != request.port:
                raise Conflict(
                    f"the preview of port {other.port} of {sandbox_id} already has the name {request.name!r}",
                    hint="use another name, or revoke that preview",
                )

    def _of(self, sandbox_id: str, port: int) -> PreviewRecord | None:
        preview = self._known.get((sandbox_id, port))
        return None if preview is None or preview.over else preview

    def _of_sandbox(self, sandbox_id: str) -> builtins.list[PreviewRecord]:
        """Those of one sandbox that are not over; the others are forgotten by the way."""
        mine = [preview for preview in self._known.values() if preview.sandbox == sandbox_id]
        for preview in mine:
            if preview.over:
                self._forget(preview.sandbox, preview.port)
        return [preview for preview in mine if not preview.over]

    def _forget(self, sandbox_id: str, port: int) -> None:
        self._known.pop((sandbox_id, port), None)
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM previews WHERE sandbox = ? AND port = ?", (sandbox_id, port))
        self._gateways.send(UnsharePreview(sandbox=sandbox_id, port=port))


def _preview(row: sqlite3.Row) -> PreviewRecord:
    return PreviewRecord(
        sandbox=row["sandbox"], port=row["port"], id=row["id"], public=bool(row["public"]), token=row["token"],
        created_at=row["created_at"], expires=row["expires"], name=row["name"],
    )  # fmt: skip
