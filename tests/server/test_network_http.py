"""What may leave a sandbox, over plain HTTP: shown, changed, refused by name; whose it is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from serving import Server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        sandbox = client.post("/v1/sandboxes", json={"network": {"allow": ["a.test"]}}).json()["id"]
        client.base_url = httpx.URL(f"http://localhost/v1/sandboxes/{sandbox}")
        yield client
        client.base_url = httpx.URL("http://localhost")
        client.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def error(answer: httpx.Response, status: int) -> dict[str, str]:
    assert answer.status_code == status, answer.text
    found: dict[str, str] = answer.json()["error"]
    return found


def itself(http: httpx.Client) -> dict[str, object]:
    found: dict[str, object] = http.get(str(http.base_url).rstrip("/")).json()
    return found


def test_a_policy_is_shown_replaced_and_added_to(http: httpx.Client) -> None:
    info = http.get("/network").json()
    assert info["network"] == {"allow": ["a.test"]}
    assert (info["sent"], info["received"], info["open_connections"]) == (0, 0, 0)
    info = http.put("/network", json={"allow": ["b.test:8080"], "deny": ["c.test"]}).json()
    assert info["network"] == {"allow": ["b.test:8080"], "deny": ["c.test"]}
    info = http.patch("/network", json={"allow": ["c.test"], "deny": ["b.test:8080"]}).json()
    assert info["network"] == {"allow": ["c.test"], "deny": ["b.test:8080"]}
    assert http.get("/network").json()["network"] == info["network"] == itself(http)["network"]
    assert http.put("/network", json={}).json()["network"] == {}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    "rule",
    ["https://a.test", "a.test b.test", "a.test:99999", "évil.test", "a.test\0.b.test", "", "10.0.0.0/33"],
)
def test_a_rule_that_is_none_is_refused_and_changes_nothing(http: httpx.Client, method: str, rule: str) -> None:
    refused = error(http.request(method, "/network", json={"allow": ["fine.test", rule]}), 400)
    assert refused["message"].startswith("network.allow")
    assert http.get("/network").json()["network"] == {"allow": ["a.test"]}


def test_a_preset_by_its_name_alone_is_refused_with_a_hint(http: httpx.Client) -> None:
    refused = error(http.put("/network", json={"presets": ["pip"]}), 400)
    assert "'pip'" in refused["message"]
    assert "SDK" in refused["hint"]
    carried = {"name": "pip", "allow": ["index.test"], "env": {"PIP_INDEX_URL": "https://index.test/simple"}}
    assert http.put("/network", json={"presets": [carried]}).json()["network"] == {"presets": [carried]}


def test_more_than_the_operator_allows_is_refused_by_name(http: httpx.Client) -> None:
    refused = error(http.put("/network", json={"connections": 2000}), 429)
    assert "max.connections" in refused["message"]


def test_a_peer_is_another_sandbox_of_the_same_owner(http: httpx.Client, server: Server) -> None:
    assert error(http.put("/network", json={"peers": {"db": "nobody"}}), 404)
    with server.http() as other:
        made = other.post("/v1/sandboxes", json={"name": "peer-db"}).json()["id"]
        try:
            answer = http.put("/network", json={"peers": {"db": "peer-db"}})
            assert answer.json()["network"] == {"peers": {"db": made}}
            token = other.post("/v1/tokens", json={"scope": "use", "owner": "ann"}).json()["secret"]
            theirs = other.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {token}"}).json()["id"]
            assert error(http.put("/network", json={"peers": {"db": theirs}}), 404)
            other.delete(f"/v1/sandboxes/{theirs}").raise_for_status()
        finally:
            other.delete(f"/v1/sandboxes/{made}").raise_for_status()


def test_a_policy_of_ten_thousand_hosts_fits(http: httpx.Client) -> None:
    hosts = [f"host-{n}.example.test" for n in range(10_000)]
    assert len(http.put("/network", json={"allow": hosts}).json()["network"]["allow"]) == 10_000


def test_nobody_sees_or_changes_what_belongs_to_another(http: httpx.Client, server: Server) -> None:
    with server.http() as other:
        token = other.post("/v1/tokens", json={"scope": "use", "owner": "bob"}).json()["secret"]
    http.headers["Authorization"] = f"Bearer {token}"
    try:
        for path in ("/network", "/network/log", "/network/learn", "/network/questions"):
            assert http.get(path).status_code == 404
        assert http.put("/network", json={}).status_code == 404
        assert http.patch("/network", json={"allow": ["b.test"]}).status_code == 404
        assert http.post("/network/questions/q-aaaaaaaaaa", json={"allow": True}).status_code == 404
    finally:
        del http.headers["Authorization"]
    assert http.get("/network").json()["network"] == {"allow": ["a.test"]}


def test_a_stopped_sandbox_has_a_policy_too_and_is_not_woken_for_it(http: httpx.Client) -> None:
    http.post("/stop").raise_for_status()
    assert http.patch("/network", json={"allow": ["b.test"]}).json()["network"] == {"allow": ["a.test", "b.test"]}
    assert http.get("/network/log").text == ""
    assert itself(http)["state"] == "stopped"


def test_a_question_that_is_not_there_can_not_be_answered(http: httpx.Client) -> None:
    assert error(http.post("/network/questions/q-aaaaaaaaaa", json={"allow": True}), 404)["hint"]
    assert http.post("/network/questions/%2e%2e", json={"allow": True}).status_code == 404
    assert error(http.post("/network/questions/q-aaaaaaaaaa", json={"allow": "yes"}), 400)


@pytest.mark.parametrize("query", ["since=-1", "limit=0", "limit=1&follow=true", "denied=maybe", "since=x"])
def test_a_log_is_asked_for_sensibly(http: httpx.Client, query: str) -> None:
    assert error(http.get(f"/network/log?{query}"), 400)


def test_a_log_and_questions_are_lines_and_nothing_else(http: httpx.Client) -> None:
    for path in ("/network/log", "/network/questions"):
        assert http.get(path, headers={"Accept": "application/json"}).status_code == 406
    assert [json.loads(line) for line in http.get("/network/log?limit=5").text.splitlines()] == []
    assert http.get("/network/learn").json() == {}
