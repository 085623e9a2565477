"""Responses: one error format, one status per error, and streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from skerry.errors import InvalidRequest, NotFound, PermissionDenied, SkerryError
from skerry.types import ErrorBody, ErrorResponse

JSON = "application/json"
NDJSON = "application/x-ndjson"
FRAMES = "application/vnd.skerry.frames"
BYTES = "application/octet-stream"
DIFF = "text/x-diff"
TAR = "application/x-tar"
PACK = "application/x-git-pack"
EVENTS = "text/event-stream"
METRICS = "text/plain"

STATUSES: Mapping[str, int] = {
    "invalid_request": 400,
    "permission_denied": 403,
    "not_found": 404,
    "conflict": 409,
    "unapplied_changes": 409,
    "toolchain_missing": 409,
    "quota_exceeded": 429,
    "budget_exceeded": 429,
    "sandbox_unavailable": 503,
    "registry_error": 502,
    "host_unsupported": 501,
    "audit_unavailable": 503,
    "file_not_found": 404,
    "file_permission_denied": 403,
    "file_exists": 409,
    "file_is_directory": 409,
    "file_not_directory": 409,
    "file_error": 409,
    "internal": 500,
}


class Unauthenticated(PermissionDenied):
    """The token is missing or unknown."""

    status: ClassVar[int] = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class MisdirectedRequest(PermissionDenied):
    """The Host header names another server: a misdirected client, or a rebound DNS name in a browser."""

    status: ClassVar[int] = 421


class BodyTooLarge(InvalidRequest):
    status: ClassVar[int] = 413


class WrongMediaType(InvalidRequest):
    status: ClassVar[int] = 415


class NotAcceptable(InvalidRequest):
    status: ClassVar[int] = 406


class MethodNotAllowed(InvalidRequest):
    status: ClassVar[int] = 405

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"the method {method} is not allowed for this path", details={"allowed": list(allowed)})
        self.headers = {"Allow": ", ".join(allowed)}


class WrongRange(InvalidRequest):
    status: ClassVar[int] = 416

    def __init__(self, given: str, total: int) -> None:
        super().__init__(
            f"the range {given[:80]!r} is outside the file", hint="one range, like bytes=0-99", details={"size": total}
        )
        self.headers = {"Content-Range": f"bytes */{total}"}


class NoSuchPath(NotFound):
    """No route has this path."""


class ClientDisconnected(Exception):
    """The caller disconnected; no response can be sent."""


def status_of(error: SkerryError) -> int:
    status: int | None = getattr(error, "status", None)
    return status if status is not None else STATUSES.get(error.code, 500)


def headers_of(error: SkerryError) -> Mapping[str, str]:
    headers: Mapping[str, str] = getattr(error, "headers", {})
    return headers


def error_body(error: SkerryError) -> bytes:
    info = ErrorBody(code=error.code, message=error.message, hint=error.hint, details=error.details)
    try:
        return msgspec.json.encode(ErrorResponse(error=info), enc_hook=str)
    except (UnicodeEncodeError, TypeError, ValueError):  # a name from the sandbox that is not valid Unicode
        message = error.message.encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(ErrorResponse(error=ErrorBody(code=error.code, message=message)))


def internal_error(request_id: str) -> SkerryError:
    """Return the error for an unexpected exception: the cause is in the log, not in the response."""
    return SkerryError(
        "unexpected error in the server",
        hint=f"the server's log has the cause under request {request_id}",
        details={"request_id": request_id},
    )


@dataclass(frozen=True)
class StatusResponse:
    """A response with another status than its route's default; `Route.also` lists it."""

    status: int
    value: msgspec.Struct | None = None


class LastPiece(bytes):
    """The last bytes of a stream: they are sent together with the end of the response."""


@dataclass(frozen=True)
class StreamResponse:
    """A streamed response. `close` is always called, even if no chunk was sent. `length` is announced to the caller, so
    a response with another length is truncated. `endless`: no caller waits for its end, so a stopping server cuts it
    off; the reader can continue from its last position."""

    media_type: str
    chunks: AsyncGenerator[bytes, None]
    close: Callable[[], Awaitable[None]] | None = None
    length: int | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False


@dataclass(frozen=True)
class AsgiResponse:
    """A response from another ASGI application, after the usual checks of the caller. `endless`: as above."""

    app: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
    endless: bool = False
