"""What is asked of a server to apply what was accepted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skerry.client.applying.record import Record
from skerry.client.requests import Request, json_request, sandbox_path
from skerry.client.review_requests import PATIENCE
from skerry.errors import SandboxUnavailable
from skerry.types.review import OBJECT_ID, AppliedRequest, DecideRequest

BYTES = "application/octet-stream"


def accepted(ref: str, paths: Sequence[str]) -> Request:
    params = tuple(("paths", path) for path in paths)
    return Request("GET", sandbox_path(ref, "review", "accepted"), params, read_timeout=PATIENCE)


def review(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "review"), read_timeout=PATIENCE)


def blob(ref: str, oid: str) -> Request:
    if not OBJECT_ID.fullmatch(oid):
        raise SandboxUnavailable(f"{oid[:80]!r} is no object's name")
    return Request("GET", sandbox_path(ref, "review", "blobs", oid), accept=BYTES)


def accept_all(ref: str, paths: Sequence[str]) -> Request:
    wish = DecideRequest(do="accept", paths=tuple(paths), all=not paths)
    return replace(json_request("POST", sandbox_path(ref, "review", "decisions"), wish), read_timeout=PATIENCE)


def tell(ref: str, record: Record) -> Request:
    """That it was done, or undone; an undo is told by the apply's own id."""
    told = AppliedRequest(id=record.undoes or record.id, digest=record.digest, hunks=record.hunks)
    path = sandbox_path(ref, "review", "unapplied" if record.undoes else "applied")
    return replace(json_request("POST", path, told), read_timeout=PATIENCE)
