"""Attacks over HTTP by a token of the scope `use`: on the host's files through the API, on others' things, on the calls
between server and keeper. (The route table's own checks are in tests/server.)"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from support.server import Server

from skerry.engine.tokens import MAX_TICKETS


@dataclass
class Intruder:
    """An honest token's bearer with bad intent, and a sandbox of theirs."""

    http: httpx2.Client
    sandbox: str
    authorization: str
    admin: httpx2.Client

    def run(self, line: str, **more: Any) -> dict[str, Any]:
        path = f"/v1/sandboxes/{self.sandbox}/processes?wait=true"
        answer: dict[str, Any] = self.http.post(path, json={"cmd": line, **more}).json()
        return answer

    def read(self, path: str, user: str = "root") -> httpx2.Response:
        return self.http.get(f"/v1/sandboxes/{self.sandbox}/files", params={"path": path, "user": user})

    def say(self, text: bytes, *, more: bool = False) -> bytes:
        """Send raw bytes, and return the response up to the end of the connection. more: keep the connection open."""
        address = urlsplit(str(self.http.base_url))
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=10) as line:
            line.sendall(text)
            if not more:
                line.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := line.recv(65536):
                answer += piece
            return answer


@pytest.fixture(scope="module")
def intruder(make_server: Callable[[], Server]) -> Iterator[Intruder]:
    server = make_server().start("--listen", "127.0.0.1:0")
    with server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        secret = admin.post("/v1/tokens", json={"scope": "use", "owner": "eve"}).json()["secret"]
        authorization = f"Bearer {secret}"
        with httpx2.Client(base_url=url, headers={"Authorization": authorization}, timeout=60) as http:
            made = http.post("/v1/sandboxes", json={"limits": {"memory": "256M"}})
            assert made.status_code == 201, made.text
            yield Intruder(http, made.json()["id"], authorization, admin)
            http.delete(f"/v1/sandboxes/{made.json()['id']}").raise_for_status()
    server.retire()


def ways_to(path: str) -> list[str]:
    """To a file of the host, by every path that the keeper, which opens it, might be led along."""
    up = "../" * 40
    links = [f"/proc/{who}/{what}" for who in ("1", "self", "thread-self") for what in ("root", "cwd")]
    fds = [f"/proc/self/fd/{number}" for number in range(12)]
    return [path, f"{up}{path}", *(f"{link}/{up}{path}" for link in links + fds), *(f"{link}{path}" for link in links)]


def test_no_path_leads_to_a_file_of_the_host(intruder: Intruder, facts: dict[str, Any]) -> None:
    for path in ways_to(facts["secret"]):
        for user in ("root", "user"):
            answer = intruder.read(path, user)
            assert answer.status_code >= 400, path
            assert facts["mark"] not in answer.text.replace(path, "")


def test_no_link_made_inside_leads_to_a_file_of_the_host(intruder: Intruder, facts: dict[str, Any]) -> None:
    for number, path in enumerate(ways_to(facts["secret"])):
        intruder.run(f"ln -sfn {path} /workspace/link-{number}")
        assert intruder.read(f"/workspace/link-{number}").status_code >= 400


def test_keeper_files_reveal_nothing_about_the_host(intruder: Intruder, facts: dict[str, Any]) -> None:
    """/proc/self is the keeper's when the keeper opens it."""
    for name in (
        "environ",
        "cmdline",
        "mountinfo",
        "mem",
        "maps",
        "cgroup",
        "fd/3",
        "fd/4",
        "fd/4/cgroup.procs",
        "status",
    ):
        answer = intruder.read(f"/proc/self/{name}")
        for secret in (facts["state_dir"], facts["mark"], "SKERRY_STATE_DIR", "skerry-test-"):
            assert secret not in answer.text


