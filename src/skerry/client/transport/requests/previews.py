"""Requests about previews and ports. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec

from skerry.client.transport.requests.sandboxes import JSON, Request, sandbox_path
from skerry.errors import InvalidRequest
from skerry.types import PreviewInfo, PreviewRequest, check_port


def preview_request(port: int, public: bool, expires: Any) -> PreviewRequest:
    """Return the request, with its values checked before anything is sent."""
    check_port(port)
    if not isinstance(public, bool):
        raise InvalidRequest(f"public: {public!r} is neither True nor False")
    return PreviewRequest(port=port, public=public, expires=expires)


def expose(ref: str, payload: PreviewRequest) -> Request:
    return Request("POST", sandbox_path(ref, "previews"), content=msgspec.json.encode(payload), content_type=JSON)


def previews(ref: str) -> Request:
    return Request("GET", sandbox_path(ref, "previews"))


def revoke(ref: str, port: int) -> Request:
    check_port(port)
    return Request("DELETE", sandbox_path(ref, "previews", str(port)))


def connect(ref: str, port: int) -> Request:
    check_port(port)
    return Request("GET", sandbox_path(ref, "ports", str(port), "connect"))


def link_of(info: PreviewInfo) -> str:
    """Return the URL with the token: a browser that opens it once keeps the token."""
    return info.url if info.token is None else f"{info.url}?{urlencode({'skerry_token': info.token})}"
