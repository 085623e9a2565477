"""Less frequent calls of E2B's protocols: terminals, watches, signals, contexts, metrics, logs, policies."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from typing import Any

import pytest
from support.e2b import STREAM, Account, Box, events, output
from support.server import Server, wait_until

from skerry.config import run_dir, socket_path
from skerry.runtimes.cgroups import Cgroups
from skerry.server.wire.e2b.messages import COMPRESSED, EnvelopeReader, Message, decode, encode, envelope

JSON = "application/json"


@pytest.fixture(scope="module")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """Start a server that waits only a short time for the rest of a request."""
    made = make_server().start(SKERRY_SERVER_WIRE="e2b", SKERRY_SERVER_REQUEST_TIMEOUT="5s")
    yield made
    made.retire()


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@pytest.fixture(scope="module")
def box(account: Account) -> Iterator[Box]:
    made = account.create()
    yield made
    assert account.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


class Stream:
    """A stream of messages that is read as it arrives. `kind` None: messages that only the server encodes."""

    def __init__(self, box: Box, method: str, message: Any, kind: str | None, **headers: str) -> None:
        more = box.headers(**{"Content-Type": STREAM, **headers})
        body = envelope(json.dumps(message).encode())
        self._context = box.account.http.stream("POST", f"/{method}", content=body, headers=more)
        self._kind, self._reader = kind, EnvelopeReader(1 << 24)

    def __enter__(self) -> Stream:
        answer = self._context.__enter__()
        assert answer.status_code == 200, answer.read()
        self._pieces = answer.iter_bytes()
        return self

    def __exit__(self, *words: Any) -> None:
        self._context.__exit__(*words)

    def __iter__(self) -> Iterator[Message]:
        for piece in self._pieces:
            for flags, data in self._reader.feed(piece):
                is_plain = flags or self._kind is None
                yield json.loads(data) if is_plain else decode(self._kind or "", data, "json")

    def until(self, wanted: Callable[[Message], bool]) -> list[Message]:
        found = []
        for message in self:
            found.append(message)
            if wanted(message):
                return found
        raise AssertionError(found)


def started(box: Box, command: str, tag: str, **more: Any) -> Stream:
    headers = more.pop("headers", {})
    message = {"process": {"cmd": "/bin/bash", "args": ["-c", command]}, "tag": tag, **more}
    return Stream(box, "process.Process/Start", message, "EventResponse", **headers)


def typed(stream: list[Message], name: str) -> bytes:
    return b"".join(one["event"]["data"][name] for one in stream if name in one.get("event", {}).get("data", {}))


def test_terminal_is_typed_into_and_resized(box: Box) -> None:
    pty = {"size": {"cols": 91, "rows": 31}}
    with started(box, "stty -echo; stty size; read line; stty size; echo got $line", "term", pty=pty) as stream:
        seen = stream.until(lambda one: b"31 91" in one.get("event", {}).get("data", {}).get("pty", b""))
        assert seen[0]["event"]["start"]["pid"] > 0
        larger = {"process": {"tag": "term"}, "pty": {"size": {"cols": 120, "rows": 40}}}
        assert box.call("process.Process/Update", larger).status_code == 200
        wrong = {"process": {"tag": "term"}, "input": {"stdin": "eA=="}}
        assert box.call("process.Process/SendInput", wrong).json()["code"] == "failed_precondition"
        text = base64.b64encode(b"word\n").decode()
        given = {"process": {"tag": "term"}, "input": {"pty": text}}
        assert box.call("process.Process/SendInput", given).status_code == 200
        rest = typed(stream.until(lambda one: "end" in one.get("event", {})), "pty")
    assert b"40 120" in rest
    assert b"got word" in rest
    assert box.call("process.Process/Update", {"process": {"pid": 999_999}, "pty": pty}).status_code == 404


def as_user(box: Box, user: str, line: str) -> bytes:
    message = {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", line]}, "stdin": False}
    basic = base64.b64encode(f"{user}:".encode()).decode()
    body = envelope(json.dumps(message).encode())
    answer = box.call("process.Process/Start", body, STREAM, Authorization=f"Basic {basic}")
    return output(events(answer.content))


def test_command_runs_as_the_user_of_its_call(box: Box) -> None:
    shown = "id -un; id -gn; pwd; echo $HOME"
    assert as_user(box, "root", "useradd --create-home --groups user other; " + shown) == b"root\nroot\n/root\n/root\n"
    assert as_user(box, "other", shown) == b"other\nother\n/home/other\n/home/other\n"
    assert as_user(box, "user", shown) == b"user\nuser\n/home/user\n/home/user\n"
    assert as_user(box, "other", "touch mine; chgrp user mine; cat /etc/shadow || echo denied") == b"denied\n"
    entry = box.call("filesystem.Filesystem/Stat", {"path": "/home/other/mine"}).json()["entry"]
    assert (entry["owner"], entry["group"]) == ("other", "user")


@pytest.mark.parametrize("at", ["99999999999999", "-99999999999999", "0", "-1.5"])
def test_file_may_have_any_time(box: Box, at: str) -> None:
    """Its owner sets the time to a year that dates do not have."""
    assert box.run(f"mkdir -p times; touch -d @{at} times/file")[-2]["end"]["exitCode"] == 0
    answer = box.call("filesystem.Filesystem/Stat", {"path": "times/file"})
    assert answer.status_code == 200, answer.text
    shown = datetime.fromisoformat(answer.json()["entry"]["modifiedTime"])
    assert 1 <= shown.year <= 9999
    for method, path in (("Stat", "times/file"), ("ListDir", "times")):
        body = encode("PathRequest", {"path": path}, "proto")
        answer = box.call(f"filesystem.Filesystem/{method}", body, "application/proto")
        assert answer.status_code == 200, answer.text


def test_calls_of_another_version_of_envd_get_errors_of_e2b(box: Box) -> None:
    """The SDK takes the version from the server; older and newer ones call what does not exist here."""
    for method, kind in (
        ("process.Process/Freeze", JSON), ("process.Process/Freeze", STREAM), ("filesystem.v2.Filesystem/Stat", JSON),
    ):  # fmt: skip
        answer = box.call(method, envelope(b"{}") if kind == STREAM else b"{}", kind)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
    for verb, path, status in (("POST", "/init", 404), ("DELETE", "/files", 405), ("GET", "/v2/envs", 404)):
        answer = box.account.http.request(verb, path, headers=box.headers())
        assert (answer.status_code, answer.json()["code"]) == (status, status), answer.text
    more = {"path": "/etc", "sinceEnvd9": {"x": [1]}}
    assert box.call("filesystem.Filesystem/Stat", more, **{"User-Agent": "e2b-python-sdk/99.0"}).status_code == 200


MANY = 300_000_000  # bytes: several times the journal of a process


@contextmanager
def streamed(box: Box, method: str, message: Message) -> Iterator[Iterator[bytes]]:
    """Open a stream; the caller decides when it reads on."""
    body, headers = envelope(json.dumps(message).encode()), box.headers(**{"Content-Type": STREAM})
    with box.account.http.stream("POST", f"/process.Process/{method}", content=body, headers=headers) as answer:
        yield answer.iter_bytes()


def counted(parts: Iterator[bytes]) -> tuple[int, Message]:
    """Read a stream to its end; return the size of its output, and the end."""
    reader, size, end = EnvelopeReader(1 << 24), 0, {}
    for part in parts:
        for flags, data in reader.feed(part):
            if flags:
                end = json.loads(data)
            else:
                event = decode("EventResponse", data, "json")["event"]
                size += len(event.get("data", {}).get("stdout", b""))
    return size, end


def printed(box: Box) -> int:
    """Return how much the only running command has printed."""
    with box.account.server.http() as http:
        found = http.get(f"/v1/sandboxes/{box.id}/processes").raise_for_status().json()["processes"]
    return max((one["offset"] for one in found if one["state"] == "running"), default=MANY)


def test_command_waits_for_a_slow_reader_and_loses_nothing(box: Box) -> None:
    command = {"process": {"cmd": "/usr/bin/head", "args": ["-c", str(MANY), "/dev/zero"]}}
    with streamed(box, "Start", command) as parts:
        first = next(parts)
        wait_until(lambda: printed(box) > 32 << 20, "output that fills the journal")
        assert counted(chain([first], parts)) == (MANY, {})


def test_reader_that_misses_output_gets_an_error(box: Box) -> None:
    line = f"read go; head -c {MANY} /dev/zero"
    command = {"process": {"cmd": "/bin/bash", "args": ["-c", line]}, "tag": "two", "stdin": True}
    with streamed(box, "Start", command) as parts:
        first = next(parts)
        with streamed(box, "Connect", {"process": {"tag": "two"}}) as slow:
            begun = next(slow)
            text = base64.b64encode(b"go\n").decode()
            sent = box.call("process.Process/SendInput", {"process": {"tag": "two"}, "input": {"stdin": text}})
            assert sent.status_code == 200, sent.text
            assert counted(chain([first], parts)) == (MANY, {})
            size, end = counted(chain([begun], slow))
    assert size < MANY
    assert end["error"]["code"] == "data_loss"


def test_silent_stream_has_keepalive_messages(box: Box) -> None:
    with started(box, "cat", "quiet", headers={"Keepalive-Ping-Interval": "1"}) as stream:
        stream.until(lambda one: "keepalive" in one["event"])
        assert box.call("process.Process/CloseStdin", {"process": {"tag": "quiet"}}).status_code == 200
        stream.until(lambda one: "end" in one.get("event", {}))


@pytest.mark.parametrize(
    ("signal", "status"), [("SIGNAL_SIGTERM", "signal: terminated"), ("SIGNAL_SIGKILL", "signal: killed")]
)
def test_signal_ends_a_command(box: Box, signal: str, status: str) -> None:
    with started(box, "echo up; exec sleep 600", signal) as stream:
        stream.until(lambda one: "data" in one["event"])
        assert box.call("process.Process/SendSignal", {"process": {"tag": signal}, "signal": signal}).status_code == 200
        end = stream.until(lambda one: "end" in one.get("event", {}))[-1]["event"]["end"]
    assert end["status"] == status
    other = box.call("process.Process/SendSignal", {"process": {"pid": 1}, "signal": 2})
    assert other.json()["code"] == "invalid_argument"


def test_watch_streams_changes(box: Box) -> None:
    box.run("mkdir -p seen/below")
    message = {"path": "seen", "recursive": True, "includeEntry": True}
    with Stream(box, "filesystem.Filesystem/WatchDir", message, None) as stream:
        stream.until(lambda one: "start" in one)
        box.run("echo 12 > seen/below/new; rm seen/below/new")
        found = stream.until(lambda one: one.get("filesystem", {}).get("type") == "EVENT_TYPE_REMOVE")
    kinds = [(one["filesystem"]["name"], one["filesystem"]["type"]) for one in found if "filesystem" in one]
    assert ("below/new", "EVENT_TYPE_CREATE") in kinds
    missing = box.call("filesystem.Filesystem/WatchDir", envelope(b'{"path":"none"}'), STREAM)
    assert "not_found" in missing.text


def test_removed_file_is_gone_and_a_missing_one_no_error(box: Box) -> None:
    box.run("mkdir -p tree/a; touch tree/a/b")
    for _ in range(2):
        assert box.call("filesystem.Filesystem/Remove", {"path": "tree"}).status_code == 200
    assert box.call("filesystem.Filesystem/Stat", {"path": "tree"}).status_code == 404


def test_composed_file_has_the_parts_in_order(box: Box) -> None:
    box.run("printf one > part1; printf two > part2")
    body = {"source_paths": ["part2", "part1"], "destination": "made/whole"}
    made = box.account.http.post("/files/compose", json=body, headers=box.headers())
    assert made.json()["path"] == "/home/user/made/whole"
    assert output(box.run("cat made/whole; ls part1 part2 2>/dev/null | wc -l")) == b"twoone0\n"
    missing = box.account.http.post("/files/compose", json=body, headers=box.headers())
    assert missing.status_code == 404


def test_compressed_calls_and_uploads_are_read(box: Box) -> None:
    zipped = gzip.compress(b'{"path":"/etc"}')
    found = box.call("filesystem.Filesystem/Stat", zipped, **{"Content-Encoding": "gzip"})
    assert found.json()["entry"]["path"] == "/etc"
    start = gzip.compress(json.dumps({"process": {"cmd": "/bin/echo", "args": ["zipped"]}}).encode())
    answer = box.call(
        "process.Process/Start", envelope(start, COMPRESSED), STREAM, **{"Connect-Content-Encoding": "gzip"}
    )
    assert output(events(answer.content)) == b"zipped\n"
    headers = box.headers(**{"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})
    upload = box.account.http.post("/files?path=large", content=gzip.compress(bytes(3 << 20)), headers=headers)
    assert upload.status_code == 200, upload.text
    assert output(box.run("stat -c %s large; tr -d '\\0' < large | wc -c")) == b"3145728\n0\n"


def test_sandbox_of_the_second_version_ends_after_five_minutes(account: Account) -> None:
    made = account.api("POST", "/v2/sandboxes", json={"templateID": "base", "metadata": {"v": "2"}})
    assert made.status_code == 201, made.text
    try:
        shown = account.api("GET", f"/sandboxes/{made.json()['sandboxID']}").json()
        start, end = (datetime.fromisoformat(shown[name]) for name in ("startedAt", "endAt"))
        assert 299 <= (end - start).total_seconds() <= 301
        assert shown["metadata"] == {"v": "2"}
    finally:
        assert account.api("DELETE", f"/sandboxes/{made.json()['sandboxID']}").status_code == 204


def test_network_options_become_the_policy(server: Server, account: Account) -> None:
    options = {"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1", "example.com"]}
    box = account.create(network=options)

    def policy() -> dict[str, Any]:
        with server.http() as http:
            found: dict[str, Any] = http.get(f"/v1/sandboxes/{box.id}").raise_for_status().json()["network"]
            return found

    try:
        assert (policy()["allow"], policy().get("deny", [])) == (["1.1.1.1:*", "example.com:*"], [])
        shown = account.api("GET", f"/sandboxes/{box.id}").json()["network"]
        assert {name: shown[name] for name in ("allowOut", "denyOut")} == {**options, "denyOut": ["0.0.0.0/0"]}
        change = {"denyOut": ["8.8.8.0/30"], "allowOut": ["8.8.8.1"]}
        assert account.api("PUT", f"/sandboxes/{box.id}/network", json=change).status_code == 204
        assert policy()["deny"] == ["8.8.8.0:*", "8.8.8.2/31:*"]
        assert account.api("PUT", f"/sandboxes/{box.id}/network", json={}).status_code == 204
        assert (policy()["allow"], policy().get("deny", [])) == (["*:*"], [])
        closed = {"allow_internet_access": False}
        assert account.api("PUT", f"/sandboxes/{box.id}/network", json=closed).status_code == 204
        assert policy().get("allow", []) == []
        assert account.api("GET", f"/sandboxes/{box.id}").json()["allowInternetAccess"] is False
        assert account.api("PUT", f"/sandboxes/{box.id}/network", json={}).status_code == 204
        assert account.api("GET", f"/sandboxes/{box.id}").json()["allowInternetAccess"] is True
        for bad in ({"allowOut": ["example.com"]}, {"maskRequestHost": "a"}, {"rules": {"a": [{}]}}):
            answer = account.api("PUT", f"/sandboxes/{box.id}/network", json=bad)
            assert (answer.status_code, answer.json()["code"]) == (400, 400), bad
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_metrics_have_the_current_values(account: Account, box: Box) -> None:
    def sample() -> dict[str, Any]:
        (found,) = account.api("GET", f"/sandboxes/{box.id}/metrics").json()
        return dict(found)

    def inside() -> dict[str, Any]:
        return dict(box.account.http.get("/metrics", headers=box.headers()).json())

    with started(box, "while :; do :; done", "busy"):
        wait_until(lambda: sample()["cpuUsedPct"] > 1, "a busy CPU")
        assert 0 < sample()["memUsed"] < sample()["memTotal"] == 2 << 30
        several = account.api("GET", "/sandboxes/metrics", params={"sandbox_ids": box.id}).json()["sandboxes"]
        assert set(several) == {box.id}
        wait_until(lambda: inside()["cpu_used_pct"] > 1, "a busy CPU")
        kill = {"process": {"tag": "busy"}, "signal": "SIGNAL_SIGKILL"}
        assert box.call("process.Process/SendSignal", kill).status_code == 200
    assert account.api("GET", f"/sandboxes/{box.id}/metrics", params={"end": 5}).json() == []
    assert account.api("GET", "/sandboxes/metrics", params={"sandbox_ids": ""}).status_code == 400
    assert account.api("GET", "/sandboxes/metrics", params={"sandbox_ids": "sb-aaaaaaaaaa"}).status_code == 404


def test_log_has_the_commands_and_their_output(account: Account) -> None:
    box = account.create()

    def log(version: str = "/v2", **params: Any) -> list[dict[str, Any]]:
        answer = account.api("GET", f"{version}/sandboxes/{box.id}/logs", params=params)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["logs"]
        return found

    try:
        box.run("echo to-the-log; echo wrong >&2; exit 3")
        wait_until(lambda: any("exit code 3" in one["message"] for one in log()), "the end in the log")
        messages = [one["message"] for one in log()]
        assert "to-the-log" in messages
        assert messages.index("to-the-log") < messages.index("wrong")
        assert [one["level"] for one in log(search="wrong")][-1] == "warn"
        assert all(one["level"] == "warn" for one in log(level="warn"))
        assert len(log(limit=1, direction="backward")) == 1
        assert log(cursor=int(1e13)) == []
        assert any("to-the-log" in one["line"] for one in log(""))
        bad = account.api("GET", f"/v2/sandboxes/{box.id}/logs", params={"level": "loud"})
        assert bad.status_code == 400
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_pause_of_the_files_only_ends_the_processes(account: Account) -> None:
    box = account.create()
    try:
        with started(box, "echo kept > kept; echo up; exec sleep 600", "gone") as stream:
            stream.until(lambda one: "data" in one["event"])
            paused = account.api("POST", f"/sandboxes/{box.id}/pause", json={"memory": False})
            assert paused.status_code == 204, paused.text
        assert account.api("GET", f"/sandboxes/{box.id}").json()["state"] == "paused"
        assert account.api("POST", f"/v2/sandboxes/{box.id}/connect", json={}).status_code == 201
        assert output(box.run("cat kept")) == b"kept\n"
        listed = box.call("process.Process/List", {}).json().get("processes", [])
        assert not any(one["config"]["cmd"] == "/bin/bash" for one in listed)
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


@contextmanager
def unfreezable(server: Server, box: Box) -> Iterator[None]:
    """Make the kernel miss the requests to freeze a sandbox."""
    file = Cgroups(f"/skerry/{run_dir(server.state_dir).name}").v2(box.id) / "cgroup.freeze"
    subprocess.run(["mount", "--bind", "/dev/null", file], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", file], check=True)


@pytest.mark.parametrize("auto_pause", [False, True])
def test_sandbox_keeps_its_end_when_it_cannot_be_paused(server: Server, account: Account, auto_pause: bool) -> None:
    box = account.create(timeout=600, autoPause=auto_pause)
    try:
        before = account.api("GET", f"/sandboxes/{box.id}").json()
        with unfreezable(server, box):
            answer = account.api("POST", f"/sandboxes/{box.id}/pause")
        assert answer.status_code == 503, answer.text
        after = account.api("GET", f"/sandboxes/{box.id}").json()
        ends = [datetime.fromisoformat(one["endAt"]).timestamp() for one in (before, after)]
        assert (after["state"], ends[1]) == ("running", pytest.approx(ends[0], abs=0.01))
        assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_contexts_are_made_listed_restarted_and_deleted(box: Box) -> None:
    http, headers = box.account.http, {**box.headers(49999)}
    made = http.post("/contexts", json={"language": "python", "cwd": "/tmp"}, headers=headers).json()
    assert (made["language"], made["cwd"]) == ("python", "/tmp")
    lines = box.execute("import os; x = 5; os.getcwd()", context_id=made["id"])
    assert next(line["text"] for line in lines if line["type"] == "result") == "/tmp"
    assert any(line["type"] == "error" for line in box.execute("x"))
    listed = http.get("/contexts", headers=headers).json()
    assert [one["language"] for one in listed][:2] == ["python", "javascript"]
    assert listed[-1]["id"] == made["id"]
    assert http.post(f"/contexts/{made['id']}/restart", headers=headers).status_code == 204
    assert any(line["type"] == "error" for line in box.execute("x", context_id=made["id"]))
    assert http.delete(f"/contexts/{made['id']}", headers=headers).status_code == 204
    gone = http.post("/execute", json={"code": "1", "context_id": made["id"]}, headers=headers)
    assert (gone.status_code, gone.json()["code"]) == (404, 404)
    both = http.post("/execute", json={"code": "1", "context_id": "a", "language": "python"}, headers=headers)
    assert both.status_code == 400


@pytest.mark.parametrize("method", ["process.Process/Start", "filesystem.Filesystem/Stat"])
def test_silent_peer_in_the_middle_of_a_message_is_disconnected(server: Server, box: Box, method: str) -> None:
    """A client that announces a message, sends a part of it and keeps the connection open."""
    kind = STREAM if method.endswith("/Start") else JSON
    lines = "".join(f"{name}: {value}\r\n" for name, value in box.headers(**{"Content-Type": kind}).items())
    head = f"POST /{method} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n{lines}\r\n"
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(str(socket_path(server.state_dir)))
        line.sendall(head.encode() + (envelope(bytes(95))[:9] if kind == STREAM else b'{"pro'))
        received = b""
        while piece := line.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 408 ")
    body = json.loads(received.partition(b"\r\n\r\n")[2])
    assert body == {"code": "deadline_exceeded", "message": "the request's body did not arrive in time"}
