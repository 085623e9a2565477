"""The server itself: callers and tokens, images, long work."""

from __future__ import annotations

from typing import Literal

from skerry.types.values import Answer, Value

Scope = Literal["use", "review", "admin"]


class Caller(Value, frozen=True, kw_only=True):
    """Who calls: whose sandboxes these are, and what the token may do."""

    owner: str
    scope: Scope


class ImageInfo(Answer, frozen=True, kw_only=True):
    """An image in the store. `size` is what it takes on disk, of which `shared` is also another's; `recipe`, of one
    that Skerry made, a digest of how; `source` and `platform`, of one that was pulled, where from and for which
    machine. `entrypoint` and `cmd`: what runs where nobody names a command."""

    name: str
    digest: str
    layers: tuple[str, ...]
    size: int
    created_at: float
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    recipe: str | None = None
    source: str | None = None
    platform: str | None = None
    shared: int = 0


class Progress(Answer, frozen=True, kw_only=True):
    """One step of long work. `done` and `total` in bytes or steps; total 0: not known."""

    stage: str
    message: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None


class TokenInfo(Answer, frozen=True, kw_only=True):
    """A token without its secret. `owner` is whose sandboxes it sees."""

    id: str
    scope: Scope
    owner: str
    created_at: float
    note: str = ""
    secret: str | None = None  # only in the answer to its creation


class Check(Answer, frozen=True):
    """One line of `skerry doctor`. `ok` None: it could not be told, or something else would be better."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None = None
