"""Sessions over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
from support.server import Server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    with server.http() as client:
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        client.base_url = httpx2.URL(f"http://localhost/v1/sandboxes/{sandbox}")
        yield client
        client.base_url = httpx2.URL("http://localhost")
        client.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def run(http: httpx2.Client, body: dict[str, object], accept: str = "application/json") -> httpx2.Response:
    return http.post("/processes", params={"wait": "true"}, json=body, headers={"Accept": accept})


def test_session_is_created_used_listed_and_removed(http: httpx2.Client) -> None:
    made = http.post("/sessions", json={"name": "s", "cwd": "/usr", "env": {"A": "1", "LANG": None}}).json()
    assert (made["name"], made["cwd"], made["user"], made["busy"], made["waiting"]) == ("s", "/usr", "user", False, 0)
    assert http.post("/sessions", json={"name": "s"}).json() == made
    done = run(http, {"cmd": "echo $A ${LANG-unset}; cd /", "session": "s"}).json()
    assert (done["stdout"], done["cwd"], done["hint"]) == ("1 unset\n", "/", None)
    assert http.get("/sessions/s").json()["cwd"] == "/"
    assert [found["name"] for found in http.get("/sessions").json()["sessions"]] == ["s"]
    assert http.delete("/sessions/s").status_code == 204
    assert http.get("/sessions/s").status_code == http.delete("/sessions/s").status_code == 404
    assert run(http, {"cmd": "true", "session": "s"}).status_code == 404


def test_stream_ends_with_the_directory_of_the_session(http: httpx2.Client) -> None:
    http.post("/sessions", json={"name": "t"}).raise_for_status()
    lines = run(http, {"cmd": "cd /tmp; echo x", "session": "t"}, "application/x-ndjson").text.splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["started", "stdout", "exit"]
    assert json.loads(lines[-1])["exit"]["cwd"] == "/tmp"
    killed = run(http, {"cmd": "kill -9 $$", "session": "t"}).json()
    assert (killed["signal"], killed["cwd"]) == ("KILL", "/tmp")
    assert "as it was before" in killed["hint"]


def test_run_without_a_session_reports_no_directory(http: httpx2.Client) -> None:
    assert run(http, {"cmd": "cd /tmp"}).json()["cwd"] is None


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": "A"}, {"name": "a/b"}, {"name": 1}, {"name": "a", "more": 1},
             {"name": "a", "env": []}, {"name": "a", "env": {"a b": "x"}}, {"name": "a", "user": ""}],
)  # fmt: skip
def test_invalid_request_is_rejected(http: httpx2.Client, body: dict[str, object]) -> None:
    answer = http.post("/sessions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["A", "a%2fb", "..%2f", "%00", "a" * 64])
def test_invalid_name_is_not_found(http: httpx2.Client, name: str) -> None:
    assert http.get(f"/sessions/{name}").status_code == 404
    assert http.delete(f"/sessions/{name}").status_code == 404
