"""`execute_code` against a server that says what a test wants: every field is there, and is what was told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client.lying import SANDBOX, Asked, Said, lying, refused, said
from client.test_code import BEGIN, end, value

from skerry import ExecuteResult, async_execute_code, execute_code
from skerry.client.execute_outcome import CONTENT_MOST, OUTPUT_CHARS_MOST, shortened
from skerry.client.frames import MEDIA_TYPE, STDERR, STDOUT, encode
from skerry.errors import InvalidRequest, SandboxUnavailable, ServerUnreachable

MADE = {"name": "a", "path": "/workspace/a", "type": "file", "size": 2, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0,
        "media_type": "text/csv"}  # fmt: skip


def serving(wire: bytes = BEGIN + end(), **sandbox: Any) -> Callable[[Asked], Said]:
    one = {**SANDBOX, "limits": {"memory": "512M", "cpus": 0.5}, **sandbox}

    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE":
            return Said(204)
        if asked.path.endswith("/code"):
            return Said(200, wire, MEDIA_TYPE)
        if asked.path.endswith("/languages"):
            return said({"languages": [{"name": "python", "aliases": ["py"], "versions": {"3.12": "python:3.12"}}]})
        if asked.path.endswith("/files"):
            return Said(200, b"ab", "application/octet-stream") if asked.method == "GET" else said(MADE)
        if asked.method == "GET" and asked.path.endswith("/fresh"):
            return refused(404, "not_found")
        return said(one, 201)

    return answer


def told(tmp_path: Path, wire: bytes, **options: Any) -> ExecuteResult:
    with lying(tmp_path, serving(wire)) as server:
        return execute_code("python", "x", server=server.address, **options)


def test_every_field_of_a_success_is_what_was_measured_and_what_held(tmp_path: Path) -> None:
    usage = {"cpu_s": 0.25, "memory_peak": 3 << 20}
    wire = BEGIN + encode(STDOUT, b"out") + encode(STDERR, b"err") + value(text="42")
    result = told(tmp_path, wire + end(duration_s=1.5, usage=usage, files=[MADE]), timeout=7, max_output_chars=500)
    assert json.loads(msgspec.json.encode(result)) == {
        "status": "success", "stdout": "out", "stderr": "err", "exit_code": 0, "execution_time": 1.5,
        "error_message": None, "text": "42", "truncated": False, "notice": None,
        "resource_usage": {"execution_time_seconds": 1.5, "memory_peak_mb": 3.0, "cpu_seconds": 0.25},
        "limits_applied": {"time_limit_seconds": 7, "memory_limit_mb": 512.0, "cpu_limit_cores": 0.5,
                           "max_output_chars": 500},
        "files": [{"path": "/workspace/a", "size": 2, "media_type": "text/csv", "content": "YWI="}],
        "results": [{"data": {"text/plain": "42"}, "main": True, "cut": []}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ({"exit_code": 1, "error": {"name": "ValueError", "message": "no"}}, "execution_error", "ValueError: no"),
        ({"exit_code": 3}, "execution_error", "it ended with exit code 3"),
        ({"exit_code": None, "signal": "SEGV"}, "execution_error", "it was ended by SIGSEGV"),
        ({"exit_code": None, "signal": "KILL", "oom_killed": True}, "execution_error", "it ran out of memory"),
        ({"exit_code": None, "timed_out": True}, "timeout", "it ran out of time after 30 s"),
    ],
)
def test_how_code_ended_is_a_status_and_a_message(
    tmp_path: Path, how: dict[str, Any], status: str, message: str
) -> None:
    result = told(tmp_path, BEGIN + end(**how))
    assert (result.status, result.error_message) == (status, message)


@pytest.mark.parametrize("code", ["setup_failed", "invalid_request", "quota_exceeded", "not_found"])
def test_code_that_was_not_run_is_a_setup_error_that_says_why(tmp_path: Path, code: str) -> None:
    ordinary = serving()

    def answer(asked: Asked) -> Said:
        return refused(409, code, "why", hint="how") if asked.path.endswith("/code") else ordinary(asked)

    with lying(tmp_path, answer) as server:
        result = execute_code("python", "x", server=server.address)
    assert (result.status, result.error_message, result.notice, result.exit_code) == ("setup_error", "why", "how", None)
    assert result.limits_applied.memory_limit_mb == 512
    assert server.asked[-1].method == "DELETE", "nothing is left behind"


def test_a_sandbox_or_a_server_that_fails_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable):
        told(tmp_path, BEGIN)
    with pytest.raises(ServerUnreachable):
        execute_code("python", "x", server=f"unix://{tmp_path}/nobody.sock")


def test_output_is_cut_to_so_many_characters_and_says_so(tmp_path: Path) -> None:
    result = told(tmp_path, BEGIN + encode(STDOUT, "ö".encode() * 1000) + end(), max_output_chars=100)
    assert (len(result.stdout), result.truncated) == (100, True)
    assert "left out here" in result.stdout
    assert (shortened("x" * 100, 100), shortened("x" * 11, 10)) == ("x" * 100, "x" * 10)


def test_a_file_that_is_too_large_is_named_and_does_not_come_along(tmp_path: Path) -> None:
    result = told(tmp_path, BEGIN + end(files=[{**MADE, "size": CONTENT_MOST + 1}, MADE]))
    assert [file.content for file in result.files] == [None, b"ab"]


async def test_a_session_is_a_sandbox_of_that_name_and_stays(tmp_path: Path) -> None:
    with lying(tmp_path, serving(BEGIN + end(lost="it was stopped"), name="fresh")) as server:
        files = {"in.txt": "data"}
        result = await async_execute_code("python", "x", session_id="fresh", files=files, server=server.address)
    assert result.notice == "it was stopped"
    assert [(asked.method, asked.path.rpartition("/")[2]) for asked in server.asked] == [
        ("GET", "fresh"), ("POST", "sandboxes"), ("PUT", "files"), ("POST", "code"),
    ]  # fmt: skip
    assert json.loads(server.asked[1].body)["name"] == "fresh"
    assert server.asked[2].query["path"] == ["/workspace/in.txt"]


@pytest.mark.parametrize(("options", "image"), [({}, "python:3.12"), ({"image": "mine"}, "mine")])
def test_a_version_chooses_the_image_unless_one_is_named(tmp_path: Path, options: Any, image: str) -> None:
    with lying(tmp_path, serving()) as server:
        assert execute_code("py@3.12", "x", server=server.address, **options).status == "success"
    made = next(json.loads(asked.body) for asked in server.asked if asked.path == "/v1/sandboxes")
    assert made.get("image", "base") == image


@pytest.mark.parametrize("language", ["cobol@1", "python@2"])
def test_a_language_or_version_that_nobody_has_is_a_setup_error_with_those_that_there_are(
    tmp_path: Path, language: str
) -> None:
    with lying(tmp_path, serving()) as server:
        result = execute_code(language, "x", server=server.address)
    assert result.status == "setup_error"
    assert "python" in (result.notice or "")
    assert result.limits_applied.memory_limit_mb is None, "there was nothing to limit"
    assert [asked.path for asked in server.asked] == ["/v1/languages"]


@pytest.mark.parametrize(
    "given",
    [
        {"code": 7}, {"timeout": 0}, {"session_id": "No!"}, {"files": {"a": 7}}, {"stdin": 7}, {"max_output_chars": 0},
        {"max_output_chars": OUTPUT_CHARS_MOST + 1}, {"language": ""},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_is_made(tmp_path: Path, given: dict[str, Any]) -> None:
    with lying(tmp_path, serving()) as server, pytest.raises(InvalidRequest):
        execute_code(**{"language": "python", "code": "x", "server": server.address, **given})
    assert server.asked == []
