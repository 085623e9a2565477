"""Previews: ports of sandboxes that people may look at. The table, their tokens and terms; the worker serves them."""

from __future__ import annotations

import builtins
import hashlib
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from skerry.engine import plan
from skerry.engine.database import Database
from skerry.engine.live import Live
from skerry.engine.preview_listener import Addresses, PreviewListener
from skerry.engine.reach import Reach, Tell
from skerry.errors import NotFound, QuotaExceeded, SkerryError
from skerry.network.messages import Listen, PutOut, Share, Unshare
from skerry.types import Caller, PreviewInfo, PreviewRequest, parse_span

log = logging.getLogger("skerry.engine")
OF_ONE_MOST = 64
TOKEN_BYTES = 32


@dataclass(frozen=True)
class Preview:
    """A row. The token is kept as it is: its owner may ask for it again. It stays while the preview is public."""

    sandbox: str
    port: int
    id: str
    public: bool
    token: str
    created_at: float
    expires: float | None

    @property
    def over(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    def share(self) -> Share:
        hashed = None if self.public else hashlib.sha256(self.token.encode()).hexdigest()
        return Share(sandbox=self.sandbox, port=self.port, token_hash=hashed, expires=self.expires)

    def info(self, addresses: Addresses) -> PreviewInfo:
        return PreviewInfo(
            id=self.id, port=self.port, url=addresses.url(self.sandbox, self.port),
            path_url=addresses.path_url(self.sandbox, self.port), public=self.public, created_at=self.created_at,
            expires=self.expires, token=None if self.public else self.token,
        )  # fmt: skip


class Previews:
    """`engine.previews`. `find` gives a caller's sandbox, `lives` knows all, `spawn` is for what nobody waits for."""

    def __init__(
        self,
        listener: PreviewListener,
        find: Callable[[Caller, str], Live],
        lives: Mapping[str, Live],
        reach: Reach,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._listener = listener
        self._find = find
        self._lives = lives
        self._reach = reach
        self._spawn = spawn
        self._tell: Tell = lambda _, __: None
        self._known: dict[tuple[str, int], Preview] = {}

    async def begin(self, database: Database, tell: Tell) -> None:
        """Once the engine has them: `tell` says something to the worker, if there is one just now."""
        self._database = database
        self._tell = tell
        await self._listener.open()
        for row in database.read("SELECT * FROM previews"):
            preview = _preview(row)
            self._known[preview.sandbox, preview.port] = preview
        for key, preview in list(self._known.items()):
            if preview.over or preview.sandbox not in self._lives:
                self._forget(*key)

    def close(self) -> None:
        self._listener.close()

    # -- for the API --------------------------------------------------------------------------------------------------

    def create(self, caller: Caller, ref: str, request: PreviewRequest) -> PreviewInfo:
        """The preview of a port: one that is there gets new terms, and keeps its address and token."""
        live, addresses, now = self._find(caller, ref), self._listener.addresses, time.time()
        before = self._of(live.row.id, request.port)
        if before is None and len(self._of_one(live.row.id)) >= OF_ONE_MOST:
            raise QuotaExceeded(f"{live.row.id} has {OF_ONE_MOST} previews already", hint="revoke some")
        preview = Preview(
            sandbox=live.row.id, port=request.port, public=request.public,
            id=before.id if before else plan.new_id("pv-"),
            token=before.token if before else secrets.token_urlsafe(TOKEN_BYTES),
            created_at=before.created_at if before else now,
            expires=None if request.expires is None else now + parse_span(request.expires, "expires"),
        )  # fmt: skip
        with self._database.transaction(durable=live.row.name is not None) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO previews (sandbox, port, id, public, token, created_at, expires)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (preview.sandbox, preview.port, preview.id, preview.public, preview.token, preview.created_at,
                 preview.expires),
            )  # fmt: skip
        self._known[preview.sandbox, preview.port] = preview
        self._tell(preview.share(), ())
        log.info("exposed", extra={"sandbox": preview.sandbox, "port": preview.port, "public": preview.public})
        return preview.info(addresses)

    def list(self, caller: Caller, ref: str) -> builtins.list[PreviewInfo]:
        """Those of one sandbox, by port."""
        sandbox = self._find(caller, ref).row.id
        found = sorted(self._of_one(sandbox), key=lambda one: one.port)
        return [preview.info(self._listener.addresses) for preview in found]

    def remove(self, caller: Caller, ref: str, port: int) -> None:
        """Nobody gets in any more; who is in is put out."""
        sandbox = self._find(caller, ref).row.id
        if self._of(sandbox, port) is None:
            raise NotFound(f"{sandbox} has no preview of port {port}", hint=f"`skerry previews ls {ref}` lists them")
        self._forget(sandbox, port)
        log.info("revoked", extra={"sandbox": sandbox, "port": port})

    # -- for the sandbox's life ---------------------------------------------------------------------------------------

    def gone(self, sandbox: str) -> None:
        """The sandbox was deleted."""
        for key in [key for key in self._known if key[0] == sandbox]:
            self._forget(*key)

    # -- for the worker -----------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """A new worker: it has to be told everything. The listener comes last: people may be waiting there already, and
        would be told that a preview is not there which the worker has not heard of yet."""
        if self._listener.socket is None:
            return
        for preview in self._known.values():
            self._tell(preview.share(), ())
        addresses = self._listener.addresses
        listen = Listen(domains=addresses.domains, secure=addresses.secure)
        self._tell(listen, (self._listener.socket.fileno(),))

    def shared(self, sandbox: str, port: int) -> Live | None:
        """The sandbox, if that port of it is shown."""
        return self._lives.get(sandbox) if self._of(sandbox, port) is not None else None

    def used(self, sandbox: str) -> None:
        """There is traffic: not idle; and paused it could not answer."""
        live = self._lives.get(sandbox)
        if live is None or not self._of_one(sandbox):
            return
        live.touch()
        if live.row.state == "paused":
            self._spawn(self._woken(live))

    async def _woken(self, live: Live) -> None:
        try:
            await self._reach.wake(live)
        except SkerryError:  # not to be woken by a call: whoever uses the preview must not wait for ever
            self._tell(PutOut(sandbox=live.row.id), ())

    # -- inner workings -----------------------------------------------------------------------------------------------

    def _of(self, sandbox: str, port: int) -> Preview | None:
        preview = self._known.get((sandbox, port))
        return None if preview is None or preview.over else preview

    def _of_one(self, sandbox: str) -> builtins.list[Preview]:
        """Those of one sandbox that are not over; the others are forgotten by the way."""
        mine = [preview for preview in self._known.values() if preview.sandbox == sandbox]
        for preview in mine:
            if preview.over:
                self._forget(preview.sandbox, preview.port)
        return [preview for preview in mine if not preview.over]

    def _forget(self, sandbox: str, port: int) -> None:
        self._known.pop((sandbox, port), None)
        with self._database.transaction() as cursor:
            cursor.execute("DELETE FROM previews WHERE sandbox = ? AND port = ?", (sandbox, port))
        self._tell(Unshare(sandbox=sandbox, port=port), ())


def _preview(row: sqlite3.Row) -> Preview:
    return Preview(
        sandbox=row["sandbox"], port=row["port"], id=row["id"], public=bool(row["public"]), token=row["token"],
        created_at=row["created_at"], expires=row["expires"],
    )  # fmt: skip
