"""Access control by host name, origin and token, before any effect."""

from __future__ import annotations

import httpx2
import pytest
from support.listening_server import Listening

from skerry.server.app import ROUTES
from skerry.server.http.auth import GRANTS, Authenticator, allowed_hosts, canonical_host
from skerry.server.http.call import Headers
from skerry.server.http.responses import MisdirectedRequest


def concrete(path: str) -> str:
    for name, value in (("{ref}", "a"), ("{process}", "p-aaaaaaaaaa"), ("{name:path}", "base"), ("{token}", "tk-a")):
        path = path.replace(name, value)
    return path


def everything() -> list[tuple[str, str]]:
    return [(route.method, concrete(route.path)) for route in ROUTES]


def test_unix_socket_needs_no_token_and_is_admin(listening: Listening) -> None:
    with listening.unix() as http:
        assert http.get("/v1/tokens").status_code == 200


def test_tcp_needs_a_token_on_every_route(listening: Listening) -> None:
    with listening.tcp() as http:
        for method, path in everything():
            answer = http.request(method, path, headers={"Content-Type": "application/json"})
            if path in ("/healthz", "/readyz"):
                assert answer.status_code != 401
            else:
                assert (path, answer.status_code) == (path, 401)
                assert answer.json()["error"]["code"] == "permission_denied"
                assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/", "/nothing", "/v1", "/v1/sandboxes/", "/docs", "/stats", "/v1//sandboxes"])
def test_request_without_a_token_does_not_reveal_paths(listening: Listening, token: str, path: str) -> None:
    with listening.tcp() as http:
        assert http.get(path).status_code == 401
    with listening.tcp(token) as http:
        assert http.get(path).status_code == 404


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer skt_",
        "Bearer x",
        "Basic skt_x",
        "skt_x",
        "Bearer skt_" + "a" * 40,
        "Bearer skt_ü",
    ],
)
def test_invalid_token_is_rejected_on_both_transports(listening: Listening, header: str) -> None:
    for http in (listening.tcp(), listening.unix()):
        with http:
            answer = http.get("/v1/sandboxes", headers={"Authorization": header.encode()})
        assert answer.status_code == 401


def test_token_in_the_query_is_ignored(listening: Listening, token: str) -> None:
    with listening.tcp() as http:
        for name in ("token", "access_token", "authorization"):
            assert http.get("/v1/sandboxes", params={name: token}).status_code == 401
    with listening.tcp(token) as http:
        assert http.get("/v1/sandboxes", params={"token": token}).status_code == 400


def test_token_on_the_unix_socket_restricts_permissions(listening: Listening, token: str) -> None:
    with listening.unix() as http:
        assert http.get("/v1/tokens", headers={"Authorization": f"Bearer {token}"}).status_code == 403


@pytest.mark.parametrize(("method", "path"), [(r.method, concrete(r.path)) for r in ROUTES if r.scope == "admin"])
def test_admin_routes_are_denied_to_others(listening: Listening, token: str, method: str, path: str) -> None:
    with listening.tcp(token) as http:
        answer = http.request(method, path)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "permission_denied"
    assert "admin" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def scraper(listening: Listening) -> str:
    """Return a token with the scope `metrics`."""
    with listening.unix() as http:
        answer = http.post("/v1/tokens", json={"scope": "metrics", "note": "prometheus"})
    assert answer.status_code == 201
    return str(answer.json()["secret"])


def test_metrics_token_is_denied_on_every_other_route(listening: Listening, scraper: str) -> None:
    """A leaked token of a monitor starts nothing and sees no sandbox, also as an API key and on a WebSocket."""
    calls = len(listening.engine.calls)
    with listening.tcp(scraper) as http:
        for route in ROUTES:
            if route.scope in (None, "metrics"):
                continue
            answer = http.request(route.method, concrete(route.path))
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied"), route.path
        assert http.request("OPTIONS", "/v1/sandboxes").status_code in (403, 405)
    with listening.tcp() as http:
        protocols = {"Sec-WebSocket-Protocol": f"skerry.token.{scraper}"}
        path = "/v1/sandboxes/a/processes/p-aaaaaaaaaa/terminal"
        assert http.get(path, headers=protocols).status_code == 403
    assert len(listening.engine.calls) == calls


