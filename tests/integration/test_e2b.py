"""E2B's protocols over plain HTTP; `make test-e2b` runs the published SDKs against them."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx2
import msgspec
import pytest
from integration.test_revocation import Stream, assert_ended
from support.e2b import SETTINGS, STREAM, Account, Box, events, output, signed, stream_error
from support.server import Server, wait_until

from skerry.server.wire.e2b.access import MAX_SIGNERS
from skerry.server.wire.e2b.app import api_routes
from skerry.server.wire.e2b.messages import Message, decode, encode, envelope

OPERATORS = SETTINGS


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[Account]:
    made = Account(server, "ann")
    with made.http:
        yield made


@pytest.fixture(scope="module")
def box(account: Account) -> Iterator[Box]:
    made = account.create(metadata={"team": "red"}, envVars={"COLOUR": "blue"})
    yield made
    assert account.api("DELETE", f"/sandboxes/{made.id}").status_code == 204


@pytest.mark.parametrize("form", ["json", "proto"])
def test_command_streams_its_output_and_end(box: Box, form: str) -> None:
    stream = box.run("echo $COLOUR $X; echo no >&2; pwd; id -un; exit 3", form, envs={"X": "1"})
    assert stream[0]["start"]["pid"] > 0
    assert (output(stream), output(stream, "stderr")) == (b"blue 1\n/home/user\nuser\n", b"no\n")
    assert stream[-2]["end"] == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}
    assert stream[-1] == {}


def test_killed_command_reports_its_signal(box: Box) -> None:
    end = box.run("kill -9 $$")[-2]["end"]
    assert (end["exitCode"], end["status"]) == (-1, "signal: killed")


def test_command_past_its_deadline_is_ended(box: Box) -> None:
    body = envelope(json.dumps({"process": {"cmd": "/bin/sleep", "args": ["600"]}}).encode())
    answer = box.call("process.Process/Start", body, STREAM, **{"Connect-Timeout-Ms": "300"})
    assert events(answer.content)[-1]["error"]["code"] == "deadline_exceeded"


def test_command_outlives_the_stream_that_started_it(box: Box) -> None:
    message = {"process": {"cmd": "/bin/cat"}, "tag": "kept", "stdin": True}
    headers = box.headers(**{"Content-Type": STREAM})
    with box.account.http.stream(
        "POST", "/process.Process/Start", content=envelope(json.dumps(message).encode()), headers=headers
    ) as answer:
        first = next(iter(answer.iter_bytes()))
    pid = json.loads(first[5 : 5 + struct.unpack(">I", first[1:5])[0]])["event"]["start"]["pid"]
    listed = box.call("process.Process/List", {}).json()["processes"]
    assert [one["config"]["cmd"] for one in listed if one["pid"] == pid] == ["/bin/cat"]
    attached: list[bytes] = []
    ready = threading.Event()

    def attach() -> None:
        body = envelope(json.dumps({"process": {"tag": "kept"}}).encode())
        with box.account.http.stream("POST", "/process.Process/Connect", content=body, headers=headers) as stream:
            for chunk in stream.iter_bytes():
                attached.append(chunk)
                ready.set()

    thread = threading.Thread(target=attach)
    thread.start()
    try:
        assert ready.wait(60)
        text = base64.b64encode(b"typed\n").decode()
        sent = box.call("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": text}})
        assert sent.status_code == 200, sent.text
    finally:
        assert box.call("process.Process/CloseStdin", {"process": {"pid": pid}}).status_code == 200
        thread.join(60)
    assert output(events(b"".join(attached))) == b"typed\n"
    assert box.call("process.Process/SendSignal", {"process": {"pid": pid}, "signal": 9}).status_code == 404


def test_streamed_input_arrives_in_order(box: Box) -> None:
    body = envelope(json.dumps({"process": {"cmd": "/usr/bin/tee", "args": ["in"]}, "tag": "tee"}).encode())
    headers = box.headers(**{"Content-Type": STREAM})
    with box.account.http.stream("POST", "/process.Process/Start", content=body, headers=headers) as answer:
        next(iter(answer.iter_bytes()))
        parts: list[Message] = [{"start": {"process": {"tag": "tee"}}}]
        parts += [{"data": {"input": {"stdin": f"{number},".encode()}}} for number in range(200)]
        stream = b"".join(envelope(encode("StreamInputRequest", part, "json")) for part in parts)
        with_other = box.call("process.Process/StreamInput", stream, STREAM)
        assert with_other.status_code == 200, with_other.text
        assert box.call("process.Process/CloseStdin", {"process": {"tag": "tee"}}).status_code == 200
    wanted = "".join(f"{number}," for number in range(200))
    wait_until(lambda: box.account.http.get("/files?path=in", headers=box.headers()).text == wanted, "all the input")


def test_files_are_written_read_and_described(box: Box) -> None:
    http = box.account.http
    upload = {"file": ("a/b.txt", b"one")}
    written = http.post("/files", params={"path": "a/b.txt"}, files=upload, headers=box.headers())
    assert written.json() == [{"path": "/home/user/a/b.txt", "name": "b.txt", "type": "file"}]
    raw = box.headers(**{"Content-Type": "application/octet-stream"})
    assert http.post("/files", params={"path": "/opt/x/y"}, content=b"two", headers=raw).status_code == 200
    assert http.get("/files", params={"path": "~/a/b.txt"}, headers=box.headers()).content == b"one"
    entry = box.call("filesystem.Filesystem/Stat", {"path": "/opt/x/y"}).json()["entry"]
    assert (entry["owner"], entry["group"], entry["size"], entry["type"]) == ("user", "user", "3", "FILE_TYPE_FILE")
    assert box.run("stat -c %U /opt/x")[1]["data"]["stdout"] == b"user\n"
    box.run("ln -s a/b.txt link; ln -s nowhere dangling")
    listed = box.call(
        "filesystem.Filesystem/ListDir", encode("ListDirRequest", {"path": "."}, "proto"), "application/proto"
    )
    found = {one["name"]: one for one in decode("ListDirResponse", listed.content, "proto")["entries"]}
    assert (found["link"]["symlinkTarget"], found["link"]["isSymlink"]) == ("/home/user/a/b.txt", True)
    assert "type" not in found["dangling"] or found["dangling"]["type"] == "FILE_TYPE_UNSPECIFIED"


def test_watcher_reports_changes(box: Box) -> None:
    box.call("filesystem.Filesystem/MakeDir", {"path": "watched"})
    made = box.call("filesystem.Filesystem/CreateWatcher", {"path": "watched", "includeEntry": True}).json()
    box.run("echo x > watched/new")
    seen: list[dict[str, Any]] = []

    def has_seen() -> bool:
        seen.extend(box.call("filesystem.Filesystem/GetWatcherEvents", made).json().get("events", []))
        return any(one["name"] == "new" and one.get("entry", {}).get("size") == "2" for one in seen)

    wait_until(has_seen, "the event")
    assert box.call("filesystem.Filesystem/RemoveWatcher", made).status_code == 200
    assert box.call("filesystem.Filesystem/GetWatcherEvents", made).status_code == 404


def test_signed_url_needs_no_other_credentials(box: Box) -> None:
    http = box.account.http
    http.post("/files", params={"path": "s"}, files={"file": ("s", b"signed")}, headers=box.headers())
    assert http.get("/files", params=signed(box, "s", "read")).content == b"signed"
    assert http.get("/files", params=signed(box, "s", "read", int(time.time()) + 600)).content == b"signed"
    refused = {
        "expired": signed(box, "s", "read", int(time.time()) - 5),
        "of another operation": signed(box, "s", "write"),
        "of another path": {**signed(box, "s", "read"), "path": "t"},
        "of another time": {**signed(box, "s", "read", 2), "signature_expiration": "99999999999"},
        "no signature": {"path": "s", "signature": ""},
    }
    for what, query in refused.items():
        answer = http.get("/files", params=query)
        assert (answer.status_code, answer.json()["code"]) == (401, 401), what


def test_code_runs_in_contexts(box: Box) -> None:
    lines = box.execute("  x = 6\n  print('out')\n  x * 7")
    kinds = [line["type"] for line in lines if line["type"] != "keepalive"]
    assert kinds == ["stdout", "result", "number_of_executions", "end_of_execution"]
    assert next(line for line in lines if line["type"] == "result")["text"] == "42"
    assert box.execute("import os; os.environ['ONCE']", env_vars={"ONCE": "it's"})[0]["text"] == "it's"
    error = next(line for line in box.execute("os.environ['ONCE']") if line["type"] == "error")
    assert error["name"] == "KeyError"
    assert box.execute("const y: number = 2; y + 1", language="ts")[0]["text"] == "3"


def test_requests_without_a_valid_token_are_denied(box: Box) -> None:
    http, name = box.account.http, {"E2b-Sandbox-Id": box.id}
    for headers in (name, {**name, "X-Access-Token": "x"}, {**name, "X-Access-Token": f"{box.id}.{box.account.id}.00"}):
        answer = http.post("/process.Process/List", json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    traffic = {**name, "X-Access-Token": box.made["trafficAccessToken"]}
    assert http.post("/process.Process/List", json={}, headers=traffic).status_code == 401
    assert http.get("/sandboxes", headers={"X-API-Key": "e2b_0000"}).json()["code"] == 401
    assert http.get("/sandboxes").status_code == 401


def test_sandboxes_of_other_owners_do_not_exist(server: Server, box: Box) -> None:
    other = Account(server, "bob")
    with other.http:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/connect"), ("POST", "/timeout")):
            answer = other.api(method, f"/sandboxes/{box.id}{path}", **({"json": {}} if method == "POST" else {}))
            assert (answer.status_code, answer.json()["code"]) == (404, 404)
        assert other.api("GET", "/v2/sandboxes").json() == []
        token = f"{box.id}.{other.id}.{box.token.rpartition('.')[2]}"
        forged = other.http.get("/health", headers={**box.headers(), "X-Access-Token": token})
        assert forged.status_code == 401


def test_access_token_ends_with_the_token_that_it_stands_for(server: Server) -> None:
    account = Account(server, "eve")
    with account.http:
        box = account.create()
        assert box.account.http.get("/health", headers=box.headers()).status_code == 204
        with server.http() as http:
            http.delete(f"/v1/tokens/{account.id}").raise_for_status()
            assert box.account.http.get("/health", headers=box.headers()).status_code == 401
            http.delete(f"/v1/sandboxes/{box.id}").raise_for_status()


HOLD = """
import socket
listener, held = socket.create_server(("127.0.0.1", 8000)), []
while True:
    held.append(listener.accept()[0])
    held[-1].sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\nfirst")
