"""`execute_code` against a scripted server: every field is present and correct."""

from __future__ import annotations

import json
import math
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client.test_code import BEGIN, end, value
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry import (
    ExecuteResult,
    async_execute_code,
    execute_code,
    execute_file,
    supported_languages,
    validate_language,
    validate_session_id,
    validate_timeout,
)
from skerry.client.results.execute import (
    MAX_CONTENT_BYTES,
    MAX_OUTPUT_CHARS,
    message_without_remedy,
    session_name,
    shortened,
)
from skerry.codecs.frames import MEDIA_TYPE, STDERR, STDOUT, encode
from skerry.errors import (
    CommandFailed,
    CommandTimeout,
    InvalidRequest,
    NetworkDenied,
    OutOfMemory,
    SandboxUnavailable,
    ServerUnreachable,
)
from skerry.types import Progress, check_name

MADE = {"name": "a", "path": "/workspace/a", "type": "file", "size": 2, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0,
        "media_type": "text/csv"}  # fmt: skip

ATTEMPT = {"id": "n-1", "at": 1.0, "kind": "connection", "host": "a.test", "decision": "denied", "why": "no rule"}


def serving(wire: bytes = BEGIN + end(), max_timeout: float | None = None, **sandbox: Any) -> Callable[[Asked], Said]:
    one = {**SANDBOX, "limits": {"memory": "512M", "cpus": 0.5}, **sandbox}

    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE":
            return Said(204)
        if asked.path.endswith("/code"):
            return Said(200, wire, MEDIA_TYPE)
        if asked.path.endswith("/languages"):
            python = {"name": "python", "aliases": ["py"], "versions": {"3.12": "python:3.12"}}
            return said({"languages": [python], "max_timeout": max_timeout})
        if asked.path.endswith("/files"):
            return Said(200, b"ab", "application/octet-stream") if asked.method == "GET" else said(MADE)
        if asked.method == "GET" and asked.path.endswith("/fresh"):
            return refused(404, "not_found")
        return said(one, 201)

    return answer


def told(tmp_path: Path, wire: bytes, **options: Any) -> ExecuteResult:
    with lying(Path(tempfile.mkdtemp(dir=tmp_path)), serving(wire)) as server:
        return execute_code("python", "x", server=server.address, **options)


def test_success_has_measured_usage_and_actual_limits(tmp_path: Path) -> None:
    usage = {"cpu_s": 0.25, "memory_peak": 3 << 20, "memory_start": 1 << 20, "cpu_peak_percent": 80.0}
    wire = BEGIN + encode(STDOUT, b"out") + encode(STDERR, b"err") + value(text="42")
    result = told(tmp_path, wire + end(duration_s=1.5, usage=usage, files=[MADE]), timeout=7, max_output_chars=500)
    assert json.loads(json.dumps(result)) == dict(result) == {
        "status": "success", "stdout": "out", "stderr": "err", "exit_code": 0, "execution_time": 1.5,
        "error_message": None, "text": "42", "truncated": False, "notice": None,
        "resource_usage": {
            "execution_time_seconds": 1.5, "cpu_seconds": 0.25, "cpu_average_percent": 100 * 0.25 / 1.5,
            "cpu_peak_percent": 80.0, "memory_start_mb": 1.0, "memory_peak_mb": 3.0,
        },
        "limits_applied": {"time_limit_seconds": 7, "memory_limit_mb": 512.0, "cpu_limit_cores": 0.5,
                           "max_output_chars": 500},
        "files": [{**MADE, "content": "YWI=", "target": None, "raw_path": None, "raw_target": None}],
        "results": [{"data": {"text/plain": "42"}, "main": True, "cut": []}], "denied": [],
    }  # fmt: skip
    assert (result["status"], result.get("exit_code"), result.get("nothing")) == ("success", 0, None)
    assert result.files[0].content == b"ab"
    assert pickle.loads(pickle.dumps(result)).limits_applied == result.limits_applied


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ({"exit_code": 1, "error": {"name": "ValueError", "message": "no"}}, "error", "ValueError: no"),
        ({"exit_code": 1, "error": {"name": "E", "message": "no", "line": 7}}, "error", "E: no (line 7)"),
        ({"exit_code": 3}, "error", "it ended with exit code 3"),
        ({"exit_code": None, "signal": "SEGV"}, "error", "it was killed by SIGSEGV"),
        ({"exit_code": None, "signal": "KILL", "oom_killed": True}, "error",
         "it ran out of memory; use less memory, or limits=Limits(memory=…) above 512 MiB"),
        ({"exit_code": 137, "oom_killed": True}, "error",
         "it ran out of memory; use less memory, or limits=Limits(memory=…) above 512 MiB"),
        ({"exit_code": 2, "hint": "use more"}, "error", "it ended with exit code 2; use more"),
        ({"exit_code": None, "timed_out": True, "duration_s": 30.2}, "timeout",
         "it timed out after 30 s; use a larger timeout=, at most the operator's max.timeout"),
        ({"exit_code": None, "timed_out": True, "duration_s": 5.04}, "timeout",
         "it timed out after 5 s; use a larger timeout=, at most the operator's max.timeout"),
    ],
)  # fmt: skip
def test_result_has_a_status_and_a_message(tmp_path: Path, how: dict[str, Any], status: str, message: str) -> None:
    result = told(tmp_path, BEGIN + end(**how))
    assert (result.status, result.error_message) == (status, message)
    assert result.exit_code == (-1 if how["exit_code"] is None or how.get("oom_killed") else how["exit_code"])


