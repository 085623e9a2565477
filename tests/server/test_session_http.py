"""Sessions over plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from serving import Server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        client.base_url = httpx.URL(f"http://localhost/v1/sandboxes/{sandbox}")
        yield client
        client.base_url = httpx.URL("http://localhost")
        client.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def run(http: httpx.Client, body: dict[str, object], accept: str = "application/json") -> httpx.Response:
    return http.post("/processes", params={"wait": "true"}, json=body, headers={"Accept": accept})


def test_a_session_is_made_used_listed_and_forgotten(http: httpx.Client) -> None:
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


def test_a_stream_ends_with_where_the_session_stands(http: httpx.Client) -> None:
    http.post("/sessions", json={"name": "t"}).raise_for_status()
    lines = run(http, {"cmd": "cd /tmp; echo x", "session": "t"}, "application/x-ndjson").text.splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["started", "stdout", "exit"]
    assert json.loads(lines[-1])["exit"]["cwd"] == "/tmp"
    killed = run(http, {"cmd": "kill -9 $$", "session": "t"}).json()
    assert (killed["signal"], killed["cwd"]) == ("KILL", "/tmp")
    assert "as it was before" in killed["hint"]


def test_outside_of_a_session_there_is_no_such_thing(http: httpx.Client) -> None:
    assert run(http, {"cmd": "cd /tmp"}).json()["cwd"] is None


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": "A"}, {"name": "a/b"}, {"name": 1}, {"name": "a", "more": 1},
             {"name": "a", "env": []}, {"name": "a", "env": {"a b": "x"}}, {"name": "a", "cwd": "x"},
             {"name": "a", "user": ""}],
)  # fmt: skip
def test_nonsense_is_refused(http: httpx.Client, body: dict[str, object]) -> None:
    answer = http.post("/sessions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["A", "a%2fb", "..%2f", "%00", "a" * 64])
def test_a_name_that_can_t_be_is_not_found(http: httpx.Client, name: str) -> None:
    assert http.get(f"/sessions/{name}").status_code == 404
    assert http.delete(f"/sessions/{name}").status_code == 404
