"""Tokens for callers over TCP: each has a scope and an owner, is stored as a hash, and is shown once.
`server/http/auth.py` checks the scopes."""

from __future__ import annotations

import base64
import builtins
import hashlib
import hmac
import re
import secrets
import time
from collections import Counter, OrderedDict
from typing import NamedTuple

from skerry.engine.database import Database
from skerry.errors import InvalidRequest, NotFound, PermissionDenied, QuotaExceeded
from skerry.types import NAME, Caller, SandboxInfo, Scope, TerminalTicket, TokenInfo, check_text

PREFIX = "skt_"
TICKET_S = 60.0
MAX_TICKETS = 1000  # of an owner
_SECRET = re.compile(r"skt_[a-z2-7]{40}")
_OWNER_HINT = "1 to 63 characters of a-z, 0-9, '.', '_', '-'; the first and last a letter or digit"


def new_secret() -> str:
    """200 random bits: nothing to guess, so a fast hash is enough to store it by."""
    return PREFIX + base64.b32encode(secrets.token_bytes(25)).decode().lower()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _derived(digest: bytes, caller: Caller, use: str) -> str:
    return f"{caller.token}.{hmac.new(digest, use.encode(), 'sha256').hexdigest()}"


class _Ticket(NamedTuple):
    caller: Caller
    sandboxes: set[str | None]  # its ID and its name
    expires_at: float


class Tokens:
    """The tokens of one state directory. Callers are looked up by the secret's hash, so that the lookup time reveals
    nothing about any secret. The one server of the directory keeps the hashes in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tickets = OrderedDict[bytes, _Ticket]()  # oldest first; a plain dict is slow at removing its first
        self._open_tickets = Counter[str]()  # of each owner
        self._callers = {
            bytes(row["hash"]): Caller(owner=row["owner"], scope=row["scope"], token=row["id"])
            for row in database.read("SELECT id, hash, owner, scope FROM tokens")
        }
        self._digests = {caller.token: digest for digest, caller in self._callers.items()}

    def create(self, scope: Scope, owner: str | None, note: str) -> TokenInfo:
        """Create a token. Without an owner the token is its own owner and sees only the sandboxes that it created: with
        the scope `metrics`, none."""
        check_text("note", note)
        if len(note) > 1000:
            raise InvalidRequest("note: longer than 1,000 characters")
        if owner is not None and not NAME.fullmatch(owner):
            raise InvalidRequest(f"owner: {owner[:80]!r} can't be used", hint=_OWNER_HINT)
        if owner is not None and scope == "metrics":
            raise InvalidRequest("owner: a token with the scope metrics can't have one", hint="it only reads /metrics")
        token = "tk-" + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
        secret, now = new_secret(), time.time()
        info = TokenInfo(id=token, scope=scope, owner=owner or token, created_at=now, note=note, secret=secret)
        with self._database.transaction(durable=True) as cursor:
            cursor.execute(
                "INSERT INTO tokens (id, hash, scope, owner, note, created_at) VALUES (?, ?, ?, ?, ?, ?)",
                (info.id, _digest(secret), info.scope, info.owner, info.note, info.created_at),
            )
        self._callers[_digest(secret)] = Caller(owner=info.owner, scope=info.scope, token=info.id)
        self._digests[info.id] = _digest(secret)
        return info

    def list(self) -> list[TokenInfo]:
        rows = self._database.read("SELECT id, scope, owner, note, created_at FROM tokens ORDER BY created_at, id")
        return [TokenInfo(**dict(row)) for row in rows]

    def remove(self, token: str) -> None:
        """Revoke a token; `server/control.py` closes its open streams. Its sandboxes stay with their owner."""
        with self._database.transaction(durable=True) as cursor:
            row = cursor.execute("DELETE FROM tokens WHERE id = ? RETURNING hash", (token,)).fetchone()
        if row is None:
            raise NotFound(f"token {token[:80]!r} not found", hint="`skerry token ls` lists them")
        self._callers.pop(bytes(row["hash"]), None)
        self._digests.pop(token, None)

    def issue_ticket(self, caller: Caller, sandbox: SandboxInfo) -> TerminalTicket:
        """Return a ticket for one terminal of a sandbox. It is kept in memory only."""
        now = time.time()
        while self._tickets and next(iter(self._tickets.values())).expires_at <= now:
            self._take_ticket(next(iter(self._tickets)))
        if self._open_tickets[caller.owner] >= MAX_TICKETS:
            raise QuotaExceeded(
                f"the maximum of {MAX_TICKETS:,} open tickets is reached", hint=f"use them, or wait {TICKET_S:g} s"
            )
        secret, until = secrets.token_urlsafe(32), now + TICKET_S
        self._tickets[_digest(secret)] = _Ticket(caller, {sandbox.id, sandbox.name}, until)
        self._open_tickets[caller.owner] += 1
        return TerminalTicket(ticket=secret, expires_at=until)

    def redeem(self, secret: str, sandbox: str) -> Caller | None:
        """Return the caller of a ticket, once: whatever the result, the ticket is used up."""
        ticket = self._take_ticket(_digest(secret))
        if ticket is None or ticket.expires_at <= time.time() or sandbox not in ticket.sandboxes:
            return None
        token = ticket.caller.token
        return None if token is not None and token not in self._digests else ticket.caller

    def _take_ticket(self, digest: bytes) -> _Ticket | None:
        ticket = self._tickets.pop(digest, None)
        if ticket is not None:
            self._open_tickets[ticket.caller.owner] -= 1
            if not self._open_tickets[ticket.caller.owner]:
                del self._open_tickets[ticket.caller.owner]
        return ticket

    def authenticate(self, secret: str) -> Caller | None:
        return self._callers.get(_digest(secret)) if _SECRET.fullmatch(secret) else None

    def callers(self) -> builtins.list[Caller]:
        """Return the caller of every token."""
        return [*self._callers.values()]

    def derive(self, caller: Caller, use: str) -> str:
        """Return a secret that stands for the caller's token in one use, such as one sandbox. It is stored nowhere, and
        ends with the token."""
        digest = self._digests.get(caller.token)
        if digest is None:
            raise PermissionDenied("permission denied: only a token has access tokens")
        return _derived(digest, caller, use)

    def redeem_derived(self, secret: str, use: str) -> Caller | None:
        """Return the caller of a derived secret for this use."""
        digest = self._digests.get(secret.partition(".")[0])
        caller = self._callers.get(digest) if digest is not None else None
        if digest is None or caller is None:
            return None
        return caller if hmac.compare_digest(_derived(digest, caller, use).encode(), secret.encode()) else None

    @property
    def any(self) -> bool:
        return bool(self._callers)
