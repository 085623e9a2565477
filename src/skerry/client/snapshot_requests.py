"""What is asked of a server about snapshots. Pure."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from skerry.client.description import Startable, image_name
from skerry.client.requests import Request, json_request, parameters, sandbox_path
from skerry.errors import NotFound
from skerry.types import NAME, ForkRequest, RollbackRequest, SnapshotInfo, SnapshotRequest, Value

PATIENCE = 600.0  # seconds of silence: a storage driver without snapshots of its own copies every byte


class SnapshotList(Value, frozen=True):
    snapshots: list[SnapshotInfo]


def take(ref: str, wish: SnapshotRequest) -> Request:
    return _once(json_request("POST", sandbox_path(ref, "snapshots"), wish))


def fork(ref: str, n: int) -> Request:
    return _once(json_request("POST", sandbox_path(ref, "fork"), ForkRequest(n=n)))


def rollback(ref: str, snapshot: Startable | str | None, steps: int | None) -> Request:
    target = image_name(snapshot) if snapshot is not None else None
    request = json_request("POST", sandbox_path(ref, "rollback"), RollbackRequest(snapshot=target, steps=steps))
    return replace(request, read_timeout=PATIENCE)


def _once(request: Request) -> Request:
    """With a key: sent again after a broken connection, it gives what it made the first time. Large disks and many
    sandboxes take their time."""
    return replace(request, key=str(uuid4()), read_timeout=PATIENCE)


def of(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "snapshots"))


def list_all(kind: str | None, key: str | None) -> Request:
    return Request("GET", "/v1/snapshots", parameters(kind=kind, key=key))


def snapshot_path(ref: str, *rest: str) -> str:
    """The path of a snapshot by id or name. What can be neither is not sent: it is not found."""
    if not NAME.fullmatch(ref):
        raise NotFound(f"there is no snapshot {ref[:80]!r}", hint="`skerry snapshot ls` shows what there is")
    return "/".join(("/v1/snapshots", ref, *rest))


def get(ref: str) -> Request:
    return Request("GET", snapshot_path(ref))


def changes(ref: str, to: str | None) -> Request:
    return Request("GET", snapshot_path(ref, "changes"), parameters(to=to))


def delete(ref: str) -> Request:
    return Request("DELETE", snapshot_path(ref))