"""


def request(box: Box, path: str, body: bytes, port: int = 49983, kind: str = STREAM, **more: str) -> bytes:
    headers = box.headers(port, **{"Content-Type": kind, "Content-Length": str(len(body)), **more})
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{''.join(lines)}\r\n".encode() + body


def test_deleting_a_token_closes_its_streams(server: Server) -> None:
    account = Account(server, "eva")
    with account.http, contextlib.ExitStack() as stack:
        box = account.create()
        run = {"process": {"cmd": "/bin/bash", "args": ["-c", "echo begun; exec sleep 3000"]}}
        box.run(f"python3 -c '{HOLD}' >/dev/null 2>&1 & while ! (: >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do :; done")
        requests = [
            request(box, "/process.Process/Start", envelope(json.dumps(run).encode())),
            request(box, "/filesystem.Filesystem/WatchDir", envelope(b'{"path": "/tmp"}')),
            request(box, "/execute", b'{"code": "print(1, flush=True)\\nimport time\\ntime.sleep(3000)"}', 49999,
                    "application/json", **{"E2B-Traffic-Access-Token": box.made["trafficAccessToken"]}),
            request(box, "/", b"", 8000, "text/plain"),
        ]  # fmt: skip
        streams = [stack.enter_context(Stream(server, one)) for one in requests]
        assert [stream.status for stream in streams] == [200] * 4
        assert not any(stream.ended() for stream in streams)
        with server.http() as http:
            http.delete(f"/v1/tokens/{account.id}").raise_for_status()
        assert_ended(server, streams)
        with server.http() as http:
            http.delete(f"/v1/sandboxes/{box.id}").raise_for_status()


def test_sandbox_is_found_by_its_host_name(box: Box) -> None:
    headers = {"Host": f"49983-{box.id}.boxes.example", "X-Access-Token": box.token}
    assert box.account.http.get("/health", headers=headers).status_code == 204
    assert box.account.http.get("/health", headers={**headers, "X-Access-Token": "x"}).status_code == 401


def test_lists_filter_and_have_pages(account: Account, box: Box) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            made = account.create(metadata={"team": "blue"})
            stack.callback(account.api, "DELETE", f"/sandboxes/{made.id}")
        first = account.api("GET", "/v2/sandboxes", params={"metadata": "team=blue", "limit": 1})
        second = account.api(
            "GET", "/v2/sandboxes", params={"metadata": "team=blue", "nextToken": first.headers["X-Next-Token"]}
        )
        assert len({one["sandboxID"] for one in (*first.json(), *second.json())}) == 2
        assert "X-Next-Token" not in second.headers
    found = account.api("GET", "/v2/sandboxes", params={"metadata": "team=red", "state": "running"}).json()
    assert [(one["sandboxID"], one["metadata"]) for one in found] == [(box.id, {"team": "red"})]
    assert account.api("GET", "/v2/sandboxes", params={"nextToken": "zz"}).status_code == 400


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_go_on_after_their_sandboxes_are_killed(account: Account, order: str) -> None:
    made = {account.create(metadata={"team": f"gone-{order}"}).id for _ in range(5)}
    killed: list[str] = []
    query: dict[str, Any] = {"metadata": f"team=gone-{order}", "limit": 2, "order": order}
    while True:
        page = account.api("GET", "/v2/sandboxes", params=query)
        assert page.status_code == 200, page.text
        for one in page.json():
            assert account.api("DELETE", f"/sandboxes/{one['sandboxID']}").status_code == 204
            killed.append(one["sandboxID"])
        if "X-Next-Token" not in page.headers:
            break
        query["nextToken"] = page.headers["X-Next-Token"]
    assert (len(killed), set(killed)) == (5, made)


NUMBERS = ("-1", "0", "-100000000000000000", "100000000000000000", "1" + "0" * 400, "NaN", "1e5", "")


def test_numbers_out_of_range_in_queries_are_no_server_errors(account: Account, box: Box) -> None:
    made = account.api("POST", "/v3/templates", json={"name": "numbers"}).json()["buildID"]
    words = {"ref": box.id, "template": "numbers", "build": made, "hash": "f00", "volume": "none"}
    nothing: Any = None
    table = api_routes(None, nothing, nothing, nothing)
    asked = 0
    for route in table:
        types = get_type_hints(route.query)
        for field in msgspec.structs.fields(route.query):
            if route.method == "GET" and {int, float} & {types[field.name], *get_args(types[field.name])}:
                for number in NUMBERS:
                    answer = account.api("GET", route.path.format(**words), params={field.encode_name: number})
                    assert answer.status_code < 500, (route.path, field.encode_name, number, answer.text)
                    asked += 1
    assert asked > 10 * len(NUMBERS)


def test_paused_sandbox_keeps_its_processes_and_has_no_end(account: Account) -> None:
    box = account.create()
    box.execute("x = 1")
    assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
    assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 409
    assert account.http.get("/health", headers=box.headers()).status_code == 502
    stopped = box.call("process.Process/List", {})
    assert (stopped.status_code, stopped.json()["code"]) == (502, 502)
    assert account.api("POST", f"/sandboxes/{box.id}/connect", json={"timeout": 60}).status_code == 201
    assert box.execute("x + 1")[0]["text"] == "2"
    assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204
    assert account.http.get("/health", headers=box.headers()).status_code == 502


def test_sandbox_is_paused_at_its_end_and_resumes_on_access(account: Account) -> None:
    box = account.create(autoPause=True, autoResume={"enabled": True})

    def state() -> str:
        found: str = account.api("GET", f"/sandboxes/{box.id}").json()["state"]
        return found

    assert account.api("POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 0}).status_code == 204
    wait_until(lambda: state() == "paused", "the pause")
    assert output(box.run("echo back")) == b"back\n"
    assert state() == "running"
    assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_sandbox_ends_at_its_timeout(account: Account) -> None:
    box = account.create()
    assert account.api("POST", f"/sandboxes/{box.id}/timeout", json={"timeout": 0}).status_code == 204
    wait_until(lambda: account.api("GET", f"/sandboxes/{box.id}").status_code == 404, "the end")


def test_snapshots_and_forks_have_the_files(account: Account, box: Box) -> None:
    box.run("echo kept > /home/user/kept")
    shot = account.api("POST", f"/sandboxes/{box.id}/snapshots", json={}).json()["snapshotID"]
    copies = [account.create(templateID=shot)]
    made = account.api("POST", f"/sandboxes/{box.id}/fork", json={"count": 1, "timeout": 300}).json()
    copies.append(Box(account, made[0]["sandbox"]))
    for copy in copies:
        assert output(copy.run("cat kept")) == b"kept\n"
        assert account.api("DELETE", f"/sandboxes/{copy.id}").status_code == 204
    listed = account.api("GET", "/snapshots", params={"sandboxID": box.id}).json()
    assert [one["snapshotID"] for one in listed] == [shot]
    assert account.api("DELETE", f"/templates/{shot}").status_code == 204


BAD = {
    "unknown content type": ("process.Process/Start", b"{}", "application/x", 415, "unimplemented"),
    "a unary type for a stream": ("process.Process/Start", b"{}", "application/json", 415, "unimplemented"),
    "no message": ("process.Process/Start", b"", STREAM, 200, "invalid_argument"),
    "a cut envelope": ("process.Process/Start", envelope(b"{}")[:4], STREAM, 200, "invalid_argument"),
    "a huge envelope": ("process.Process/Start", b"\0\xff\xff\xff\xff", STREAM, 200, "invalid_argument"),
    "unknown flags": ("process.Process/Start", envelope(b"{}", 64), STREAM, 200, "invalid_argument"),
    "two messages": ("process.Process/Start", envelope(b"{}") * 2, STREAM, 200, "invalid_argument"),
    "no command": ("process.Process/Start", envelope(b"{}"), STREAM, 200, "invalid_argument"),
    "malformed protobuf": ("filesystem.Filesystem/Stat", b"\x0a\xff", "application/proto", 400, "invalid_argument"),
    "an oversized message": ("filesystem.Filesystem/Stat", bytes(17 << 20), "application/json", 429,
                             "resource_exhausted"),
    "a missing path": ("filesystem.Filesystem/Stat", b'{"path":"/no"}', "application/json", 404, "not_found"),
    "a file that is there": ("filesystem.Filesystem/MakeDir", b'{"path":"/etc"}', "application/json", 409,
                             "already_exists"),
    "a file as a directory": ("filesystem.Filesystem/ListDir", b'{"path":"/etc/passwd"}', "application/json", 400,
                              "invalid_argument"),
    "an unknown process": ("process.Process/SendInput", b'{"process":{"pid":999999}}', "application/json", 404,
                           "not_found"),
    "a stream of an unknown process": ("process.Process/Connect", envelope(b'{"process":{"pid":999999}}'), STREAM, 200,
                                       "not_found"),
    "a watch of a missing directory": ("filesystem.Filesystem/WatchDir", envelope(b'{"path":"/no"}'), STREAM, 200,
                                       "not_found"),
    "an unknown directory to start in": (
        "process.Process/Start", envelope(b'{"process":{"cmd":"/bin/true","cwd":"/no"}}'), STREAM, 200,
        "invalid_argument",
    ),
    "an unknown stream": ("process.Process/Nope", envelope(b"{}"), STREAM, 404, "not_found"),
    "an unknown method": ("process.Process/Nope", b"{}", "application/json", 404, "not_found"),
    "the home of another": ("filesystem.Filesystem/Stat", b'{"path":"~root/x"}', "application/json", 400,
                            "invalid_argument"),
    "a NUL byte": ("filesystem.Filesystem/Stat", b'{"path":"a\\u0000b"}', "application/json", 400, "invalid_argument"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_calls_get_errors_of_connect(box: Box, what: str) -> None:
    method, body, kind, status, code = BAD[what]
    answer = box.call(method, body, kind)
    if status == 200:  # clients read no other response of a stream than its messages
        assert stream_error(answer) == code
    else:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_bad_control_requests_get_errors_of_the_api(account: Account, box: Box) -> None:
    bad = [
        ("POST", "/sandboxes", {"templateID": "nope"}, 404), ("POST", "/sandboxes", {"timeout": -1}, 400),
        ("POST", "/sandboxes", {"volumeMounts": [{"name": "none", "path": "/v"}]}, 404),
        ("POST", "/sandboxes", {"volumeMounts": [{"name": "@host", "path": "/v"}]}, 400),
        ("POST", "/sandboxes", {"volumeMounts": [{"name": "v", "path": "/v"}, {"name": "w", "path": "/v/"}]}, 400),
        ("POST", "/sandboxes", {"volumeMounts": [{"name": "v", "path": "/etc"}]}, 400),
        ("POST", "/sandboxes", {"mcp": {"server": {}}}, 400), ("POST", "/sandboxes", {"iam": {"tokens": {}}}, 400),
        ("POST", "/sandboxes", {"timeout": "soon"}, 400),
        ("POST", "/sandboxes", {"autoResume": {"enabled": True}}, 400),
        ("POST", "/sandboxes", {"metadata": {"skerry.e2b": "{}"}}, 400),
        ("POST", "/sandboxes", {"network": {"egressProxy": {"address": "x:1"}}}, 400),
        ("POST", f"/sandboxes/{box.id}/resume", {}, 409), ("POST", "/sandboxes/sb-none/connect", {}, 404),
        ("GET", "/v2/nothing", None, 404), ("GET", "/v2/sandboxes?limit=0", None, 400),
    ]  # fmt: skip
    for method, path, body, status in bad:
        answer = account.api(method, path, **({"json": body} if body is not None else {}))
        assert (answer.status_code, answer.json()["code"]) == (status, status), (path, body, answer.text)


def test_unknown_user_is_unauthenticated(box: Box) -> None:
    basic = base64.b64encode(b"nobody-here:").decode()
    answer = box.call("filesystem.Filesystem/Stat", {"path": "/"}, Authorization=f"Basic {basic}")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    start = envelope(json.dumps({"process": {"cmd": "/bin/true"}}).encode())
    stream = box.call("process.Process/Start", start, STREAM, Authorization=f"Basic {basic}")
    assert stream_error(stream) == "unauthenticated"
    root = base64.b64encode(b"root:").decode()
    entry = box.call("filesystem.Filesystem/Stat", {"path": "."}, Authorization=f"Basic {root}").json()["entry"]
    assert entry["path"] == "/root"


def test_malformed_uploads_are_refused(box: Box) -> None:
    http, kind = box.account.http, {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--y\r\n", b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\ndata'):
        answer = http.post("/files", content=body, headers=box.headers(**kind))
        assert (answer.status_code, answer.json()["code"]) == (400, 400), body
    twice = [("file", ("same", b"1")), ("file", ("same", b"2"))]
    assert http.post("/files", files=twice, headers=box.headers()).status_code == 400
    assert http.get("/files", params={"path": "/etc"}, headers=box.headers()).status_code == 400


class VolumeFiles:
    """Requests for the files of a volume, with its token."""

    def __init__(self, account: Account, made: dict[str, Any]) -> None:
        self.account, self.id, self.token = account, made["volumeID"], made["token"]

    def call(self, method: str, what: str, path: str, token: str | None = None, **more: Any) -> httpx2.Response:
        params = {"path": path, **more.pop("params", {})}
        headers = {"Authorization": f"Bearer {token or self.token}"}
        url = f"/volumecontent/{self.id}/{what}"
        return self.account.http.request(method, url, params=params, headers=headers, **more)


@pytest.fixture(scope="module")
def volume(account: Account) -> Iterator[VolumeFiles]:
    made = account.api("POST", "/volumes", json={"name": "shared"})
    assert made.status_code == 201, made.text
    yield VolumeFiles(account, made.json())
    assert account.api("DELETE", f"/volumes/{made.json()['volumeID']}").status_code == 204
    assert account.api("DELETE", f"/volumes/{made.json()['volumeID']}").status_code == 404


def test_volume_is_written_with_and_without_a_sandbox(account: Account, volume: VolumeFiles) -> None:
    written = volume.call("PUT", "file", "/a.txt", content=b"one", params={"uid": 1000, "gid": 1000, "mode": 0o640})
    assert written.status_code == 201, written.text
    assert {name: written.json()[name] for name in ("name", "type", "path", "size", "mode", "uid", "gid")} == {
        "name": "a.txt", "type": "file", "path": "/a.txt", "size": 3, "mode": 0o640, "uid": 1000, "gid": 1000,
    }  # fmt: skip
    box = account.create(volumeMounts=[{"name": "shared", "path": "/data"}])
    try:
        assert output(box.run("cat /data/a.txt; echo two > /data/b.txt")) == b"one"
        shown = account.api("GET", f"/sandboxes/{box.id}").json()["volumeMounts"]
        assert shown == [{"name": "shared", "path": "/data"}]
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204
    assert volume.call("GET", "file", "b.txt").content == b"two\n"
    assert [one["name"] for one in volume.call("GET", "dir", "/").json()] == ["a.txt", "b.txt"]
    assert account.api("GET", "/volumes").json() == [{"volumeID": volume.id, "name": "shared"}]
    named = {one["sandboxID"] for one in account.api("GET", "/v2/sandboxes").json()}
    assert box.id not in named
    assert not any("skerry.e2b-volume" in str(one) for one in account.api("GET", "/v2/sandboxes").json())


def test_files_of_a_volume_are_replaced_and_removed_only_on_request(volume: VolumeFiles) -> None:
    assert volume.call("POST", "dir", "/x/y").status_code == 404
    assert volume.call("POST", "dir", "/x/y", params={"force": True, "mode": 0o750}).json()["mode"] == 0o750
    assert volume.call("POST", "dir", "/x").status_code == 409
    assert volume.call("PUT", "file", "/no/where", content=b"1").status_code == 404
    assert volume.call("PUT", "file", "/x/f", content=b"1").status_code == 201
    assert volume.call("PUT", "file", "/x/f", content=b"2").status_code == 409
    assert volume.call("PUT", "file", "/x/f", content=b"2", params={"force": True}).status_code == 201
    assert volume.call("PATCH", "path", "/x/f", json={"uid": 7, "mode": 0o600}).json()["uid"] == 7
    deep = volume.call("GET", "dir", "/x", params={"depth": 2}).json()
    assert [one["path"] for one in deep] == ["/x/f", "/x/y"]
    assert volume.call("DELETE", "path", "/x").status_code == 204
    assert volume.call("GET", "path", "/x").status_code == 404
    assert volume.call("DELETE", "path", "/").status_code in (400, 409)
    assert volume.call("PATCH", "path", "/a", json={"mode": 0o77777}).status_code == 400


def test_path_of_a_volume_stays_inside_its_sandbox(account: Account, volume: VolumeFiles) -> None:
    """No path leads to the host, nor to another sandbox: links end in the helper, which has nothing else."""
    for path in ("../etc/passwd", "/../../etc/passwd", "a/../../../etc/passwd"):
        answer = volume.call("GET", "file", path)
        assert (answer.status_code, answer.json()["code"]) == (404, 404), path
    box = account.create(volumeMounts=[{"name": "shared", "path": "/data"}])
    try:
        box.run("ln -s /etc/hostname /data/link; ln -s / /data/root")
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204
    host = Path("/etc/hostname").read_text().strip()
    assert host not in volume.call("GET", "file", "/link").text
    assert volume.call("GET", "path", "/link").json()["type"] == "symlink"


def test_token_of_a_volume_opens_this_volume_only(server: Server, account: Account, volume: VolumeFiles) -> None:
    with (other := Account(server, "bob")).http:
        made = other.api("POST", "/volumes", json={"name": "shared"}).json()
        try:
            for token in (made["token"], made["token"].replace(made["volumeID"], volume.id), account.key, "x"):
                assert volume.call("GET", "dir", "/", token=token).status_code == 401
            assert other.api("GET", f"/volumes/{volume.id}").status_code == 404
            assert other.api("DELETE", f"/volumes/{volume.id}").status_code == 404
            for path in (f"/volumes/{volume.id}", "/v2/sandboxes"):
                answer = account.http.get(path, headers={"Authorization": f"Bearer {volume.token}"})
                assert answer.status_code == 401
            mounts = [{"name": volume.id, "path": "/data"}]
            answer = other.api("POST", "/sandboxes", json={"templateID": "base", "volumeMounts": mounts})
            assert answer.status_code == 404
        finally:
            assert other.api("DELETE", f"/volumes/{made['volumeID']}").status_code == 204


def test_stream_goes_on_after_a_pause(account: Account) -> None:
    box = account.create()
    body = envelope(json.dumps({"process": {"cmd": "/bin/cat"}, "tag": "kept"}).encode())
    headers = box.headers(**{"Content-Type": STREAM})
    try:
        with account.http.stream("POST", "/process.Process/Start", content=body, headers=headers) as answer:
            pieces = answer.iter_bytes()
            received = next(pieces)
            assert account.api("POST", f"/sandboxes/{box.id}/pause").status_code == 204
            assert account.api("POST", f"/v2/sandboxes/{box.id}/connect", json={}).status_code == 201
            text = base64.b64encode(b"later").decode()
            sent = box.call("process.Process/SendInput", {"process": {"tag": "kept"}, "input": {"stdin": text}})
            assert sent.status_code == 200, sent.text
            assert box.call("process.Process/CloseStdin", {"process": {"tag": "kept"}}).status_code == 200
            received += b"".join(pieces)
        assert output(events(received)) == b"later"
    finally:
        assert account.api("DELETE", f"/sandboxes/{box.id}").status_code == 204


def test_half_open_stream_is_refused(box: Box) -> None:
    """A client that announces more than it sends, and closes its side."""
    body = envelope(json.dumps({"process": {"cmd": "/bin/true"}}).encode())
    answer = box.call("process.Process/StreamInput", body, STREAM)
    assert stream_error(answer) == "invalid_argument"
    cut = envelope(encode("StreamInputRequest", {"start": {"process": {"pid": 1}}}, "json"))[:-3]
    assert stream_error(box.call("process.Process/StreamInput", cut, STREAM)) == "invalid_argument"


def test_metadata_of_an_upload_is_kept_with_the_file(box: Box) -> None:
    http, headers = box.account.http, box.headers(**{"X-Metadata-Author": "ann", "X-Metadata-Empty": ""})
    written = http.post("/files", params={"path": "noted"}, files={"file": ("noted", b"1")}, headers=headers)
    assert written.json()[0]["metadata"] == {"author": "ann", "empty": ""}
    moved = box.call("filesystem.Filesystem/Move", {"source": "noted", "destination": "noted-too"}).json()["entry"]
    assert moved["metadata"] == {"author": "ann", "empty": ""}
    set_ = "import os; os.setxattr('noted-too', 'user.e2b.by', b'hand'); os.setxattr('noted-too', 'user.x', b'')"
    box.run(f'python3 -c "{set_}"')
    listed = box.call("filesystem.Filesystem/ListDir", {"path": "."}).json()["entries"]
    assert {one["name"]: one.get("metadata") for one in listed}["noted-too"] == {
        "author": "ann",
        "empty": "",
        "by": "hand",
    }
    http.post("/files", params={"path": "noted-too"}, files={"file": ("x", b"2")}, headers=box.headers())
    assert "metadata" not in box.call("filesystem.Filesystem/Stat", {"path": "noted-too"}).json()["entry"]
    for name, value in (("X-Metadata-A", "x" * 5000), ("X-Metadata-" + "n" * 300, "x"), ("X-Metadata-B", b"\xe4")):
        refused = http.post(
            "/files", params={"path": "no"}, files={"file": ("no", b"")}, headers={**box.headers(), name: value}
        )
        assert (refused.status_code, refused.json()["code"]) == (400, 400), name


def test_search_for_the_sandbox_of_a_signature_is_bounded(server: Server, box: Box) -> None:
    """The server compares such a request with each token before it knows the caller. This test is the last one, because
    it creates more tokens than the server compares."""
    http, query = box.account.http, {**signed(box, "s", "read"), "signature": "v1_" + 43 * "A"}
    assert "invalid signature" in http.get("/files", params=query).text
    with server.http() as admin:
        for _ in range(MAX_SIGNERS):
            admin.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).raise_for_status()
    assert "too many tokens" in http.get("/files", params=query).text
    named = {"E2b-Sandbox-Id": box.id}
    assert "invalid signature" in http.get("/files", params=query, headers=named).text
    box.run("touch s")
    assert http.get("/files", params=signed(box, "s", "read"), headers=named).status_code == 200
