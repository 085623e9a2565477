"""Requests about previews and ports. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import msgspec

from skerry.client.transport.requests.sandboxes import JSON, Request, sandbox_path
from skerry.errors import InvalidRequest, NotFound
from skerry.types import PreviewInfo, PreviewRequest, check_port


def preview_request(
    port: int, public: bool, expires: Any, name: str | None = None, token: str | None = None
) -> PreviewRequest:
    """Return the request, with its values checked before anything is sent."""
    check_port(port)
    if not isinstance(public, bool):
        raise InvalidRequest(f"public: {public!r} is neither True nor False")
    for field, value in (("name", name), ("token", token)):
        if value is not None and not isinstance(value, str):
            raise InvalidRequest(f"{field}: it has to be text")
    return PreviewRequest(port=port, public=public, expires=expires, name=name, token=token)


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


def find_preview(previews: Iterable[PreviewInfo], ref: str, place: int | str) -> PreviewInfo:
    """Return the preview of a port, or with a name."""
    for info in previews:
        if place in (info.port, info.name):
            return info
    what = f"port {place}" if isinstance(place, int) else f"name {place[:80]!r}"
    raise NotFound(f"{ref} has no preview with {what}", hint=f"`skerry preview ls {ref}` lists them")


def opens(info: PreviewInfo, token: str) -> bool:
    """Return whether a preview accepts a token, in a time that does not depend on the token."""
    return info.public or hmac.compare_digest(str(token).encode("utf-8", "replace"), (info.token or "").encode())


def link_of(info: PreviewInfo) -> str:
    """Return the URL with the token: a browser that opens it once keeps the token."""
    return info.url if info.token is None else f"{info.url}?{urlencode({'skerry_token': info.token})}"
