"""Refusals become the typed errors that they are."""

from __future__ import annotations

import json

import pytest

from skerry import errors
from skerry.client.responses import decode, error_answer, error_frame
from skerry.types import SandboxInfo

CLASSES = [
    errors.InvalidRequest, errors.NotFound, errors.Conflict, errors.Denied, errors.QuotaExceeded,
    errors.SandboxUnavailable, errors.HostUnsupported, errors.FileFailure, errors.FileMissing, errors.FileThere,
    errors.FileIsDirectory, errors.FileNotDirectory, errors.FileForbidden, errors.SkerryError,
]  # fmt: skip


def body(code: str, **more: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": "m", "hint": "h", "details": {"a": 1}, **more}}).encode()


@pytest.mark.parametrize("kind", CLASSES)
def test_each_code_is_its_class(kind: type[errors.SkerryError]) -> None:
    error = error_answer(400, body(kind.code))
    assert type(error) is kind
    assert (error.message, error.hint, error.details) == ("m", "h", {"a": 1})
    assert type(error_frame(body(kind.code))) is kind


def test_a_code_from_the_future_is_still_an_error_of_ours() -> None:
    error = error_answer(418, body("teapot"))
    assert type(error) is errors.SkerryError
    assert error.message == "m"


def test_file_errors_are_the_builtins_that_they_are() -> None:
    error = error_answer(404, body("file_missing", details={"errno": 2, "path": "/x"}))
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "/x")


@pytest.mark.parametrize(("status", "kind"), [(401, errors.Denied), (404, errors.NotFound), (502, errors.SkerryError)])
def test_the_words_of_something_in_between_are_told_by_their_status(status: int, kind: type[Exception]) -> None:
    error = error_answer(status, b"<html>\x1b[2J nope")
    assert type(error) is kind
    assert str(status) in str(error)


@pytest.mark.parametrize("wire", [b"", b"{", b"[]", b'{"id": 1}', b"\xff\xfe", b'{"id":"sb-a","unknown":1}'])
def test_an_answer_that_makes_no_sense_is_said_to_make_none(wire: bytes) -> None:
    with pytest.raises(errors.SkerryError, match="can't be read"):
        decode(wire, SandboxInfo)