def test_stderr_has_the_traceback_of_a_kernel_once(tmp_path: Path) -> None:
    error = {"name": "ValueError", "message": "no", "traceback": "Traceback:\n  line 1\nValueError: no"}
    result = told(tmp_path, BEGIN + encode(STDERR, b"first") + end(exit_code=1, error=error))
    assert result.stderr == "first\nTraceback:\n  line 1\nValueError: no\n"
    printed = BEGIN + encode(STDERR, result.stderr.encode())
    assert told(tmp_path, printed + end(exit_code=1, error=error)).stderr == result.stderr


@pytest.mark.parametrize(
    ("how", "raised"),
    [
        ({"exit_code": 3}, CommandFailed),
        ({"exit_code": None, "timed_out": True}, CommandTimeout),
        ({"exit_code": None, "signal": "KILL", "oom_killed": True}, OutOfMemory),
        ({"exit_code": 1, "denied": [ATTEMPT]}, NetworkDenied),
    ],
)
def test_check_raises_the_matching_error(tmp_path: Path, how: dict[str, Any], raised: type[Exception]) -> None:
    with pytest.raises(raised) as caught:
        told(tmp_path, BEGIN + end(**how), check=True)
    assert type(caught.value) is raised
    assert told(tmp_path, BEGIN + end(**how)).status != "success"


@pytest.mark.parametrize("code", ["toolchain_missing", "invalid_request", "quota_exceeded", "not_found"])
def test_code_that_did_not_run_is_a_setup_error_with_the_reason(tmp_path: Path, code: str) -> None:
    ordinary = serving()

    def answer(asked: Asked) -> Said:
        return refused(409, code, "why", hint="how") if asked.path.endswith("/code") else ordinary(asked)

    with lying(tmp_path, answer) as server:
        result = execute_code("python", "x", server=server.address)
    assert (result.status, result.error_message, result.notice, result.exit_code) == (
        "setup_error", "why; how", "how", -1,
    )  # fmt: skip
    assert message_without_remedy(result) == "why"
    assert result.limits_applied.memory_limit_mb == 512
    assert server.asked[-1].method == "DELETE", "nothing is left behind"


@pytest.mark.parametrize("said", [Said(0), Said(200, BEGIN, MEDIA_TYPE, whole=False), refused(500, "internal")])
def test_code_that_may_have_started_is_not_a_setup_error(tmp_path: Path, said: Said) -> None:
    ordinary = serving()
    with lying(tmp_path, lambda asked: said if asked.path.endswith("/code") else ordinary(asked)) as server:
        result = execute_code("python", "x", server=server.address)
    assert (result.status, result.exit_code) == ("error", -1)


def test_result_survives_a_failed_deletion(tmp_path: Path) -> None:
    ordinary = serving(BEGIN + encode(STDOUT, b"done") + end())

    def answer(asked: Asked) -> Said:
        return refused(503, "sandbox_unavailable", "busy") if asked.method == "DELETE" else ordinary(asked)

    with lying(tmp_path, answer) as server:
        for check in (False, True):
            result = execute_code("python", "x", server=server.address, check=check)
            assert (result.status, result.stdout) == ("success", "done")
            assert result.notice == "the sandbox could not be deleted: busy"


