"""Who may call over TCP: tokens with a scope and an owner, stored as hashes, shown once."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time

from skerry.engine.database import Database
from skerry.errors import InvalidRequest, NotFound
from skerry.types import NAME, Caller, Scope, TokenInfo, check_text

PREFIX = "skt_"
_SECRET = re.compile(r"skt_[a-z2-7]{40}")
_OWNER_HINT = "1 to 63 characters of a-z, 0-9, '.', '_', '-'; the first and last a letter or digit"


def new_secret() -> str:
    """200 random bits: nothing to guess, so a fast hash is enough to store it by."""
    return PREFIX + base64.b32encode(secrets.token_bytes(25)).decode().lower()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Tokens:
    """The tokens of one state directory. Callers are looked up by the secret's hash, so that the time it takes
    tells nothing about any secret; the one server that works on the directory keeps the hashes in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        rows = database.read("SELECT hash, owner, scope FROM tokens")
        self._callers = {bytes(row["hash"]): Caller(owner=row["owner"], scope=row["scope"]) for row in rows}

    def create(self, scope: Scope, owner: str | None, note: str) -> TokenInfo:
        """A new token. Without an owner it is one of its own: it sees what it made, and nothing else."""
        check_text("note", note)
        if len(note) > 1000:
            raise InvalidRequest("note: longer than 1,000 characters")
        if owner is not None and not NAME.fullmatch(owner):
            raise InvalidRequest(f"owner: {owner[:80]!r} can't be used", hint=_OWNER_HINT)
        token = "tk-" + base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
        secret, now = new_secret(), time.time()
        info = TokenInfo(id=token, scope=scope, owner=owner or token, created_at=now, note=note, secret=secret)
        with self._database.transaction(durable=True) as cursor:
            cursor.execute(
                "INSERT INTO tokens (id, hash, scope, owner, note, created_at) VALUES (?, ?, ?, ?, ?, ?)",
                (info.id, _digest(secret), info.scope, info.owner, info.note, info.created_at),
            )
        self._callers[_digest(secret)] = Caller(owner=info.owner, scope=info.scope)
        return info

    def list(self) -> list[TokenInfo]:
        rows = self._database.read("SELECT id, scope, owner, note, created_at FROM tokens ORDER BY created_at, id")
        return [TokenInfo(**dict(row)) for row in rows]

    def remove(self, token: str) -> None:
        """From now on it opens nothing; what it made stays with its owner."""
        with self._database.transaction(durable=True) as cursor:
            row = cursor.execute("DELETE FROM tokens WHERE id = ? RETURNING hash", (token,)).fetchone()
        if row is None:
            raise NotFound(f"there is no token {token[:80]!r}", hint="`skerry token ls` lists them")
        self._callers.pop(bytes(row["hash"]), None)

    def authenticate(self, secret: str) -> Caller | None:
        return self._callers.get(_digest(secret)) if _SECRET.fullmatch(secret) else None

    @property
    def any(self) -> bool:
        return bool(self._callers)
