"""Refusals become the typed errors that they are."""

from __future__ import annotations

import json

import pytest

from skerry import errors
from skerry.client.transport.responses import decode, error_frame, response_error
from skerry.types import SandboxInfo

CLASSES = [
    errors.InvalidRequest, errors.NotFound, errors.Conflict, errors.PermissionDenied, errors.QuotaExceeded,
    errors.SandboxUnavailable, errors.HostUnsupported, errors.FileError, errors.FileNotFound, errors.FileExists,
    errors.FileIsDirectory, errors.FileNotDirectory, errors.FilePermissionDenied, errors.SkerryError,
]  # fmt: skip


def body(code: str, **more: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": "m", "hint": "h", "details": {"a": 1}, **more}}).encode()


@pytest.mark.parametrize("kind", CLASSES)
def test_each_code_has_its_class(kind: type[errors.SkerryError]) -> None:
    error = response_error(400, body(kind.code))
    assert type(error) is kind
    assert (error.message, error.hint, error.details) == ("m", "h", {"a": 1})
    assert type(error_frame(body(kind.code))) is kind


def test_unknown_code_is_a_skerry_error() -> None:
    error = response_error(418, body("teapot"))
    assert type(error) is errors.SkerryError
    assert error.message == "m"


def test_file_errors_are_builtin_errors() -> None:
    error = response_error(404, body("file_not_found", details={"errno": 2, "path": "/x"}))
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "/x")


@pytest.mark.parametrize(
    ("status", "kind"), [(401, errors.PermissionDenied), (404, errors.NotFound), (502, errors.SkerryError)]
)
def test_response_of_a_proxy_is_reported_by_its_status(status: int, kind: type[Exception]) -> None:
    error = response_error(status, b"<html>\x1b[2J nope")
    assert type(error) is kind
    assert str(status) in str(error)


@pytest.mark.parametrize("wire", [b"", b"{", b"[]", b'{"id": 1}', b"\xff\xfe", b'{"id":"sb-a","unknown":1}'])
def test_invalid_response_is_an_error(wire: bytes) -> None:
    with pytest.raises(errors.SkerryError, match="cannot be read"):
        decode(wire, SandboxInfo)
