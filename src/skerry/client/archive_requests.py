"""What is asked of a server about archives of images and snapshots. Pure."""

from __future__ import annotations

from skerry.client.frames import MEDIA_TYPE
from skerry.client.requests import Request, parameters
from skerry.client.snapshot_requests import snapshot_path


def export_image(name: str) -> Request:
    return Request("GET", "/v1/images/export", parameters(name=name), accept=MEDIA_TYPE, read_timeout=None)


def export_snapshot(ref: str) -> Request:
    return Request("GET", snapshot_path(ref, "export"), accept=MEDIA_TYPE, read_timeout=None)
