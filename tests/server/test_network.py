"""The network policy over plain HTTP: read, changed, rejected by name, separate per owner."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
from support.server import Server


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    with server.http() as client:
        sandbox = client.post("/v1/sandboxes", json={"network": {"allow": ["a.test"]}}).json()["id"]
        client.base_url = httpx2.URL(f"http://localhost/v1/sandboxes/{sandbox}")
        yield client
        client.base_url = httpx2.URL("http://localhost")
        client.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def error(answer: httpx2.Response, status: int) -> dict[str, str]:
    assert answer.status_code == status, answer.text
    found: dict[str, str] = answer.json()["error"]
    return found


def itself(http: httpx2.Client) -> dict[str, object]:
    found: dict[str, object] = http.get(str(http.base_url).rstrip("/")).json()
    return found


def test_policy_can_be_read_replaced_and_extended(http: httpx2.Client) -> None:
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
def test_invalid_rule_is_rejected_and_changes_nothing(http: httpx2.Client, method: str, rule: str) -> None:
    refused = error(http.request(method, "/network", json={"allow": ["fine.test", rule]}), 400)
    assert refused["message"].startswith("network.allow")
    assert http.get("/network").json()["network"] == {"allow": ["a.test"]}


def test_preset_name_without_rules_is_rejected_with_a_hint(http: httpx2.Client) -> None:
    refused = error(http.put("/network", json={"presets": ["pip"]}), 400)
    assert "'pip'" in refused["message"]
    assert "SDK" in refused["hint"]
    carried = {"name": "pip", "allow": ["index.test"], "env": {"PIP_INDEX_URL": "https://index.test/simple"}}
    assert http.put("/network", json={"presets": [carried]}).json()["network"] == {"presets": [carried]}


def test_rule_beyond_the_operators_maximum_is_rejected_by_name(http: httpx2.Client) -> None:
    refused = error(http.put("/network", json={"max_connections": 2000}), 429)
    assert "max.connections" in refused["message"]


def test_peer_must_be_another_sandbox_of_the_same_owner(http: httpx2.Client, server: Server) -> None:
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


def test_a_policy_of_ten_thousand_hosts_fits(http: httpx2.Client) -> None:
    hosts = [f"host-{n}.example.test" for n in range(10_000)]
    assert len(http.put("/network", json={"allow": hosts}).json()["network"]["allow"]) == 10_000


def test_policy_of_another_owner_is_not_found(http: httpx2.Client, server: Server) -> None:
    with server.http() as other:
        token = other.post("/v1/tokens", json={"scope": "use", "owner": "bob"}).json()["secret"]
    http.headers["Authorization"] = f"Bearer {token}"
    try:
        for path in ("/network", "/network/log", "/network/suggested-policy", "/network/approvals"):
            assert http.get(path).status_code == 404
        assert http.put("/network", json={}).status_code == 404
        assert http.patch("/network", json={"allow": ["b.test"]}).status_code == 404
        assert http.post("/network/approvals/q-aaaaaaaaaa", json={"allow": True}).status_code == 404
    finally:
        del http.headers["Authorization"]
    assert http.get("/network").json()["network"] == {"allow": ["a.test"]}


def test_policy_of_a_stopped_sandbox_is_read_without_a_resume(http: httpx2.Client) -> None:
    http.post("/stop").raise_for_status()
    assert http.patch("/network", json={"allow": ["b.test"]}).json()["network"] == {"allow": ["a.test", "b.test"]}
    assert http.get("/network/log").text == ""
    assert itself(http)["state"] == "stopped"


def test_unknown_approval_request_cannot_be_answered(http: httpx2.Client) -> None:
    assert error(http.post("/network/approvals/q-aaaaaaaaaa", json={"allow": True}), 404)["hint"]
    assert http.post("/network/approvals/%2e%2e", json={"allow": True}).status_code == 404
    assert error(http.post("/network/approvals/q-aaaaaaaaaa", json={"allow": "yes"}), 400)


@pytest.mark.parametrize("query", ["since=-1", "limit=0", "limit=1&follow=true", "denied=maybe", "since=x"])
def test_invalid_log_query_is_rejected(http: httpx2.Client, query: str) -> None:
    assert error(http.get(f"/network/log?{query}"), 400)


def test_log_and_approval_requests_are_ndjson_only(http: httpx2.Client) -> None:
    for path in ("/network/log", "/network/approvals"):
        assert http.get(path, headers={"Accept": "application/json"}).status_code == 406
    assert [json.loads(line) for line in http.get("/network/log?limit=5").text.splitlines()] == []
    assert http.get("/network/suggested-policy").json() == {}


def test_attack_token_of_scope_use_redirects_no_secret_of_its_owner(server: Server) -> None:
    """A preset with a caller's certificates and proxy, on a sandbox with a secret, would read the secret."""
    secret = {"name": "TOKEN", "hosts": ["api.test"], "value": "tok-5f2c8d1e9a7b"}
    plain = {"name": "plain", "allow": ["index.test"], "env": {"A": "b"}}
    proxied = {"name": "proxied", "allow": ["api.test"], "proxy": "http://evil.test:3128"}
    trusting = {"name": "trusting", "certificates": "-----BEGIN CERTIFICATE-----"}
    with server.http() as admin, server.http() as user:
        for scope in ("use", "review"):
            token = admin.post("/v1/tokens", json={"scope": scope, "owner": "carol"}).json()["secret"]
            user.headers["Authorization"] = f"Bearer {token}"
            wanted = {"secrets": [secret], "network": {"presets": [proxied]}}
            made = user.post("/v1/sandboxes", json=wanted).json()["id"]  # this caller knows the value
            forks = user.post(f"/v1/sandboxes/{made}/fork", json={"n": 1}).json()["sandboxes"]
            for one in (made, *(fork["id"] for fork in forks)):
                network = f"/v1/sandboxes/{one}/network"
                before = user.get(network).json()["network"]
                for preset in (
                    trusting,
                    {**proxied, "name": "b", "allow": ["*"]},
                    {**proxied, "proxy": "http://b.test:1"},
                ):
                    for method in ("PUT", "PATCH"):
                        refused = error(user.request(method, network, json={"presets": [preset]}), 403)
                        assert "secrets" in refused["message"]
                        assert user.get(network).json()["network"] == before
                assert user.patch(network, json={"presets": [plain], "allow": ["b.test"]}).status_code == 200
                assert user.put(network, json={"presets": [proxied]}).status_code == 200, "it has this proxy already"
                assert admin.put(network, json={"presets": [trusting]}).status_code == 200
                assert user.put(network, json={}).status_code == 200
                assert user.patch(f"/v1/sandboxes/{one}", json={"secrets": []}).status_code == 200
                assert user.put(network, json={"presets": [trusting]}).status_code == 200, "no secret is left to read"
                assert user.patch(f"/v1/sandboxes/{one}", json={"secrets": [secret]}).status_code == 200
                admin.delete(f"/v1/sandboxes/{one}").raise_for_status()


