"""What goes back: one error shape, one status for each error, and streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from skerry.errors import Denied, InvalidRequest, NotFound, SkerryError

JSON = "application/json"
NDJSON = "application/x-ndjson"
FRAMES = "application/vnd.skerry.frames"
BYTES = "application/octet-stream"
DIFF = "text/x-diff"
TAR = "application/x-tar"
PACK = "application/x-git-pack"
EVENTS = "text/event-stream"

STATUSES: Mapping[str, int] = {
    "invalid_request": 400,
    "denied": 403,
    "not_found": 404,
    "conflict": 409,
    "setup_failed": 409,
    "quota_exceeded": 429,
    "sandbox_unavailable": 503,
    "registry_failed": 502,
    "host_unsupported": 501,
    "file_missing": 404,
    "file_forbidden": 403,
    "file_there": 409,
    "file_is_directory": 409,
    "file_not_directory": 409,
    "file_failed": 409,
    "internal": 500,
}


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. `code` is stable; `hint` says what to do about it."""

    code: str
    message: str
    hint: str | None = None
    details: dict[str, Any] = {}


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    error: ErrorInfo


class Unauthenticated(Denied):
    """No token, or one that is not known."""

    status: ClassVar[int] = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class WrongHost(Denied):
    """Called by a name that is not this server's: a stray client, or a rebound DNS name in a browser."""

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
        super().__init__(f"{method} is not possible here", details={"allowed": list(allowed)})
        self.headers = {"Allow": ", ".join(allowed)}


class WrongRange(InvalidRequest):
    status: ClassVar[int] = 416

    def __init__(self, wish: str, total: int) -> None:
        super().__init__(
            f"the range {wish[:80]!r} is not in the file", hint="one range, like bytes=0-99", details={"size": total}
        )
        self.headers = {"Content-Range": f"bytes */{total}"}


class NoSuchPath(NotFound):
    """No route is there at all."""


class Gone(Exception):
    """The caller went away in the middle; there is nobody to answer."""


def status_of(error: SkerryError) -> int:
    status: int | None = getattr(error, "status", None)
    return status if status is not None else STATUSES.get(error.code, 500)


def headers_of(error: SkerryError) -> Mapping[str, str]:
    headers: Mapping[str, str] = getattr(error, "headers", {})
    return headers


def error_body(error: SkerryError) -> bytes:
    info = ErrorInfo(code=error.code, message=error.message, hint=error.hint, details=error.details)
    try:
        return msgspec.json.encode(ErrorAnswer(error=info), enc_hook=str)
    except (UnicodeEncodeError, TypeError, ValueError):  # a name from the inside that is no Unicode
        message = error.message.encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(ErrorAnswer(error=ErrorInfo(code=error.code, message=message)))


def internal_error(request_id: str) -> SkerryError:
    """Stands for an exception that nobody foresaw: what it was is in the log, not in the answer."""
    return SkerryError(
        "the server met an unexpected error",
        hint=f"its log has the cause under request {request_id}",
        details={"request_id": request_id},
    )


@dataclass(frozen=True)
class Answered:
    """An answer with another status than its route's usual one; `Route.also` has it."""

    status: int
    value: msgspec.Struct | None = None


@dataclass(frozen=True)
class Stream:
    """An answer sent as it comes. `close` is called in every case, also when nothing was ever sent of it; `length` is
    promised to the caller, so an answer that comes out otherwise is cut off. `endless`: nobody waits for its end, so a
    server that stops cuts it off; who reads it can take it up again where it was."""

    media_type: str
    chunks: AsyncGenerator[bytes, None]
    close: Callable[[], Awaitable[None]] | None = None
    length: int | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False


@dataclass(frozen=True)
class Passed:
    """An answer that another ASGI application gives, to a caller who was let in as all are. `endless`: as above."""

    app: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
    endless: bool = False
