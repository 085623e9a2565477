"""`sandbox.code` against a scripted server: the requests, the handling of the responses, and the limits of a
hostile one can do."""

# ruff: noqa: SIM117  (a server, then what is expected of a client of it)

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry import AsyncSandbox, CodeEvent, CodeResult, Output, Result, Sandbox, SkerryError
from skerry.client.results.code import CharacterJoiner
from skerry.codecs.frames import ERROR, EXIT, MAX_RESULT, MEDIA_TYPE, RESULT, STARTED, STDERR, STDOUT, encode
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest, NotFound, SandboxUnavailable
from skerry.results import CodeValue
from skerry.types import MAX_RESULTS

CONTEXT = {
    "name": "c1",
    "language": "python",
    "state": "new",
    "user": "user",
    "cwd": "/workspace",
    "created_at": 1.0,
    "used_at": 1.0,
}
BEGIN = encode(STARTED, b'{"id":"p-1","pid":7}')


def end(**more: Any) -> bytes:
    return encode(
        EXIT, json.dumps({"id": "p-1", "exit_code": 0, "duration_s": 0.1, "language": "python", **more}).encode()
    )


def value(main: bool = True, **forms: str) -> bytes:
    names = {"text": "text/plain", "html": "text/html", "png": "image/png", "json": "application/json",
             "chart": "application/vnd.skerry.chart+json"}  # fmt: skip
    data = {names[form]: told for form, told in forms.items()}
    return encode(RESULT, json.dumps({"data": data, "main": main}).encode())


def with_code(wire: bytes, *, whole: bool = True) -> Callable[[Asked], Said]:
    def answer(asked: Asked) -> Said:
        if asked.method == "DELETE" or asked.path.endswith(("/interrupt", "/restart")):
            return Said(204)
        if asked.path.endswith("/code"):
            return Said(200, wire, MEDIA_TYPE, whole)
        if asked.path.endswith("/contexts") and asked.method == "GET":
            return said({"contexts": [CONTEXT]})
        if "/contexts" in asked.path:
            return said(CONTEXT)
        if asked.path.endswith("/languages"):
            return said({"languages": [{"name": "python", "version": "3.11.2", "versions": {"3.12": "python:3.12"}}]})
        return said(SANDBOX, 201)

    return answer