def test_only_metrics_and_admin_tokens_read_the_figures(listening: Listening, scraper: str) -> None:
    """Those of all owners: an owner's token must not read them."""
    with listening.unix() as http:
        for scope in ("use", "review"):
            secret = http.post("/v1/tokens", json={"scope": scope, "owner": "ann"}).json()["secret"]
            with listening.tcp(secret) as other:
                assert other.get("/metrics").status_code == 403
    metrics = next(route for route in ROUTES if route.path == "/metrics")
    assert metrics.scope == "metrics"
    for scope, allowed in (("metrics", True), ("use", False), ("review", False), ("admin", True)):
        assert ("metrics" in GRANTS[scope]) == allowed


def test_metrics_token_has_no_owner(listening: Listening) -> None:
    """With an owner, secrets that are derived from the token would stand for the owner's sandboxes."""
    with listening.unix() as http:
        answer = http.post("/v1/tokens", json={"scope": "metrics", "owner": "ann"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert "scope metrics" in answer.json()["error"]["message"]
        made = http.post("/v1/tokens", json={"scope": "metrics"}).json()
    assert made["owner"] == made["id"]


def test_removed_token_is_rejected(listening: Listening) -> None:
    with listening.unix() as http:
        made = http.post("/v1/tokens", json={"scope": "use"}).json()
        with listening.tcp(made["secret"]) as other:
            assert other.get("/v1/sandboxes").status_code == 200
            assert http.delete(f"/v1/tokens/{made['id']}").status_code == 204
            assert other.get("/v1/sandboxes").status_code == 401
        assert http.delete(f"/v1/tokens/{made['id']}").status_code == 404
        assert made["secret"] not in http.get("/v1/tokens").text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "localhost.evil", "", "a b", "[::1", "0.0.0.0"],
)
def test_foreign_host_is_rejected_on_every_route(listening: Listening, token: str, host: str) -> None:
    before = list(listening.engine.calls)
    with listening.tcp(token) as http:
        answers = [http.request(method, path, headers={"Host": host}) for method, path in everything()]
    assert {answer.status_code for answer in answers} == {421}
    assert {answer.json()["error"]["code"] for answer in answers} == {"permission_denied"}
    assert listening.engine.calls == before


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "box.example", "Box.Example.:443"]
)
def test_host_names_of_the_server_are_accepted(listening: Listening, token: str, host: str) -> None:
    with listening.tcp(token) as http:
        assert http.get("/v1/sandboxes", headers={"Host": host}).status_code == 200


def test_wildcard_listener_accepts_the_local_address_of_a_connection() -> None:
    door = Authenticator(None, allowed_hosts("0.0.0.0", ("box",)))  # type: ignore[arg-type]
    door.check_source(Headers([(b"host", b"192.0.2.7:7070")]), "192.0.2.7")
    door.check_source(Headers([(b"host", b"box")]), "192.0.2.7")
    for host in (b"192.0.2.8", b"*", b"evil.example", b"0.0.0.0"):
        with pytest.raises(MisdirectedRequest):
            door.check_source(Headers([(b"host", host)]), "192.0.2.7")


def test_hosts_are_compared_in_canonical_form() -> None:
    assert canonical_host("[0:0:0:0:0:0:0:1]") == "::1"
    assert canonical_host("Example.COM.") == "example.com"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:7070", "file://", "", "https://mine.example.evil"]
)
@pytest.mark.parametrize("unix", [True, False])
def test_foreign_origin_is_rejected_on_every_route(listening: Listening, token: str, origin: str, unix: bool) -> None:
    before = list(listening.engine.calls)
    with listening.unix() if unix else listening.tcp(token) as http:
        answers = [http.request(method, path, headers={"Origin": origin}) for method, path in everything()]
    assert {answer.status_code for answer in answers} == {403}
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)
    assert listening.engine.calls == before


def test_configured_origin_is_accepted(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        assert http.get("/v1/sandboxes", headers={"Origin": "https://mine.example"}).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("none", 200), ("same-origin", 200)]
)
def test_cross_site_browser_request_is_rejected(listening: Listening, site: str, status: int) -> None:
    with listening.unix() as http:
        assert http.get("/healthz", headers={"Sec-Fetch-Site": site}).status_code == status


def test_preflight_is_not_allowed(listening: Listening) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with listening.tcp() as http:
        answer: httpx2.Response = http.options("/v1/sandboxes", headers=asked)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
