"""Responses of a server as values, and its errors as typed exceptions. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from skerry.errors import SkerryError, error_for_code
from skerry.types import ErrorBody, ErrorResponse

T = TypeVar("T")
_BY_STATUS = {400: "invalid_request", 401: "permission_denied", 403: "permission_denied", 404: "not_found",
              409: "conflict", 429: "quota_exceeded", 501: "host_unsupported", 503: "sandbox_unavailable"}  # fmt: skip


class StartedFrame(msgspec.Struct, frozen=True):
    """The first frame of an output: the process, and the offset of its first byte."""

    id: str
    pid: int = 0
    offset: int = 0


class GapFrame(msgspec.Struct, frozen=True):
    """The number of bytes that were dropped here."""

    missing: int


class PauseFrame(msgspec.Struct, frozen=True):
    """The process continues, the response ends."""

    offset: int
    more: bool = False


class WatchLine(msgspec.Struct, frozen=True):
    """The beginning of a watch line: a change, the start of the watch (`ready`), or the error that ended it."""

    type: str = ""
    path: str = ""
    token: str = ""
    error: ErrorBody | None = None


class ReviewLine(msgspec.Struct, frozen=True):
    """The beginning of a review's watch line: an event, the start of the watch (`ready`), the deletion of the sandbox
    (`end`), or an error."""

    type: str = ""
    tip: str = ""
    error: ErrorBody | None = None


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, kind: type[T]) -> T:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SkerryError(
            f"the server's response cannot be read: {error}",
            hint="is it a Skerry server of the same version? `skerry server status` shows it",
        ) from error


def to_error(body: ErrorBody) -> SkerryError:
    return error_for_code(body.code, body.message, body.hint, body.details)


def error_frame(payload: bytes) -> SkerryError:
    """Return the error that ended a stream: `{"error": {…}}`, or the inner object alone."""
    try:
        return to_error(msgspec.json.decode(payload, type=ErrorResponse).error)
    except msgspec.DecodeError:
        return to_error(decode(payload, ErrorBody))


def response_error(status: int, body: bytes) -> SkerryError:
    """Return the error of a failed request, also if a proxy in between sent it."""
    try:
        return to_error(msgspec.json.decode(body, type=ErrorResponse).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body[:200].decode("utf-8", "replace").strip()
        message = f"the server answered {status}" + (f": {said}" if said else "")
        return error_for_code(_BY_STATUS.get(status, "internal"), message)