def ran(tmp_path: Path, wire: bytes, **options: Any) -> CodeResult:
    (directory := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
    with lying(directory, with_code(wire)) as server, Sandbox(server=server.address) as sandbox:
        return sandbox.code.run("x", **options)


def test_code_result_is_assembled_from_frames(tmp_path: Path) -> None:
    seen: list[Output] = []
    wire = (
        BEGIN + encode(STDOUT, b"a\xff") + value(False, text="first") + encode(STDERR, b"e") + value(text="42") + end()
    )
    with lying(tmp_path, with_code(wire)) as server, Sandbox(server=server.address) as sandbox:
        result = sandbox.code.run("6 * 7", on_output=seen.append)
    assert isinstance(result, Result)
    assert (result.ok, result.text, result.stdout_bytes, result.stderr) == (True, "42", b"a\xff", "e")
    assert [one.text for one in result.results] == ["first", "42"]
    assert [(one.stream, one.data, one.offset) for one in seen] == [("stdout", b"a\xff", 2), ("stderr", b"e", 3)]
    ask = next(a for a in server.asked if a.path.endswith("/code"))
    assert json.loads(ask.body) == {"code": "6 * 7", "language": "python", "timeout": 300}
    assert ask.headers["accept"] == MEDIA_TYPE


async def test_events_are_ordered_and_never_split_characters(tmp_path: Path) -> None:
    error = {"name": "NameError", "message": "no x", "traceback": "Traceback", "line": 1}
    wire = (
        BEGIN + encode(STDOUT, "aö"[:2].encode()[:2]) + value(text="1") + encode(STDOUT, "ö".encode()[1:] + b"\xe2\x82")
        + end(exit_code=1, error=error)
    )  # fmt: skip
    with lying(tmp_path, with_code(wire)) as server:
        async with AsyncSandbox(server=server.address) as sandbox:
            seen = [event async for event in sandbox.code.stream("x")]
    assert [event.type for event in seen] == ["stdout", "result", "stdout", "stdout", "error", "end"]
    assert [event.data for event in seen[:4]] == [b"a", b"", "ö".encode(), b"\xe2\x82"]
    assert seen[1].result is not None
    assert seen[1].result.text == "1"
    assert seen[4].error is not None
    assert seen[4].error.name == "NameError"
    assert seen[5].end is not None
    assert seen[5].end.stdout_bytes == "aö".encode() + b"\xe2\x82"


@pytest.mark.parametrize("text", ["plain", "ö", "€uro€", "🏝", "a🏝b", ""])
def test_characters_split_across_frames_are_joined(text: str) -> None:
    raw = text.encode()
    for at in range(len(raw) + 1):
        between = CharacterJoiner()
        pieces = [between.whole(raw[:at]), between.whole(raw[at:]), between.rest()]
        assert "".join(piece.decode() for piece in pieces) == text


def test_non_utf8_bytes_are_not_buffered() -> None:
    between = CharacterJoiner()
    assert between.whole(b"\x80\x80\x80\x80\xff") == b"\x80\x80\x80\x80\xff"
    assert between.rest() == b""


def test_value_has_its_forms_by_name(tmp_path: Path) -> None:
    chart = {"title": "t", "axes": [{"series": [{"label": "s", "x": [1], "y": [2]}]}]}
    forms = {"text": "t", "html": "<b>", "png": base64.b64encode(b"\x89PNG").decode(), "json": '{"a":[1]}'}
    result = ran(tmp_path, BEGIN + value(chart=json.dumps(chart), **forms) + end())
    one = result.results[0]
    assert (one.text, one.html, one.png, one.json) == ("t", "<b>", b"\x89PNG", {"a": [1]})
    assert (one.svg, one.jpeg, one.latex, one.markdown, one.main, one.cut) == (None, None, None, None, True, ())
    assert one.chart is not None
    assert one.chart.axes[0].series[0].y == [2]


@pytest.mark.parametrize(
    ("form", "told"),
    [("png", "not base64!"), ("json", "{"), ("json", "[" * 100_000), ("json", "9" * 5000), ("chart", '{"axes": 7}')],
)
def test_invalid_form_is_an_error_only_on_access(tmp_path: Path, form: str, told: str) -> None:
    result = ran(tmp_path, BEGIN + value(text="fine", **{form: told}) + end())
    assert result.text == "fine"
    with pytest.raises(SkerryError, match="cannot be read"):
        getattr(result.results[0], form)


def test_error_and_timeout_are_results_unless_check_is_set(tmp_path: Path) -> None:
    error = {"name": "ValueError", "message": "no", "traceback": "line 1\nValueError: no", "line": 1}
    failed, late = BEGIN + end(exit_code=1, error=error), BEGIN + end(exit_code=None, timed_out=True, after="kept")
    assert ran(tmp_path, failed).error is not None
    with pytest.raises(CommandFailed, match="ValueError: no") as caught:
        ran(tmp_path, failed, check=True)
    assert isinstance(caught.value.result, CodeResult)
    assert ran(tmp_path, late).after == "kept"
    with pytest.raises(CommandTimeout, match="timed out"):
        ran(tmp_path, late, check=True)


def test_code_that_ended_without_an_error_reports_its_exit(tmp_path: Path) -> None:
    wire = BEGIN + encode(STDERR, b"boom") + end(exit_code=None, signal="SEGV", after="replaced")
    with pytest.raises(CommandFailed, match="SIGSEGV\nboom"):
        ran(tmp_path, wire, check=True)


def test_created_files_are_read_from_the_result(tmp_path: Path) -> None:
    raw = b"/workspace/\xff.csv"
    file = {"name": "?", "path": "?", "type": "file", "size": 3, "mode": 420, "uid": 0, "gid": 0, "mtime": 1.0,
            "media_type": "text/csv", "raw_path": base64.b64encode(raw).decode()}  # fmt: skip
    code = with_code(BEGIN + end(files=[file]))

    def answer(asked: Asked) -> Said:
        return Said(200, b"a,b", "application/octet-stream") if asked.path.endswith("/files") else code(asked)

    with lying(tmp_path, answer) as server, Sandbox(server=server.address) as sandbox:
        (made,) = sandbox.code.run("x").files
        assert (made.read_bytes(), made.read_text(), made.media_type) == (b"a,b", "a,b", "text/csv")
        assert made.path == raw.decode("utf-8", "surrogateescape")
        assert "_sandbox" not in repr(made)


@pytest.mark.parametrize("wire", [b"", BEGIN, BEGIN + encode(STDOUT, b"half"), BEGIN + value(text="1")])
def test_output_that_ends_before_the_code_is_a_sandbox_error(tmp_path: Path, wire: bytes) -> None:
    with pytest.raises(SandboxUnavailable):
        ran(tmp_path, wire)


@pytest.mark.parametrize(
    "wire",
    [
        encode(RESULT, b"[]"),
        encode(RESULT, b'{"data": {"text/plain": 7}}'),
        encode(EXIT, b'{"id": "p-1", "exit_code": 0, "duration_s": 1}'),
        bytes((RESULT,)) + (MAX_RESULT + 1).to_bytes(4),
        value(text="x") * (MAX_RESULTS + 1) + end(),
        encode(RESULT, json.dumps({"data": dict.fromkeys(map(str, range(1000)), "")}).encode()) + end(),
        encode(RESULT, json.dumps({"cut": ["x"] * 1000}).encode()) + end(),
    ],
)
def test_missing_or_excessive_response_is_rejected(tmp_path: Path, wire: bytes) -> None:
    with pytest.raises(SkerryError):
        ran(tmp_path, BEGIN + wire)


def test_values_with_an_excessive_total_size_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SkerryError, match="more results"):
        ran(tmp_path, BEGIN + value(text="x" * (15 << 20)) * 5 + end())


