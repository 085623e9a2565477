"""Web pages that use the API: those of the configured origins, with a token, and no others."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from server.test_auth import everything
from support.listening_server import Listening
from support.server import Server

from skerry.config import load
from skerry.errors import InvalidRequest

MINE = "https://mine.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
FOREIGN = [
    "https://evil.example", "https://mine.example.evil", "https://mine.example:444", "http://mine.example",
    "https://MINE.example", "https://mine.example/", "https://mine.example, https://evil.example", "null", "*", "",
]  # fmt: skip


def cors(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_page_of_a_configured_origin_reads_responses_and_errors(listening: Listening, token: str) -> None:
    for given, status in ((token, {200, 404}), (None, {401})):
        with listening.tcp(given) as http:
            for path in ("/v1/sandboxes", "/v1/sandboxes/none", "/nowhere"):
                answer = http.get(path, headers={"Origin": MINE})
                assert answer.status_code in status
                assert answer.headers["access-control-allow-origin"] == MINE
                assert answer.headers["vary"] == "Origin"
                assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
                assert "access-control-allow-credentials" not in answer.headers


def test_page_reads_streams_files_and_mcp(make_server: Callable[[], Server]) -> None:
    server = make_server().start("--listen", "127.0.0.1:0", SKERRY_SERVER_ALLOWED_ORIGINS=MINE)
    with server.http() as admin:
        url = admin.get("/v1/server").json()["addresses"][1]
        secret = admin.post("/v1/tokens", json={"scope": "use"}).json()["secret"]
    headers = {"Authorization": f"Bearer {secret}", "Origin": MINE}
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as page:
        one = f"/v1/sandboxes/{page.post('/v1/sandboxes', json={}).json()['id']}"
        with page.stream(
            "POST", f"{one}/processes?wait=true", json={"cmd": "echo x"}, headers={"Accept": "text/event-stream"}
        ) as ran:
            assert b'data: {"stdout":"x\\n"}' in ran.read()
        page.put(f"{one}/files?path=a", content=b"abc").raise_for_status()
        part = page.get(f"{one}/files?path=a", headers={"Range": "bytes=1-1"})
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"},
        }}  # fmt: skip
        mcp = page.post("/mcp", json=hello, headers={"Accept": "application/json, text/event-stream"})
        assert (part.content, mcp.status_code) == (b"b", 200)
        for answer, header in ((ran, "x-request-id"), (part, "content-range"), (mcp, "mcp-session-id")):
            assert answer.headers["access-control-allow-origin"] == MINE
            assert header in answer.headers["access-control-expose-headers"].lower().split(", ")
            assert header in answer.headers
        page.delete(one).raise_for_status()
    server.retire()


def test_preflight_of_a_configured_origin_needs_no_token_and_has_no_effect(listening: Listening) -> None:
    before = list(listening.engine.calls)
    with listening.tcp() as http:
        answers = [http.options(path, headers={"Origin": MINE, **PREFLIGHT}) for _, path in everything()]
    assert {answer.status_code for answer in answers} == {204}
    assert listening.engine.calls == before
    assert len({tuple(sorted(cors(answer).items())) for answer in answers}) == 1, "it tells nothing about a path"
    allowed = cors(answers[0])
    assert allowed["access-control-allow-origin"] == MINE
    assert {"GET", "POST", "PUT", "PATCH", "DELETE"} <= {*allowed["access-control-allow-methods"].split(", ")}
    headers = {name.lower() for name in allowed["access-control-allow-headers"].split(", ")}
    assert {"authorization", "content-type", "idempotency-key", "range"} <= headers
    assert "*" not in str(allowed)
    assert "access-control-allow-credentials" not in allowed


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("unix", [True, False])
def test_page_of_another_origin_gets_no_access(listening: Listening, token: str, origin: str, unix: bool) -> None:
    before = list(listening.engine.calls)
    with listening.unix() if unix else listening.tcp(token) as http:
        answers = [
            http.request(method, path, headers={"Origin": origin, **more})
            for path in ("/v1/sandboxes", "/healthz", "/mcp", "/nowhere")
            for method, more in (("OPTIONS", PREFLIGHT), ("GET", {}), ("POST", {}))
        ]
    assert {answer.status_code for answer in answers} == {403}
    assert not any(cors(answer) for answer in answers)
    assert listening.engine.calls == before


def test_page_with_two_origins_gets_no_access(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        for origins in ((MINE, "https://evil.example"), ("https://evil.example", MINE)):
            headers = [("Origin", origin) for origin in origins]
            for method in ("GET", "OPTIONS"):
                answer = http.request(method, "/v1/sandboxes", headers=[*headers, *PREFLIGHT.items()])
                assert (answer.status_code, cors(answer)) == (400, {})


def test_page_on_a_rebound_host_name_gets_no_access(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        for method in ("GET", "OPTIONS"):
            headers = {"Origin": MINE, "Host": "evil.example", **PREFLIGHT}
            answer = http.request(method, "/v1/sandboxes", headers=headers)
            assert (answer.status_code, cors(answer)) == (421, {})


def test_caller_without_a_page_gets_no_headers_for_pages(listening: Listening, token: str) -> None:
    with listening.tcp(token) as http:
        assert not cors(http.get("/v1/sandboxes"))
        assert http.options("/v1/sandboxes", headers=PREFLIGHT).status_code == 405
        plain = http.options("/v1/sandboxes", headers={"Origin": MINE})
    assert (plain.status_code, plain.headers["access-control-allow-origin"]) == (405, MINE)


@pytest.mark.parametrize(
    "origin", ["*", "null", "https://*", "https://a.example/", "https://a.example/path", "a.example", "https://A.example",
               "https://", "https://a.example\r\nx: y", "https://a@b.example", "https://ä.example"],
)  # fmt: skip
def test_value_that_is_not_an_origin_is_rejected(origin: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an origin"):
        load(flags={"server.allowed_origins": [origin]})


@pytest.mark.parametrize(
    "origin", [MINE, "http://localhost:3000", "http://[::1]:8080", "tauri://localhost", "chrome-extension://abcdef"]
)
def test_origin_of_a_browser_is_a_valid_setting(origin: str) -> None:
    assert load(flags={"server.allowed_origins": [origin]})["server.allowed_origins"] == (origin,)