def test_result_survives_files_that_cannot_be_read(tmp_path: Path) -> None:
    ordinary = serving(BEGIN + encode(STDOUT, b"done") + end(files=[MADE, MADE]))

    def answer(asked: Asked) -> Said:
        return refused(503, "sandbox_unavailable", "gone") if asked.path.endswith("/files") else ordinary(asked)

    with lying(tmp_path, answer) as server:
        result = execute_code("python", "x", server=server.address)
    assert (result.status, result.stdout, [file.content for file in result.files]) == ("success", "done", [None, None])
    assert result.notice == "the files could not be read: gone"


def test_failing_sandbox_or_server_is_a_status_and_raises_only_with_check(tmp_path: Path) -> None:
    failed = told(tmp_path, BEGIN)
    assert (failed.status, failed.exit_code) == ("error", -1)
    assert failed.error_message
    with pytest.raises(SandboxUnavailable):
        told(tmp_path, BEGIN, check=True)
    nowhere = f"unix://{tmp_path}/nobody.sock"
    absent = execute_code("python", "x", server=nowhere)
    assert (absent.status, absent.exit_code) == ("setup_error", -1)
    assert absent.keys() == failed.keys()
    with pytest.raises(ServerUnreachable):
        execute_code("python", "x", server=nowhere, check=True)


def test_long_output_is_truncated_and_marked(tmp_path: Path) -> None:
    result = told(tmp_path, BEGIN + encode(STDOUT, "ö".encode() * 1000) + end(), max_output_chars=100)
    assert (len(result.stdout), result.truncated) == (100, True)
    assert "output omitted" in result.stdout
    assert (shortened("x" * 100, 100), shortened("x" * 11, 10)) == ("x" * 100, "x" * 10)


def test_oversized_file_is_named_and_not_returned(tmp_path: Path) -> None:
    result = told(tmp_path, BEGIN + end(files=[{**MADE, "size": MAX_CONTENT_BYTES + 1}, MADE]))
    assert [file.content for file in result.files] == [None, b"ab"]


async def test_session_is_a_named_sandbox_that_stays(tmp_path: Path) -> None:
    with lying(tmp_path, serving(BEGIN + end(lost="it was stopped"), name="fresh")) as server:
        files = {"in.txt": "data"}
        result = await async_execute_code("python", "x", session_id="fresh", files=files, server=server.address)
    assert result.notice == "it was stopped"
    assert [(asked.method, asked.path.rpartition("/")[2]) for asked in server.asked] == [
        ("GET", "languages"), ("GET", "fresh"), ("POST", "sandboxes"), ("PUT", "files"), ("POST", "code"),
    ]  # fmt: skip
    assert json.loads(server.asked[2].body)["name"] == "fresh"
    assert server.asked[3].query["path"] == ["/workspace/in.txt"]


@pytest.mark.parametrize(("options", "image"), [({}, "python:3.12"), ({"image": "mine"}, "mine")])
def test_version_selects_the_image_unless_one_is_named(tmp_path: Path, options: Any, image: str) -> None:
    with lying(tmp_path, serving()) as server:
        assert execute_code("py@3.12", "x", server=server.address, **options).status == "success"
    made = next(json.loads(asked.body) for asked in server.asked if asked.path == "/v1/sandboxes")
    assert made.get("image", "base") == image


@pytest.mark.parametrize("language", ["cobol@1", "python@2"])
def test_unknown_language_or_version_is_a_setup_error_with_the_known_ones(tmp_path: Path, language: str) -> None:
    with lying(tmp_path, serving()) as server:
        result = execute_code(language, "x", server=server.address)
    assert result.status == "setup_error"
    assert "python" in (result.notice or "")
    assert result.limits_applied.memory_limit_mb is None, "there was nothing to limit"
    assert [asked.path for asked in server.asked] == ["/v1/languages"]