def test_values_that_are_long_only_when_encoded_are_read(tmp_path: Path) -> None:
    text = "\0" * (1 << 20)
    result = ran(tmp_path, BEGIN + value(text=text) * 12 + end())
    assert [value.text == text for value in result.results] == [True] * 12


def test_end_with_very_many_files_is_read(tmp_path: Path) -> None:
    file = {"name": "f", "path": "/workspace/" + "f" * 3000, "type": "file", "size": 3, "mode": 420, "uid": 0, "gid": 0,
            "mtime": 1.0}  # fmt: skip
    result = ran(tmp_path, BEGIN + end(files=[file] * 1000, files_cut=True))
    assert (len(result.files), result.files_cut) == (1000, True)


def test_error_in_the_stream_is_raised_with_its_type(tmp_path: Path) -> None:
    error = json.dumps({"error": {"code": "sandbox_unavailable", "message": "it died"}}).encode()
    with pytest.raises(SandboxUnavailable, match="it died"):
        ran(tmp_path, BEGIN + encode(ERROR, error))


def test_unknown_language_error_comes_from_the_server(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        if asked.path.endswith("/code"):
            return refused(400, "invalid_request", "there is no language 'cobol': python, javascript")
        return Said(204) if asked.method == "DELETE" else said(SANDBOX, 201)

    with lying(tmp_path, answer) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(InvalidRequest, match="python, javascript"):
            sandbox.code.run("x", "cobol")


def test_context_is_requested_by_name(tmp_path: Path) -> None:
    with lying(tmp_path, with_code(BEGIN + end(context="c1"))) as server, Sandbox(server=server.address) as sandbox:
        context = sandbox.code.context("python", "c1", cwd="/tmp", env={"A": "1"})
        assert context.run("x", stdin="in", timeout=None).context == "c1"
        sandbox.code.run("x", context=context, stdin=b"\xff")
        assert [event.type for event in context.stream("x")] == ["end"]
        context.interrupt()
        context.restart()
        assert context.info().name == sandbox.code.get("c1").name == sandbox.code.contexts()[0].name == "c1"
        context.delete()
    bodies = [json.loads(a.body) for a in server.asked if a.body and a.path.endswith(("/contexts", "/code"))]
    assert bodies == [
        {"name": "c1", "cwd": "/tmp", "env": {"A": "1"}},
        {"code": "x", "context": "c1", "stdin": "in"},
        {"code": "x", "context": "c1", "stdin_base64": "/w==", "timeout": 300},
        {"code": "x", "context": "c1", "timeout": 300},
    ]
    told = [(a.method, a.path.rpartition("contexts/")[2]) for a in server.asked if "/contexts/" in a.path]
    assert told == [("POST", "c1/interrupt"), ("POST", "c1/restart"), ("GET", "c1"), ("GET", "c1"), ("DELETE", "c1")]


def test_invalid_context_is_rejected_before_sending(tmp_path: Path) -> None:
    with lying(tmp_path, with_code(b"")) as server, Sandbox(server=server.address) as sandbox:
        for name in ("../x", "", "A"):
            with pytest.raises(NotFound):
                sandbox.code.get(name)
    assert not any("/contexts" in a.path for a in server.asked)


@pytest.mark.parametrize(
    "given",
    [
        {"code": b"x"},
        {"code": "x\0"},
        {"code": "x" * (9 << 20)},
        {"stdin": 7},
        {"stdin": "\ud800"},
        {"stdin": b"x" * (17 << 20)},
        {"timeout": "1"},
        {"timeout": 0},
        {"language": "py thon\n"},
        {"language": 3},
        {"context": "c", "fresh": True},
        {"env": {"A": 1}},
        {"cwd": ""},
    ],
)
def test_invalid_arguments_are_rejected_before_sending(tmp_path: Path, given: dict[str, Any]) -> None:
    with lying(tmp_path, with_code(b"")) as server, Sandbox(server=server.address) as sandbox:
        with pytest.raises(InvalidRequest):
            sandbox.code.run(**{"code": "x", **given})
    assert not any(a.path.endswith("/code") for a in server.asked)


def test_failed_callback_closes_the_connection(tmp_path: Path) -> None:
    def on_output(_: Output) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ran(tmp_path, BEGIN + encode(STDOUT, b"x") + end(), on_output=on_output)


def test_languages_are_listed_for_server_and_sandbox(tmp_path: Path) -> None:
    with lying(tmp_path, with_code(b"")) as server, Sandbox(server=server.address) as sandbox:
        assert sandbox.code.languages()[0].version == "3.11.2"
        assert sandbox.client.languages()[0].versions == {"3.12": "python:3.12"}
    assert [a.path for a in server.asked if a.path.endswith("languages")] == [
        f"/v1/sandboxes/{SANDBOX['id']}/languages",
        "/v1/languages",
    ]


def test_events_and_values_are_comparable() -> None:
    assert CodeEvent(type="stdout", data=b"\xff").text == "�"
    assert CodeValue(data={"text/plain": "1"}) == CodeValue(data={"text/plain": "1"})