def test_handlers_are_added_and_removed_and_invalid_ones_change_nothing(http: httpx2.Client) -> None:
    given = {"host": "a.test", "answer": {"status": 404, "headers": {"X-Local": "1"}, "body": "aGk="}}
    info = http.patch("/network", json={"handlers": [given], "mirror": ["a.test"]}).json()["network"]
    stored = {**given, "answer": {**given["answer"], "headers": [["X-Local", "1"]]}}  # type: ignore[dict-item]
    assert (info["handlers"], info["mirror"]) == ([stored], ["a.test"])
    for wrong in (
        {"host": "a.test"}, {"host": "a.test@10.0.0.1", "redirect": "b.test"}, {"host": "a.test", "redirect": "b/c"},
        {"host": "a.test", "set_headers": {"Content-Length": "5"}}, {"host": "a.test", "callback": "always"},
        {"host": "a.test", "answer": {"status": 100}}, {"host": "a.test", "answer": {"body": "not base64!"}},
        {"host": "a.test", "answer": {"headers": [["X", "a\r\nb: c"]]}},
    ):  # fmt: skip
        assert error(http.patch("/network", json={"handlers": [wrong]}), 400), wrong
        assert error(http.put("/network", json={"handlers": [wrong]}), 400), wrong
    assert http.get("/network").json()["network"]["handlers"] == [stored]
    assert "handlers" not in http.patch("/network", json={"remove_handlers": ["a.test"]}).json()["network"]


def test_decision_about_an_unknown_call_is_not_found(http: httpx2.Client) -> None:
    for name in ("h-aaaaaaaaaa", "x", "h-AAAAAAAAAA"):
        assert error(http.post(f"/network/handlers/{name}", json={}), 404)
    assert error(http.post("/network/handlers/h-aaaaaaaaaa", json={"headers": [["Host", "b.test"]]}), 400)
    assert error(http.get("/network/handlers", params={"host": "a.test"}), 400)
    assert error(http.get("/network/handlers"), 400)
