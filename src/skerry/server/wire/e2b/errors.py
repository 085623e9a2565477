"""Errors in the forms of E2B: one for the control plane and plain HTTP, one for a sandbox that does not answer, one for
Connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec

from skerry.errors import InvalidRequest, QuotaExceeded, SandboxUnavailable, SkerryError
from skerry.server.http.responses import (
    MethodNotAllowed,
    NoSuchPath,
    Unauthenticated,
    WrongMediaType,
    headers_of,
    status_of,
)

Form = Literal["api", "envd", "connect"]

_CONNECT_CODES: Final[Mapping[int, str]] = {
    400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 405: "unimplemented",
    406: "invalid_argument", 409: "failed_precondition", 413: "resource_exhausted", 415: "unimplemented",
    421: "permission_denied", 429: "resource_exhausted", 501: "unimplemented", 502: "unavailable", 503: "unavailable",
}  # fmt: skip
_CONNECT_STATUSES: Final[Mapping[str, int]] = {
    "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404, "already_exists": 409,
    "permission_denied": 403, "resource_exhausted": 429, "failed_precondition": 400, "unimplemented": 501,
    "unavailable": 503, "unauthenticated": 401,
}  # fmt: skip
# A path with the wrong type is an invalid argument of a call; the control plane has no such errors.
_BY_CODE: Final[Mapping[str, str]] = {
    "file_exists": "already_exists", "file_is_directory": "invalid_argument", "file_not_directory": "invalid_argument",
}  # fmt: skip


class RpcError(SkerryError):
    """An error with a code of Connect that no other error has."""

    def __init__(self, connect_code: str, message: str) -> None:
        super().__init__(message)
        self.connect_code = connect_code
        self.status = _CONNECT_STATUSES.get(connect_code, 500)


class SandboxGone(SandboxUnavailable):
    """The sandbox of a request was deleted, or is paused and does not resume by itself."""

    status: ClassVar[int] = 502


class BadAccessToken(Unauthenticated):
    """The access token or the signature of a request for a sandbox is missing or wrong."""

    headers: ClassVar[Mapping[str, str]] = {}


class DiskFull(QuotaExceeded):
    """The disk of a sandbox has no space left."""

    status: ClassVar[int] = 507


class UnknownUser(InvalidRequest):
    """The sandbox has no such user."""

    status: ClassVar[int] = 401


def ends_stream(error: SkerryError) -> bool:
    """Return whether an error before the first message of a stream is reported in the stream: clients of Connect read
    nothing but the status of another response. A proxy of E2B, and HTTP itself, report the others."""
    return not isinstance(error, (SandboxUnavailable, Unauthenticated, WrongMediaType, NoSuchPath, MethodNotAllowed))


def connect_code(error: SkerryError) -> str:
    if isinstance(error, RpcError):
        return error.connect_code
    return _BY_CODE.get(error.code) or _CONNECT_CODES.get(status_of(error), "internal")


def connect_body(error: SkerryError) -> bytes:
    return msgspec.json.encode({"code": connect_code(error), "message": _message(error)})


def response(error: SkerryError, form: Form, sandbox: str | None) -> tuple[int, bytes, Mapping[str, str]]:
    """Return the status, the body and the headers of an error. A proxy of E2B reports a sandbox that does not answer,
    in every protocol."""
    status = status_of(error)
    if form != "api" and isinstance(error, SandboxUnavailable):
        body = {"sandboxId": sandbox or "", "message": _message(error), "code": 502}
        if isinstance(port := error.details.get("port"), int):
            body["port"] = port
        return 502, msgspec.json.encode(body), {}
    if form == "connect":
        code = connect_code(error)
        return _CONNECT_STATUSES.get(code, 500) if status != 415 else 415, connect_body(error), {}
    if form == "envd" and error.code in ("file_is_directory", "file_not_directory"):
        status = 400
    return status, msgspec.json.encode({"code": status, "message": _message(error)}), headers_of(error)


def timeout_body(form: Form) -> bytes:
    """Return the body of the status 408."""
    code: int | str = "deadline_exceeded" if form == "connect" else 408
    return msgspec.json.encode({"code": code, "message": "the request's body did not arrive in time"})


def _message(error: SkerryError) -> str:
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    return text.encode("utf-8", "backslashreplace").decode()
