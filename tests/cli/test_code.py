"""`skerry run -l` and `exec -l` as processes, with a scripted server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from client.test_code import BEGIN, end, value
from client.test_execute_code import MADE, serving
from support.cli import skerry
from support.lying_server import SANDBOX, Asked, Said, lying, refused, said

from skerry.codecs.frames import STDERR, STDOUT, encode

PICTURE = base64.b64encode(b"\x89PNG").decode()
NAMED = {**SANDBOX, "name": "dev"}


def sent(asked: list[Asked]) -> dict[str, Any]:
    return next(json.loads(one.body) for one in asked if one.path.endswith("/code"))


def test_output_and_values_go_to_stdout_and_errors_to_stderr(tmp_path: Path) -> None:
    error = {"name": "ValueError", "message": "no", "traceback": "Traceback …\nValueError: no", "line": 1}
    wire = (
        BEGIN
        + encode(STDOUT, b"printed")
        + value(text="42")
        + encode(STDERR, b"told\n")
        + end(exit_code=1, error=error)
    )
    (tmp_path / "a.py").write_text("print(input())")
    with lying(tmp_path, serving(wire)) as server:
        done = skerry("run", "-l", "python", "a.py", server=server.address, stdin=b"in", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"printed\n42\n")
    assert done.stderr == "told\nTraceback …\nValueError: no\n".encode()
    assert sent(server.asked) == {"code": "print(input())", "language": "python", "stdin_base64": "aW4="}


def test_code_is_read_from_stdin_or_the_command_line(tmp_path: Path) -> None:
    with lying(tmp_path, serving()) as server:
        assert skerry("run", "-l", "js", "-", server=server.address, stdin=b"6*7").returncode == 0
        assert sent(server.asked) == {"code": "6*7", "language": "js"}
        server.asked.clear()
        assert skerry("run", "--code", "6*7", server=server.address).returncode == 0
        assert sent(server.asked) == {"code": "6*7", "language": "python"}


def test_files_and_pictures_are_saved_only_below_out(tmp_path: Path) -> None:
    evil = {**MADE, "path": "/workspace/../../evil"}
    wire = BEGIN + value(False, text="<Figure>", png=PICTURE) + end(files=[MADE, evil])
    with lying(tmp_path, serving(wire)) as server:
        done = skerry("run", "--code", "x", "--out", "out", server=server.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().splitlines() == [
        "saved: out/a",
        "'../../evil' was not copied back: its name refers to another directory",
        "saved: out/result-1.png",
    ]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "a": b"ab",
        "result-1.png": b"\x89PNG",
    }


def test_unsaved_picture_prints_a_note(tmp_path: Path) -> None:
    with lying(tmp_path, serving(BEGIN + value(False, png=PICTURE) + end())) as server:
        done = skerry("run", "--code", "x", server=server.address)
        quiet = skerry("-q", "run", "--code", "x", server=server.address)
    assert b"1 picture drawn; --out DIR" in done.stderr
    assert quiet.stderr == b""


def test_json_has_the_whole_result(tmp_path: Path) -> None:
    with lying(tmp_path, serving(BEGIN + encode(STDOUT, b"out") + value(text="42") + end(files=[MADE]))) as server:
        done = skerry("run", "--json", "--code", "x", server=server.address)
    data = json.loads(done.stdout)
    assert (data["ok"], data["stdout"], data["text"], data["files"][0]["media_type"]) == (True, "out", "42", "text/csv")
    assert data["results"] == [{"data": {"text/plain": "42"}, "main": True, "cut": []}]


@pytest.mark.parametrize(
    ("how", "code", "hint"),
    [
        ({"exit_code": None, "signal": "SEGV"}, 139, b""),
        ({"exit_code": None, "timed_out": True, "hint": "it was interrupted"}, 124, b"hint: it was interrupted"),
    ],
)
def test_exit_code_follows_the_result_of_the_code(tmp_path: Path, how: dict[str, Any], code: int, hint: bytes) -> None:
    with lying(tmp_path, serving(BEGIN + end(**how))) as server:
        done = skerry("run", "--code", "x", server=server.address)
    assert (done.returncode, done.stderr.strip()) == (code, hint)


@pytest.mark.parametrize(("message", "told"), [("3", b""), ("no such file", b"no such file\n")])
def test_code_that_exits_prints_no_traceback(tmp_path: Path, message: str, told: bytes) -> None:
    error = {"name": "SystemExit", "message": message, "traceback": "Traceback …"}
    with lying(tmp_path, serving(BEGIN + end(exit_code=3, error=error))) as server:
        done = skerry("run", "--code", "x", server=server.address)
    assert (done.returncode, done.stderr) == (3, told)


@pytest.mark.parametrize(
    ("printed", "error", "told"),
    [
        ("ls: no\n", {"name": "Error", "message": "ls: no", "traceback": "ls: no"}, "ls: no\n"),
        (
            "a\nx at /tmp/skerry-code-e92cf02b101c90de/main.pl line 1.\n",
            {"name": "Error", "message": "x", "traceback": "a\nx at main.pl line 1."},
            "a\nx at /tmp/skerry-code-e92cf02b101c90de/main.pl line 1.\n",
        ),
        ("a", {"name": "SIGSEGV", "message": "Fault", "traceback": "a"}, "a\nSIGSEGV: Fault\n"),
        ("", {"name": "Error", "message": "exit code 1", "traceback": ""}, ""),
        ("no\nmore\n", {"name": "Error", "message": "no", "traceback": "no"}, "no\nmore\nno\n"),
    ],
)
def test_error_that_repeats_stderr_is_printed_once(
    tmp_path: Path, printed: str, error: dict[str, Any], told: str
) -> None:
    wire = BEGIN + encode(STDERR, printed.encode()) + end(exit_code=1, error=error)
    with lying(tmp_path, serving(wire)) as server:
        done = skerry("run", "-l", "bash", "--code", "x", server=server.address)
    assert (done.returncode, done.stderr.decode()) == (1, told)


def test_language_version_selects_the_image(tmp_path: Path) -> None:
    with lying(tmp_path, serving()) as server:
        for words in (("run", "-l", "python@3.12"), ("run", "--image", "base", "-l", "python@3.12")):
            assert skerry(*words, "--code", "x", server=server.address).returncode == 0
    made = [json.loads(asked.body).get("image", "base") for asked in server.asked if asked.path == "/v1/sandboxes"]
    assert made == ["python:3.12", "base"]


def test_exec_runs_code_in_a_context(tmp_path: Path) -> None:
    with lying(tmp_path, serving(BEGIN + value(text="1") + end(lost="it was stopped"), name="dev")) as server:
        done = skerry("exec", "--context", "c", "--code", "x", "dev", server=server.address)
        assert (done.returncode, done.stdout) == (0, b"1\n")
        assert b"was restarted: it was stopped" in done.stderr
        assert sent(server.asked) == {"code": "x", "context": "c"}
        (tmp_path / "a.js").write_text("1")
        server.asked.clear()
        done = skerry("exec", "--no-context", "-l", "js", "dev", "a.js", server=server.address, cwd=tmp_path)
        assert sent(server.asked) == {"code": "1", "language": "js", "fresh": True}


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-l", "python"), ("run", "-l", "python", "a", "b"), ("run", "--code", "x", "a"),
        ("run", "-l", "python", "no-such-file"), ("run", "-l", "python", "/"), ("run", "-l", "python", "/dev/zero"),
        ("exec", "dev"),
        ("exec", "-d", "--code", "x", "dev"), ("exec", "--context", "c", "dev", "true"),
        ("exec", "--out", "x", "dev", "true"),
    ],
)  # fmt: skip
def test_invalid_option_combinations_are_rejected(tmp_path: Path, words: tuple[str, ...]) -> None:
    with lying(tmp_path, lambda _: said(NAMED)) as server:
        done = skerry(*words, server=server.address, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert not any(asked.path.endswith("/code") for asked in server.asked)


def test_code_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff")
    done = skerry("run", "-l", "python", "a.py", server="unix:///nobody", cwd=tmp_path)
    assert (done.returncode, b"not UTF-8" in done.stderr) == (2, True)


def test_missing_toolchain_is_an_error_with_a_hint(tmp_path: Path) -> None:
    ordinary = serving()

    def answer(asked: Asked) -> Said:
        missing = refused(409, "toolchain_missing", "rustc is not there", hint="apt-get install rustc")
        return missing if asked.path.endswith("/code") else ordinary(asked)

    with lying(tmp_path, answer) as server:
        done = skerry("run", "-l", "rust", "--code", "x", server=server.address)
    assert done.returncode == 2
    assert done.stderr == b"error: rustc is not there\nhint: apt-get install rustc\n"


def test_shell_completes_languages(tmp_path: Path) -> None:
    with lying(tmp_path, serving()) as server:
        done = skerry(
            server=server.address, _SKERRY_COMPLETE="bash_complete", COMP_WORDS="skerry run -l p", COMP_CWORD="3"
        )
    assert done.stdout == b"plain,python\n"


def test_shell_completes_code_files(tmp_path: Path) -> None:
    for words in ("skerry run -l python a", "skerry run --code x --file a", "skerry exec -l js dev a"):
        count = str(len(words.split()) - 1)
        env = {"_SKERRY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
        assert skerry(**env, SKERRY_STATE_DIR=str(tmp_path)).stdout == b"file,a\n"