@pytest.mark.parametrize(
    "given",
    [
        {"code": 7}, {"code": " \n"}, {"timeout": 0}, {"timeout": 0.5}, {"timeout": "1"}, {"timeout": math.inf},
        {"session_id": "No!"}, {"session_id": "x" * 65}, {"session_id": ""}, {"files": {"a": 7}}, {"files": 7},
        {"stdin": 7}, {"max_output_chars": 0}, {"max_output_chars": MAX_OUTPUT_CHARS + 1}, {"language": ""},
        {"language": None}, {"code": "\ud800"}, {"code": "a\0"}, {"language": "\ud800"}, {"language": ["python"]},
        {"timeout": math.nan}, {"timeout": 1e9}, {"timeout": 10**400}, {"timeout": True}, {"stdin": "\ud800"},
        {"session_id": 7}, {"session_id": "\ud800"}, {"session_id": "a", "name": "b"}, {"name": "b"},
        {"files": {7: "a"}}, {"files": {"a": "\ud800"}}, {"files": {"\ud800": "a"}}, {"files": {"": "a"}},
        {"files": {"a": Path("\0")}}, {"files": {"a": None}}, {"files": None}, {"max_output_chars": "7"},
        {"unknown": 7}, {"": 7}, {"env": 7}, {"env": None}, {"env": {"A": 7}}, {"env": {7: "A"}}, {"env": {"=": "A"}},
        {"env": {"A": "\ud800"}}, {"labels": None}, {"labels": {"a": None}}, {"labels": {"a": 7}}, {"labels": ["a"]},
        {"volumes": 7}, {"volumes": None}, {"volumes": {"/a": 7}}, {"volumes": {7: "a"}}, {"volumes": {"/a": "\ud800"}},
        {"limits": 7}, {"limits": {"cpus": 1}}, {"lifecycle": 7}, {"lifecycle": None}, {"options": {}}, {"budget": 7},
        {"network": "open"}, {"image": 7}, {"image": None}, {"repo": 7}, {"repo": b"a"}, {"on_unknown": 7},
    ],
)  # fmt: skip
def test_invalid_arguments_are_setup_errors_before_anything_is_created(tmp_path: Path, given: dict[str, Any]) -> None:
    with lying(tmp_path, serving()) as server:
        arguments = {"language": "python", "code": "x", "server": server.address, **given}
        result = execute_code(**arguments)
        with pytest.raises(InvalidRequest):
            execute_code(**arguments, check=True)
    assert (result.status, result.exit_code) == ("setup_error", -1)
    assert result.error_message
    assert json.loads(json.dumps(result))["error_message"] == result.error_message
    assert server.asked == []


