"""Requests about archives of images, snapshots and volumes. Pure."""

from __future__ import annotations

from skerry.client.transport.requests.sandboxes import Body, Request, parameters
from skerry.client.transport.requests.snapshots import snapshot_path, volume_path
from skerry.codecs.frames import MEDIA_TYPE

TAR = "application/x-tar"


def export_image(name: str) -> Request:
    return Request("GET", "/v1/images/export", parameters(name=name), accept=MEDIA_TYPE, read_timeout=None)


def export_snapshot(ref: str) -> Request:
    return Request("GET", snapshot_path(ref, "export"), accept=MEDIA_TYPE, read_timeout=None)


def import_image(name: str, replace: bool, archive: Body) -> Request:
    query = parameters(name=name, replace="true" if replace else None)
    return Request("POST", "/v1/images/import", query, archive, TAR, read_timeout=None)


def import_snapshot(name: str | None, archive: Body) -> Request:
    return Request("POST", "/v1/snapshots/import", parameters(name=name), archive, TAR, read_timeout=None)


def export_volume(ref: str) -> Request:
    return Request("GET", volume_path(ref, "export"), accept=MEDIA_TYPE, read_timeout=None)


def import_volume(name: str, size: str | None, archive: Body) -> Request:
    return Request("POST", "/v1/volumes/import", parameters(name=name, size=size), archive, TAR, read_timeout=None)
