"""Runs over HTTP with real sandboxes: the three forms of an answer, callers that leave, readers that are slow."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.server import Server, wait_until

from skerry.codecs.frames import EXIT, MEDIA_TYPE, STARTED, STDERR, STDOUT, FrameDecoder
from skerry.config import socket_path

NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def sandbox_path(http: httpx2.Client) -> Iterator[str]:
    made = http.post("/v1/sandboxes", json={})
    assert made.status_code == 201, made.text
    yield f"/v1/sandboxes/{made.json()['id']}"
    http.delete(f"/v1/sandboxes/{made.json()['id']}").raise_for_status()


def run(
    http: httpx2.Client, sandbox_path: str, cmd: Any, accept: str = "application/json", **more: Any
) -> httpx2.Response:
    body = {"cmd": cmd, **more}
    return http.post(f"{sandbox_path}/processes", params={"wait": "true"}, json=body, headers={"Accept": accept})


def alive(http: httpx2.Client, sandbox_path: str, marker: str) -> bool:
    return bool(run(http, sandbox_path, ["pgrep", "-f", marker], user="root").json()["exit_code"] == 0)


def test_run_returns_json(http: httpx2.Client, sandbox_path: str) -> None:
    answer = run(http, sandbox_path, "echo out; echo err >&2; exit 3")
    assert answer.status_code == 200
    result = answer.json()
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out\n", "err\n", 3)


def test_non_utf8_output_is_also_base64(http: httpx2.Client, sandbox_path: str) -> None:
    result = run(http, sandbox_path, r"printf 'a\377b'").json()
    assert base64.b64decode(result["stdout_base64"]) == b"a\xffb"


def test_run_returns_frames(http: httpx2.Client, sandbox_path: str) -> None:
    answer = run(http, sandbox_path, r"printf 'a\377'; printf e >&2; exit 4", MEDIA_TYPE)
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    frames = list(FrameDecoder().feed(answer.content))
    assert frames[0][0] == STARTED
    assert json.loads(frames[0][1])["id"].startswith("p-")
    assert b"".join(data for kind, data in frames if kind == STDOUT) == b"a\xff"
    assert b"".join(data for kind, data in frames if kind == STDERR) == b"e"
    assert frames[-1][0] == EXIT
    assert json.loads(frames[-1][1])["exit_code"] == 4


def test_run_streams_server_sent_events(http: httpx2.Client, sandbox_path: str) -> None:
    body = {"cmd": "printf 'a\\n\\nb\\r\\n'; exit 3"}
    url = f"{sandbox_path}/processes?wait=true"
    answer = http.post(url, json=body, headers={"Accept": "text/event-stream, */*;q=0.1"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, last = answer.text.split("\n\n")
    assert last == ""
    lines = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(line.get("stdout", "") for line in lines) == "a\n\nb\r\n"
    assert lines[-1]["exit"]["exit_code"] == 3
    plain = http.post(url, json=body, headers={"Accept": f"{NDJSON}, text/event-stream"})
    assert plain.headers["content-type"].startswith(NDJSON)


@pytest.mark.parametrize(
    ("method", "path", "body", "key"),
    [
        ("POST", "{sandbox}/code", {"code": "print(6 * 7)"}, "exit"),
        ("GET", "{sandbox}/processes/{process}/output?follow=true", None, "exit"),
        ("GET", "{sandbox}/trace", None, "kind"),
        ("GET", "/v1/events?since=0", None, "type"),
        ("GET", "/v1/events?follow=true", None, "type"),
        ("GET", "{sandbox}/files/watch?path=/workspace", None, "type"),
        ("GET", "/v1/audit/export", None, "prev"),
    ],
)
def test_lines_of_each_kind_of_stream_are_also_server_sent_events(
    http: httpx2.Client, sandbox_path: str, method: str, path: str, body: Any, key: str
) -> None:
    process = run(http, sandbox_path, "echo out").json()["id"]
    url = path.format(sandbox=sandbox_path, process=process)
    found, endless = [], "follow=true" in url or "watch" in url
    with http.stream(method, url, json=body, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in filter(None, answer.iter_lines()):
            assert line.startswith("data: ")
            found.append(json.loads(line.removeprefix("data: ")))
            if endless and key in found[-1]:
                break
    assert any(key in one for one in found), found


def test_run_streams_ndjson(http: httpx2.Client, sandbox_path: str) -> None:
    cmd = "echo one; until test -e /tmp/go; do sleep 0.02; done; echo zwei ü"
    body = {"cmd": cmd}
    with http.stream(
        "POST", f"{sandbox_path}/processes", params={"wait": "true"}, json=body, headers={"Accept": NDJSON}
    ) as answer:
        lines = answer.iter_lines()
        assert "started" in json.loads(next(lines))
        assert json.loads(next(lines)) == {"stdout": "one\n"}
        assert run(http, sandbox_path, ["touch", "/tmp/go"]).json()["exit_code"] == 0
        rest = [json.loads(line) for line in lines]
    assert rest[0] == {"stdout": "zwei ü\n"}
    assert rest[-1]["exit"]["exit_code"] == 0


@pytest.mark.parametrize("accept", ["application/json", NDJSON, MEDIA_TYPE])
def test_disconnect_ends_the_command_with_its_tree(
    server: Server, http: httpx2.Client, sandbox_path: str, accept: str
) -> None:
    marker = f"marker-{accept.replace('/', '-').replace('.', '-').replace('+', '-')}"
    body = json.dumps({"cmd": f"setsid sh -c 'sleep 1000; : {marker}' & sh -c 'sleep 1000; : {marker}'"}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path(server.state_dir)))
        head = f"POST {sandbox_path}/processes?wait=true HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: alive(http, sandbox_path, marker), "the command to run")
    wait_until(lambda: not alive(http, sandbox_path, marker), "the command's tree to be gone")


def test_input_is_sent_with_the_run_or_later(http: httpx2.Client, sandbox_path: str) -> None:
    assert run(http, sandbox_path, ["cat"], stdin="hello").json()["stdout"] == "hello"
    raw = base64.b64encode(b"\0\xff").decode()
    assert base64.b64decode(run(http, sandbox_path, ["cat"], stdin_base64=raw).json()["stdout_base64"]) == b"\0\xff"


def test_input_can_be_streamed_while_output_is_read(http: httpx2.Client, sandbox_path: str) -> None:
    body = {"cmd": ["sha256sum"], "stdin_stream": True}
    with http.stream(
        "POST", f"{sandbox_path}/processes", params={"wait": "true"}, json=body, headers={"Accept": NDJSON}
    ) as answer:
        lines = answer.iter_lines()
        process = json.loads(next(lines))["started"]["id"]
        chunks = (b"x" * 65536 for _ in range(200))
        sent = http.post(f"{sandbox_path}/processes/{process}/stdin", params={"close": "true"}, content=chunks)
        assert sent.status_code == 204
        rest = [json.loads(line) for line in lines]
    whole = run(http, sandbox_path, "head -c 13107200 /dev/zero | tr '\\0' x | sha256sum").json()["stdout"]
    assert rest[0]["stdout"] == whole


def test_slow_reader_slows_the_command_and_uses_no_memory(
    server: Server, http: httpx2.Client, sandbox_path: str
) -> None:
    def memory() -> int:
        assert server.process is not None
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    before = memory()
    body = {"cmd": "head -c 300M /dev/zero; echo end > /tmp/wrote-all"}
    with http.stream(
        "POST", f"{sandbox_path}/processes", params={"wait": "true"}, json=body, headers={"Accept": MEDIA_TYPE}
    ) as answer:
        raw = answer.iter_raw()
        next(raw)
        for _ in range(20):
            assert run(http, sandbox_path, ["test", "-e", "/tmp/wrote-all"]).json()["exit_code"] == 1
        size = sum(len(piece) for piece in raw)
    assert size > 299 << 20
    assert memory() - before < 64 << 10


def test_ten_mib_without_a_newline_are_bounded(http: httpx2.Client, sandbox_path: str) -> None:
    result = run(http, sandbox_path, "head -c 10M /dev/zero | tr '\\0' x").json()
    assert result["truncated"] is True
    assert 1 << 20 <= len(result["stdout"]) < (1 << 20) + 200


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"cmd": []}, 400, "empty"),
        ({"cmd": ""}, 400, "empty"),
        ({"cmd": "a\0b"}, 400, "NUL"),
        ({"cmd": "x", "env": {"A=B": "x"}}, 400, "A=B"),
        ({"cmd": "x", "cwd": "not-there"}, 400, "/workspace/not-there"),
        ({"cmd": "x", "cwd": "/not/there"}, 400, "/not/there"),
        ({"cmd": "x", "user": "nobody-such"}, 400, "nobody-such"),
        ({"cmd": "x", "timeout": 0}, 400, "timeout"),
        ({"cmd": "x", "stdin": "a", "stdin_stream": True}, 400, "exclude"),
        ({"cmd": "x", "shell": True}, 400, "shell"),
        ({}, 400, "has no command"),
    ],
)
def test_invalid_run_is_rejected(
    http: httpx2.Client, sandbox_path: str, body: dict[str, Any], status: int, word: str
) -> None:
    for accept in ("application/json", MEDIA_TYPE):
        answer = http.post(f"{sandbox_path}/processes?wait=true", json=body, headers={"Accept": accept})
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == "invalid_request"
        assert word in answer.json()["error"]["message"]


def test_spawned_command_continues_without_its_caller(http: httpx2.Client, sandbox_path: str) -> None:
    answer = http.post(f"{sandbox_path}/processes", json={"cmd": "echo out; cat; exit 3", "stdin_stream": True})
    assert answer.status_code == 201
    process = f"{sandbox_path}/processes/{answer.json()['id']}"
    assert answer.json()["state"] == "running"
    assert http.get(f"{process}/wait?timeout=0.1").status_code == 204
    assert http.post(f"{process}/stdin?close=true", content=b"in").status_code == 204
    ended = http.get(f"{process}/wait")
    assert (ended.status_code, ended.json()["exit_code"], ended.json()["stdout"]) == (200, 3, "out\nin")


def test_output_is_a_page_lines_or_frames(http: httpx2.Client, sandbox_path: str) -> None:
    made = http.post(f"{sandbox_path}/processes", json={"cmd": "printf 'a\\xff'; sleep 0.1; printf b >&2"}).json()
    output = f"{sandbox_path}/processes/{made['id']}/output"
    lines = [
        json.loads(line)
        for line in http.get(output, params={"follow": "true"}, headers={"Accept": NDJSON}).iter_lines()
    ]
    assert lines[0]["started"] == {"id": made["id"], "pid": made["pid"], "offset": 0}
    assert lines[1:-1] == [{"stdout_base64": "Yf8="}, {"stderr": "b"}]
    assert (lines[-1]["exit"]["exit_code"], lines[-1]["exit"]["id"]) == (0, made["id"])
    page = http.get(output, params={"since": 1}).json()
    assert (page["data"], page["data_base64"], page["offset"], page["state"]) == ("\ufffdb", "/2I=", 3, "exited")
    part = http.get(output, params={"since": -3, "limit": 1}).json()
    assert (part["data"], part["offset"], part["more"], part["missing"]) == ("a", 1, True, 0)
    assert part["state"] == "exited"
    frames = list(FrameDecoder().feed(http.get(output, headers={"Accept": MEDIA_TYPE}).content))
    assert [kind for kind, _ in frames] == [STARTED, STDOUT, STDERR, EXIT]


def test_output_of_a_running_process_ends_with_a_pause(http: httpx2.Client, sandbox_path: str) -> None:
    made = http.post(f"{sandbox_path}/processes", json={"cmd": "echo on; sleep 600"}).json()
    process = f"{sandbox_path}/processes/{made['id']}"
    wait_until(lambda: http.get(f"{process}/output").json()["data"], "output")
    lines = [json.loads(line) for line in http.get(f"{process}/output", headers={"Accept": NDJSON}).iter_lines()]
    assert lines[-1] == {"pause": {"offset": 3, "more": False}}
    query = {"follow": "true", "timeout": "0.2", "since": "3"}
    answer = http.get(f"{process}/output", params=query, headers={"Accept": NDJSON})
    assert [*json.loads(answer.text.splitlines()[-1])] == ["pause"]
    assert http.post(f"{process}/signal", json={"signal": "KILL"}).status_code == 204
    assert http.get(f"{process}/wait").json()["signal"] == "KILL"


@pytest.mark.parametrize(
    "query",
    ["output?since=x", "output?limit=0", "output?limit=99999999999", "output?timeout=1", "output?follow=true",
     "output?since=99999999999999999999", "output?follow=true&timeout=nan", "wait?timeout=61", "wait?timeout=-1",
     "wait?timeout=nan", "output?since=4"],
)  # fmt: skip
def test_invalid_process_query_is_rejected(http: httpx2.Client, sandbox_path: str, query: str) -> None:
    process = run(http, sandbox_path, "echo on").json()["id"]
    assert http.get(f"{sandbox_path}/processes/{process}/{query}").status_code == 400


def test_unknown_process_is_not_found(http: httpx2.Client, sandbox_path: str) -> None:
    for verb in ("", "/output", "/wait"):
        for process in ("p-aaaaaaaaaa", "nonsense", "..%2f"):
            assert http.get(f"{sandbox_path}/processes/{process}{verb}").status_code == 404
    assert http.post(f"{sandbox_path}/processes/p-aaaaaaaaaa/stdin", content=b"x").status_code == 404


def test_unsupported_accept_is_rejected_before_the_command_runs(http: httpx2.Client, sandbox_path: str) -> None:
    assert run(http, sandbox_path, ["touch", "/tmp/ran"], "text/html").status_code == 406
    assert run(http, sandbox_path, ["test", "-e", "/tmp/ran"]).json()["exit_code"] == 1


def test_process_is_listed_signalled_and_removed(http: httpx2.Client, sandbox_path: str) -> None:
    ended: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: ended.append(run(http, sandbox_path, ["sleep", "1000"])))
    thread.start()

    def running() -> list[str]:
        listed = http.get(f"{sandbox_path}/processes").json()["processes"]
        return [p["id"] for p in listed if p["state"] == "running" and p["cmd"] == ["sleep", "1000"]]

    wait_until(running, "the process to be listed")
    (process,) = running()
    assert http.get(f"{sandbox_path}/processes/{process}").json()["id"] == process
    assert http.delete(f"{sandbox_path}/processes/{process}").status_code == 409
    assert http.post(f"{sandbox_path}/processes/{process}/signal", json={"signal": "NONSENSE"}).status_code == 400
    assert http.post(f"{sandbox_path}/processes/{process}/signal", json={"signal": "TERM"}).status_code == 204
    thread.join(30)
    assert ended[0].json()["signal"] == "TERM"
    assert http.delete(f"{sandbox_path}/processes/{process}").status_code == 204
    assert http.get(f"{sandbox_path}/processes/{process}").status_code == 404


def test_disconnect_during_input_leaves_nothing_behind(server: Server, http: httpx2.Client, sandbox_path: str) -> None:
    def descriptors() -> int:
        assert server.process is not None
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    made = http.post(f"{sandbox_path}/processes", json={"cmd": ["sleep", "1000"], "stdin_stream": True}).json()
    process, before = f"{sandbox_path}/processes/{made['id']}", descriptors()
    with contextlib.ExitStack() as callers:
        for _ in range(20):
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.connect(str(socket_path(server.state_dir)))
            head = f"POST {process}/stdin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
            caller.sendall(head.encode() + bytes(200_000))
        wait_until(lambda: descriptors() > before + 30, "each to have a connection to the sandbox")
    wait_until(lambda: descriptors() < before + 5, "the connections to be let go of")
    http.post(f"{process}/signal", json={"signal": "KILL"}).raise_for_status()


def test_buffer_for_unread_input_is_bounded(http: httpx2.Client, sandbox_path: str) -> None:
    def spawn() -> httpx2.Response:
        return http.post(f"{sandbox_path}/processes", json={"cmd": ["sleep", "1000"], "stdin": "x" * (15 << 20)})

    made = [spawn() for _ in range(5)]
    assert [one.status_code for one in made] == [201] * 4 + [429]
    for one in made[:4]:
        http.post(f"{sandbox_path}/processes/{one.json()['id']}/signal", json={"signal": "KILL"}).raise_for_status()
    wait_until(lambda: spawn().status_code == 201, "room for more")
