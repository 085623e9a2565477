"""Requests about snapshots and volumes. Pure."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from skerry.client.create_options import Startable, image_name
from skerry.client.transport.requests.sandboxes import Request, json_request, parameters, sandbox_path
from skerry.errors import NotFound
from skerry.types import NAME, ForkRequest, RollbackRequest, SnapshotRequest, VolumeRequest, VolumeSnapshotRequest

READ_TIMEOUT = 600.0  # seconds of silence: a storage driver without snapshots copies every byte


def take(ref: str, payload: SnapshotRequest) -> Request:
    return _once(json_request("POST", sandbox_path(ref, "snapshots"), payload))


def fork(ref: str, n: int, name: str | None) -> Request:
    return _once(json_request("POST", sandbox_path(ref, "fork"), ForkRequest(n=n, name=name)))


def rollback(ref: str, snapshot: Startable | str | None, steps: int | None) -> Request:
    target = image_name(snapshot) if snapshot is not None else None
    request = json_request("POST", sandbox_path(ref, "rollback"), RollbackRequest(snapshot=target, steps=steps))
    return replace(request, read_timeout=READ_TIMEOUT)


def restore(ref: str, snapshot: Startable | str, path: str | None, user: str | None) -> Request:
    query = parameters(snapshot=image_name(snapshot), path=path, user=user)
    return Request("POST", sandbox_path(ref, "restore"), query, read_timeout=None)


def _once(request: Request) -> Request:
    """Return a copy with a key: repeated after a broken connection, it returns the first result. Large disks and many
    sandboxes take time."""
    return replace(request, key=str(uuid4()), read_timeout=READ_TIMEOUT)


def of(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "snapshots"))


def list_all(kind: str | None, key: str | None) -> Request:
    return Request("GET", "/v1/snapshots", parameters(kind=kind, key=key))


def snapshot_path(ref: str, *rest: str) -> str:
    """Return the path of a snapshot by ID or name. A text that can be neither is not sent: it is not found."""
    if not NAME.fullmatch(ref):
        raise NotFound(f"snapshot {ref[:80]!r} not found", hint="`skerry snapshot ls` lists snapshots")
    return "/".join(("/v1/snapshots", ref, *rest))


def get(ref: str) -> Request:
    return Request("GET", snapshot_path(ref))


def changes(ref: str, to: str | None) -> Request:
    return Request("GET", snapshot_path(ref, "changes"), parameters(to=to))


def delete(ref: str) -> Request:
    return Request("DELETE", snapshot_path(ref))


def volumes() -> Request:
    return Request("GET", "/v1/volumes")


def create_volume(payload: VolumeRequest) -> Request:
    return replace(json_request("POST", "/v1/volumes", payload), read_timeout=READ_TIMEOUT)


def volume_path(ref: str, *rest: str) -> str:
    """Return the path of a volume by ID or name. A text that can be neither is not sent: it is not found."""
    if not NAME.fullmatch(ref):
        raise NotFound(f"volume {ref[:80]!r} not found", hint="`skerry volume ls` lists volumes")
    return "/".join(("/v1/volumes", ref, *rest))


def volume(ref: str, method: str = "GET") -> Request:
    return Request(method, volume_path(ref))


def snapshot_volume(ref: str, name: str) -> Request:
    request = json_request("POST", volume_path(ref, "snapshot"), VolumeSnapshotRequest(name=name))
    return replace(request, read_timeout=READ_TIMEOUT)


def clone_volume(ref: str, payload: VolumeRequest) -> Request:
    return replace(json_request("POST", volume_path(ref, "clone"), payload), read_timeout=READ_TIMEOUT)
