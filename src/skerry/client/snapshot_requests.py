"""What is asked of a server about snapshots. Pure."""

from __future__ import annotations

from skerry.client.requests import Request, json_request, parameters, sandbox_path
from skerry.errors import NotFound
from skerry.types import NAME, SnapshotInfo, SnapshotRequest, Value


class SnapshotList(Value, frozen=True):
    snapshots: list[SnapshotInfo]


def take(ref: str, wish: SnapshotRequest) -> Request:
    return json_request("POST", sandbox_path(ref, "snapshots"), wish)


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