class Hostile(dict[str, str]):
    """A value that fails however it is used."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Any:
        raise KeyError("iterated")

    items = keys = values = __len__ = __eq__ = __iter__  # type: ignore[assignment]


def test_no_value_of_any_argument_raises(tmp_path: Path) -> None:
    values = [None, True, -1, math.nan, 10**400, "\0", "\ud800", b"\xff", [7], (None,), {7: 7}, {"a": None}, set(), 1j,
              object(), object, Hostile(), Path("/x"), memoryview(b"ab"), ValueError("x")]  # fmt: skip
    arguments = (
        "language code stdin timeout session_id files max_output_chars on_progress image repo env labels limits "
        "network secrets lifecycle budget options volumes on_unknown name bogus"
    )
    with lying(tmp_path, serving()) as server:
        for argument in arguments.split():
            for value in values:
                given: dict[str, Any] = {"language": "python", "code": "x", "server": server.address, argument: value}
                result = execute_code(**given)
                assert json.loads(json.dumps(result))["status"] in ("success", "setup_error"), argument


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"server": 7}, "server: a int is not an address"),
        ({"server": "ftp://a"}, "is not an address"),
        ({"secrets": 7}, "secrets: a int is not a list"),
        ({"secrets": [7]}, "secrets: a int is not a Secret"),
        ({"image": "\ud800"}, "not valid Unicode"),
        ({"repo": "/nowhere/\udcff"}, "/nowhere/"),
        ({"files": {"a": (piece for piece in [7])}}, "a piece is a int"),
        ({"files": {"a": (1 / 0 for _ in range(1))}}, "ZeroDivisionError: division by zero"),
    ],
)
def test_arguments_that_fail_later_are_setup_errors(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with lying(tmp_path, serving()) as server:
        result = execute_code(**{"language": "python", "code": "x", "server": server.address, **given})
    assert (result.status, result.exit_code) == ("setup_error", -1)
    assert message in (result.error_message or "")
    assert json.dumps(result)
    created = [asked.path for asked in server.asked if asked.method == "POST"]
    assert not created or server.asked[-1].method == "DELETE", "nothing is left behind"


def test_failing_callback_of_the_caller_is_a_status(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/languages"):
            return said({"languages": [{"name": "go", "image": "base-go"}]})
        if asked.path.endswith("/toolchain") or "languages/go" in asked.path:
            step = {"stage": "apt", "message": "gcc", "done": 1, "total": 2}
            return Said(200, json.dumps({"progress": step}).encode() + b"\n", "application/x-ndjson")
        return refused(404, "not_found")

    steps: list[Progress] = []
    with lying(tmp_path, answer) as server:
        broken = execute_code("go", "x", server=server.address, on_progress=steps.append)
        assert (broken.status, [step.stage for step in steps]) == ("setup_error", ["apt"])
        assert "without a result" in (broken.error_message or "")
        failed = execute_code("go", "x", server=server.address, on_progress=lambda step: 1 / 0)  # type: ignore[arg-type,return-value]
    assert (failed.status, failed.error_message) == ("setup_error", "ZeroDivisionError: division by zero")


def test_result_has_file_names_that_are_not_text(tmp_path: Path) -> None:
    odd = {**MADE, "name": "\ufffd", "path": "/workspace/\ufffd", "raw_path": "L3dvcmtzcGFjZS//"}
    result = told(tmp_path, BEGIN + end(files=[odd]))
    assert (result.status, result.files[0].path) == ("success", "/workspace/\udcff")
    shown = json.loads(json.dumps(result))["files"][0]
    assert (shown["path"], shown["name"], shown["raw_path"]) == ("/workspace/\ufffd", "\ufffd", "L3dvcmtzcGFjZS//")


@pytest.mark.parametrize(("timeout", "limit"), [(None, 10), (30, 10), (10, 10), (7, 7)])
def test_operators_maximum_lowers_the_default_timeout(tmp_path: Path, timeout: float | None, limit: float) -> None:
    with lying(tmp_path, serving(max_timeout=10)) as server:
        result = execute_code("python", "x", timeout=timeout, server=server.address)
    assert (result.status, result.limits_applied.time_limit_seconds) == ("success", limit)
    run = next(json.loads(asked.body) for asked in server.asked if asked.path.endswith("/code"))
    assert run["timeout"] == limit


def test_timeout_above_the_operators_maximum_is_a_setup_error_that_names_it(tmp_path: Path) -> None:
    with lying(tmp_path, serving(max_timeout=10)) as server:
        result = execute_code("python", "x", timeout=11, image="mine", server=server.address)
    assert (result.status, result.exit_code) == ("setup_error", -1)
    assert result.error_message == (
        "timeout: 11 s is more than this server's maximum of 10 s (max.timeout); use a timeout of at most 10"
    )
    assert [asked.path for asked in server.asked] == ["/v1/languages"], "nothing was created"


def test_no_timeout_is_the_default_timeout(tmp_path: Path) -> None:
    assert told(tmp_path, BEGIN + end(), timeout=None).limits_applied.time_limit_seconds == 30


def test_session_ids_keep_their_case_and_never_share_a_sandbox() -> None:
    ids = ["abc", "Abc", "ABC", "a_b", "-a", "a-", "_", "x" * 64, "sb-abcdefghij", "session-" + "0" * 32]
    names = [session_name(one) for one in ids]
    assert len(set(names)) == len(ids)
    assert names[0] == "abc"
    for name in (*names, *map(session_name, ("vl-aaaaaaaaaa", "sb-aaaaaaaaaa"))):
        check_name(name)


def test_file_is_run_in_the_language_of_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "a.PY"
    file.write_text("x = 1")
    with lying(tmp_path, serving()) as server:
        assert execute_file(file, server=server.address).status == "success"
        asked = json.loads(next(one.body for one in server.asked if one.path.endswith("/code")))
        assert (asked["language"], asked["code"]) == ("python", "x = 1")
        for path, said in ((tmp_path / "none.py", "No such file"), (tmp_path, "directory"), (tmp_path / "b.xyz", "")):
            if path.suffix == ".xyz":
                path.write_bytes(b"")
            result = execute_file(path, server=server.address)
            assert result.status == "setup_error"
            assert said in (result.error_message or "")
    assert execute_file(None).status == "setup_error"  # type: ignore[arg-type]
    for odd in ("\0.py", "/nowhere/\udcff.py", b"/nowhere/\xff.py"):
        result = execute_file(odd)  # type: ignore[arg-type]
        assert result.status == "setup_error", odd
        assert json.dumps(result)


def test_languages_are_listed_and_validated(tmp_path: Path) -> None:
    with lying(tmp_path, serving()) as server:
        assert supported_languages(server.address) == ["python"]
        assert validate_language("PY", server.address) == "python"
        with pytest.raises(InvalidRequest):
            validate_language("cobol", server.address)
    assert (validate_timeout(None), validate_timeout(7)) == (30, 7)
    for timeout in (0, 10**9, math.nan, "7"):
        with pytest.raises(InvalidRequest, match="timeout"):
            validate_timeout(timeout)  # type: ignore[arg-type]
    assert validate_session_id("Ab_1-") == "Ab_1-"
