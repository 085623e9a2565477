"""Requests as values: the sent content, and errors before sending."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

from skerry.client.create_options import check_command, run_request
from skerry.client.host.content import check_contents, pieces, size_of
from skerry.client.transport.requests import files, sandboxes
from skerry.errors import InvalidRequest, NotFound
from skerry.types import CreateRequest, RunRequest, UpdateRequest


def test_each_create_has_a_separate_key_and_may_be_repeated() -> None:
    one, two = sandboxes.create(CreateRequest()), sandboxes.create(CreateRequest())
    assert one.repeatable
    assert one.headers()["idempotency-key"] != two.headers()["idempotency-key"]


def test_only_a_create_may_be_repeated() -> None:
    assert not sandboxes.run("dev", RunRequest(cmd="x")).repeatable
    assert not sandboxes.delete("dev").repeatable


@pytest.mark.parametrize(
    "ref", ["", ".", "..", "a/b", "../x", "A", "a?b", "a#b", "a%2fb", "-a", "sb-x\n", "é", "x" * 64]
)
def test_invalid_sandbox_name_is_not_sent(ref: str) -> None:
    with pytest.raises(NotFound):
        sandboxes.get(ref)


@pytest.mark.parametrize("process", ["", ".", "..", "a/b", "a?b", "p-1\n", "é"])
def test_invalid_process_name_is_not_sent(process: str) -> None:
    with pytest.raises(NotFound):
        sandboxes.signal("dev", process, "TERM")


def test_signal_is_sent_by_its_short_name() -> None:
    assert sandboxes.signal("dev", "p-1", "sigkill").content == b'{"signal":"KILL"}'


def test_only_given_fields_are_sent() -> None:
    assert sandboxes.update("dev", UpdateRequest(labels={"a": "b"})).content == b'{"labels":{"a":"b"}}'
    assert sandboxes.update("dev", UpdateRequest(env={"A": None})).content == b'{"env":{"A":null}}'


def test_mode_is_sent_in_octal() -> None:
    request = files.write_file("dev", "a b&c", b"", mode=0o640, user=None, parents=True)
    assert dict(request.params) == {"path": "a b&c", "mode": "0640", "parents": "true"}


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 4097, "ü" * 2049, "\ud800", b"bytes"])
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(InvalidRequest):
        files.query_file("dev", "stat", path, None)


def test_http_timeout_exceeds_the_timeout_of_a_run() -> None:
    assert (sandboxes.run("dev", RunRequest(cmd="x", timeout=300)).read_timeout or 0) > 300
    assert sandboxes.run("dev", RunRequest(cmd="x")).read_timeout is None


def test_binary_stdin_is_preserved() -> None:
    request = sandboxes.with_stdin(RunRequest(cmd="cat"), bytes(range(256)))
    assert msgspec.json.decode(msgspec.json.encode(request), type=RunRequest).stdin_base64 == bytes(range(256))


def test_content_of_every_kind_becomes_chunks_of_bytes() -> None:
    assert b"".join(pieces("é")) == "é".encode()
    assert b"".join(pieces(b"ab")) == b"ab"
    assert list(pieces(b"")) == []
    assert b"".join(pieces(io.BytesIO(b"x" * 600_000))) == b"x" * 600_000
    assert b"".join(pieces(io.StringIO("é"))) == "é".encode()
    assert list(pieces(iter([b"a", b"", "é"]))) == [b"a", "é".encode()]  # type: ignore[arg-type]


def test_chunk_that_is_not_bytes_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="a piece is a int"):
        list(pieces([1, 2]))  # type: ignore[list-item]


def test_wrong_types_are_rejected_by_name_before_sending() -> None:
    for given, says in (
        ({"cmd": ["echo", 1]}, "cmd: 1 is not a string"),
        ({"cmd": b"x"}, "neither a string nor a list"),
        ({"cmd": 5}, "neither a string nor a list"),
        ({"env": {"PORT": 8080}}, "env: 'PORT': 8080 is not a string"),
        ({"timeout": "5m"}, "timeout: '5m' is not a number"),
        ({"cwd": ""}, "cwd: empty"),
        ({"timeout": -1}, "out of range"),
    ):
        values: dict[str, Any] = {"cmd": "x", "env": {}, "cwd": None, "user": None, "timeout": None, **given}  # type: ignore[dict-item]
        with pytest.raises(InvalidRequest, match=says):
            run_request(**values)


def test_path_objects_are_accepted_in_place_of_strings() -> None:
    assert check_command(["cat", PurePosixPath("/a/b")]) == ["cat", "/a/b"]
    assert dict(files.query_file("dev", "stat", PurePosixPath("/a"), None).params) == {"path": "/a"}


def test_invalid_host_file_is_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, says in (
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
        ("none", "No such file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            check_contents([tmp_path / path])
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        check_contents([5])


def test_size_is_known_only_for_files_from_open(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, path.open() as text:
        assert (size_of(file), size_of(raw), size_of(text)) == (10, 10, None)
        file.seek(4)
        assert size_of(file) == 6
        assert b"".join(pieces(file)) == b"456789"
    with gzip.open(tmp_path / "z", "wb") as packed:
        packed.write(b"x" * 1000)
    with gzip.open(tmp_path / "z") as packed:
        assert size_of(packed) is None
        assert b"".join(pieces(packed)) == b"x" * 1000
    read, write = os.pipe()
    os.write(write, b"piped")
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert size_of(pipe) is None
        assert b"".join(pieces(pipe)) == b"piped"
    with open("/proc/self/status", "rb") as status:
        assert size_of(status) is None
    for other in (io.BytesIO(b"x"), b"x", "x", [b"x"], None):
        assert size_of(other) is None


def test_file_that_changes_while_sent_keeps_its_length_or_fails(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 600_000)
    with path.open("rb") as file:
        sent = pieces(file)
        first = next(sent)
        path.write_bytes(b"x" * 700_000)
        assert len(first) + sum(map(len, sent)) == 600_000
    with path.open("rb") as file:
        sent = pieces(file)
        next(sent)
        os.truncate(path, 300_000)
        with pytest.raises(InvalidRequest, match="shorter"):
            list(sent)