@pytest.mark.parametrize("number", range(12))
def test_open_directories_of_the_keeper_lead_nowhere(intruder: Intruder, number: int) -> None:
    """Its cgroup's is one: the way up from there must end at once."""
    for path in (f"/proc/self/fd/{number}/../..", f"/proc/self/fd/{number}/../../../.."):
        answer = intruder.http.get(
            f"/v1/sandboxes/{intruder.sandbox}/files/list", params={"path": path, "user": "root"}
        )
        names = {entry["name"] for entry in answer.json().get("entries", [])}
        assert not names & {"skerry", "system.slice", "init.scope", "user.slice", "process_api"}


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/proc/1/mem",
        "/proc/self/exe",
        "/run/skerry/bin/skerry-keeper",
        "/proc/sys/kernel/core_pattern",
        "/sys/kernel/uevent_helper",
        "/proc/self/fd/3",
        "/proc/self/oom_score_adj",
        "/dev/null/x",
        "/proc/self/fd/4/cgroup.procs",
    ],
)
def test_protected_files_cannot_be_written(intruder: Intruder, path: str) -> None:
    target = f"/v1/sandboxes/{intruder.sandbox}/files"
    answer = intruder.http.put(target, params={"path": path, "user": "root"}, content=b"x")
    assert 400 <= answer.status_code < 500
    assert intruder.run("echo alive")["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "image", ["../../../etc/passwd", "/etc", "base/../../x", "base\0", "./base", "..", "base/", "~root"]
)
def test_image_name_is_never_a_path(intruder: Intruder, image: str) -> None:
    answer = intruder.http.post("/v1/sandboxes", json={"image": image})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["code"] in ("invalid_request", "not_found")


@pytest.mark.parametrize("runtime", ["/bin/sh", "../crun", "sh", "crun\0", "--help", "runc; id"])
def test_caller_cannot_choose_the_runtime_program(intruder: Intruder, runtime: str) -> None:
    answer = intruder.http.post("/v1/sandboxes", json={"options": {"runtime": runtime}})
    assert 400 <= answer.status_code < 502
    assert answer.json()["error"]["code"] != "internal"


def test_waiving_a_provided_guarantee_does_not_remove_it(intruder: Intruder) -> None:
    """Only missing guarantees can be waived."""
    every = intruder.http.get(f"/v1/sandboxes/{intruder.sandbox}").json()["isolation"]["guarantees"]
    made = intruder.http.post(
        "/v1/sandboxes", json={"options": {"waive_guarantees": every}, "limits": {"memory": "256M"}}
    )
    if made.status_code == 201:
        other = Intruder(intruder.http, made.json()["id"], intruder.authorization)
        look = "grep -E 'Seccomp:|NoNewPrivs|CapEff' /proc/self/status; ls /sys/class/net"
        assert other.run(look)["stdout"] == intruder.run(look)["stdout"]
        assert set(made.json()["isolation"]["guarantees"]) == set(every)
        intruder.http.delete(f"/v1/sandboxes/{other.sandbox}").raise_for_status()
    else:
        assert made.json()["error"]["code"] in ("invalid_request", "permission_denied")


@pytest.mark.parametrize(
    "extra",
    [
        {"owner": "local"},
        {"id": "sb-aaaaaaaaaa"},
        {"state": "running"},
        {"mounts": ["/:/host"]},
        {"volumes": {"/": "/host"}},
        {"privileged": True},
        {"uid_base": 0},
        {"options": {"keeper": "/bin/sh"}},
        {"layers": ["/"]},
    ],
)
def test_forbidden_options_are_rejected(intruder: Intruder, extra: dict[str, Any]) -> None:
    answer = intruder.http.post("/v1/sandboxes", json=extra)
    assert answer.status_code == 400
    assert intruder.http.patch(f"/v1/sandboxes/{intruder.sandbox}", json=extra).status_code == 400


@pytest.mark.parametrize(
    "text",
    [
        "a HTTP/1.1\r\nX: y",
        "a\r\n\r\nDELETE /v1/files?path=/ HTTP/1.1\r\n\r\n",
        "a&user=root",
        "a?user=root#x",
        "a%00b",
        "a%2f..%2f..",
        "\u2028",
        "a b+c",
    ],
)
def test_path_cannot_inject_keeper_requests(intruder: Intruder, text: str) -> None:
    """Values in a request to the keeper stay values."""
    path = f"/workspace/{text.replace('/', '_')}"
    target = f"/v1/sandboxes/{intruder.sandbox}/files"
    made = intruder.http.put(target, params={"path": path}, content=b"mine")
    assert made.status_code == 200, made.text
    assert (made.json()["name"], made.json()["uid"]) == (path.removeprefix("/workspace/"), 1000)
    assert intruder.read(path).content == b"mine"
    assert intruder.run("ls / | wc -l")["exit_code"] == 0


