"""Answers of a server as values, and its refusals as typed errors. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from skerry.errors import SkerryError, error_for_code
from skerry.types import (
    Answer,
    ContextInfo,
    ImageInfo,
    LanguageInfo,
    ProcessInfo,
    Progress,
    ReviewRefs,
    SandboxInfo,
    SessionInfo,
    TokenInfo,
    Value,
    Verified,
)

T = TypeVar("T")
_BY_STATUS = {400: "invalid_request", 401: "denied", 403: "denied", 404: "not_found", 409: "conflict",
              429: "quota_exceeded", 501: "host_unsupported", 503: "sandbox_unavailable"}  # fmt: skip


class SandboxList(Value, frozen=True):
    sandboxes: list[SandboxInfo]


class ReviewRefsList(Value, frozen=True):
    reviews: list[ReviewRefs]


class ProcessList(Value, frozen=True):
    processes: list[ProcessInfo]


class SessionList(Value, frozen=True):
    sessions: list[SessionInfo]


class ContextList(Value, frozen=True):
    contexts: list[ContextInfo]


class LanguageList(Value, frozen=True):
    languages: list[LanguageInfo]


class Checksum(Answer, frozen=True):
    checksum: str


class ImageList(Value, frozen=True):
    images: list[ImageInfo]


class TokenList(Value, frozen=True):
    tokens: list[TokenInfo]


class Started(msgspec.Struct, frozen=True):
    """The first frame of an output: whose it is, and where its first byte stands."""

    id: str
    pid: int = 0
    offset: int = 0


class Gap(msgspec.Struct, frozen=True):
    """So many bytes were dropped here."""

    missing: int


class Pause(msgspec.Struct, frozen=True):
    """The process goes on, the answer does not."""

    offset: int
    more: bool = False


class ErrorBody(msgspec.Struct, frozen=True):
    code: str
    message: str
    hint: str | None = None
    details: dict[str, Any] | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


class WatchLine(msgspec.Struct, frozen=True):
    """What a line of a watch begins with: a change, that the watch stands (`ready`), or the error that ended it."""

    type: str = ""
    path: str = ""
    token: str = ""
    error: ErrorBody | None = None


class ReviewLine(msgspec.Struct, frozen=True):
    """What a line of a review's watch begins with: an event, that the watch stands (`ready`), that the sandbox is gone
    (`end`), or an error."""

    type: str = ""
    tip: str = ""
    error: ErrorBody | None = None


class BuildLine(msgspec.Struct, frozen=True):
    """One line of work on images: exactly one of these is set."""

    progress: Progress | None = None
    image: ImageInfo | None = None
    verified: Verified | None = None
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
            f"the server's answer can't be read: {error}",
            hint="is it a Skerry server of the same version? `skerry server status` shows it",
        ) from error


def raised(body: ErrorBody) -> SkerryError:
    return error_for_code(body.code, body.message, body.hint, body.details)


def error_frame(payload: bytes) -> SkerryError:
    """The error that ended a stream: `{"error": {…}}`, or the inner object alone."""
    try:
        return raised(msgspec.json.decode(payload, type=ErrorAnswer).error)
    except msgspec.DecodeError:
        return raised(decode(payload, ErrorBody))


def error_answer(status: int, body: bytes) -> SkerryError:
    """The error of a refused request, also where something in between answered in its own words."""
    try:
        return raised(msgspec.json.decode(body, type=ErrorAnswer).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body[:200].decode("utf-8", "replace").strip()
        message = f"the server answered {status}" + (f": {said}" if said else "")
        return error_for_code(_BY_STATUS.get(status, "internal"), message)