@pytest.mark.parametrize(
    "user", ["root\r\nX: y", "../root", "0:0:0", "user\0", "-1", "4294967295", "4294967296", "0x0", "u" * 999]
)
def test_invalid_user_is_an_invalid_request(intruder: Intruder, user: str) -> None:
    answer = intruder.http.post(
        f"/v1/sandboxes/{intruder.sandbox}/processes?wait=true", json={"cmd": ["id"], "user": user}
    )
    assert answer.status_code == 400, answer.text
    assert intruder.read("/etc/hostname", user).status_code == 400


def test_second_request_on_a_connection_needs_a_token(intruder: Intruder) -> None:
    host = str(intruder.http.base_url.netloc, "ascii")
    first = f"GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\nAuthorization: {intruder.authorization}\r\n\r\n"
    second = f"GET /v1/sandboxes HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answer = intruder.say((first + second).encode(), more=True)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.count(b"HTTP/1.1 401") == 1


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 50",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Content-Length: +5",
        "Content-Length: 0x5",
    ],
)
def test_request_hidden_in_a_body_is_not_executed(intruder: Intruder, head: str) -> None:
    host = str(intruder.http.base_url.netloc, "ascii")
    common = f"Host: {host}\r\nAuthorization: {intruder.authorization}\r\n"
    hidden = f"DELETE /v1/sandboxes/{intruder.sandbox} HTTP/1.1\r\n{common}\r\n"
    outer = f"POST /v1/sandboxes HTTP/1.1\r\n{common}Content-Type: application/json\r\n{head}\r\n\r\n0\r\n\r\n"
    answer = intruder.say((outer + hidden).encode())
    assert answer.count(b"HTTP/1.1 2") == 0
    assert intruder.http.get(f"/v1/sandboxes/{intruder.sandbox}").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/../tokens",
        "/v1/sandboxes/%2e%2e/tokens",
        "//v1/tokens",
        "/v1/./tokens",
        "/v1/tokens;x",
        "/V1/tokens",
        "/v1/tokens%00",
        "/v1/sandboxes/..;/tokens",
        "http://localhost/v1/tokens",
        "/v1%2ftokens",
    ],
)
def test_no_path_variant_reaches_admin_routes(intruder: Intruder, path: str) -> None:
    host = str(intruder.http.base_url.netloc, "ascii")
    text = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {intruder.authorization}\r\nConnection: close\r\n\r\n"
    )
    answer = intruder.say(text.encode())
    assert answer.split(b" ")[1] in (b"400", b"403", b"404")
    assert b"skt_" not in answer


def test_tickets_of_one_owner_do_not_use_up_those_of_others(intruder: Intruder) -> None:
    path = f"/v1/sandboxes/{intruder.sandbox}/terminal-ticket"
    answers = [intruder.http.post(path) for _ in range(MAX_TICKETS + 1)]
    assert {answer.status_code for answer in answers[:MAX_TICKETS]} == {201}
    assert answers[-1].json()["error"]["code"] == "quota_exceeded"
    assert intruder.admin.post(path).status_code == 201


def test_process_of_another_sandbox_cannot_be_addressed(intruder: Intruder) -> None:
    for process in ("p-aaaaaaaaaa", "%2e%2e%2fconfig", "p-a%2f..%2f..%2fshutdown", "1", "-1"):
        for method, tail, body in (("GET", "", None), ("POST", "/signal", {"signal": "KILL"}), ("DELETE", "", None)):
            answer = intruder.http.request(
                method, f"/v1/sandboxes/{intruder.sandbox}/processes/{process}{tail}", json=body
            )
            assert answer.status_code in (400, 404, 405), (method, process)
    assert intruder.run("echo alive")["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100000,
        '{"a":' * 50000,
        '{"image": 1e999}',
        '{"limits": {"cpus": NaN}}',
        '{"name": "\\ud800"}',
        '{"env": {"A": "\\udfff"}}',
        '{"labels": {"\\u0000": "x"}}',
        '{"limits": {"pids": 1e30}}',
        "\ufeff{}",
    ],
)
def test_json_bomb_is_an_invalid_request(intruder: Intruder, body: str) -> None:
    answer = intruder.http.post(
        "/v1/sandboxes", content=body.encode("utf-8", "surrogatepass"), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400, answer.text[:300]
    assert json.loads(answer.text)["error"]["code"] == "invalid_request"
