"""Every route, fed with nonsense of the right shape and of the wrong one: refused or done, never a broken server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from support.server import Server

from skerry.server.app import ROUTES
from skerry.server.http.openapi import document, shown_path

NONSENSE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**53, 2**70, -(2**70), 0.1, 1e308, -1e-308, "", " ", "0", "-1", "a", "\0", "😀",
    "a" * 5000, "../../etc/passwd", "/", "/dev/null", "/proc/self/mem", "/sys", "%s%n", "$(id)", "1G", "1e9G", "NaN",
    "\r\nX: y", "\x1b[2J", "root", "base", [], [None], ["a"], ["\0"], [[]], {}, {"a": None}, {"": ""}, {"A=B": "x"},
    {"a": {"b": []}}, ["sleep", "1"],
)  # fmt: skip
# They take nothing that matters, and give nothing by themselves.
ENDLESS = {
    "/v1/sandboxes/{ref}/network/approvals",
    "/v1/sandboxes/{ref}/review/watch",
    "/v1/sandboxes/{ref}/trace",  # with `follow`
}
ANOTHER_PROTOCOLS = {"/mcp"}  # with a separate error format: tests/mcp/test_http.py
LEFT_ALONE = (
    ENDLESS | ANOTHER_PROTOCOLS | {"/v1/server/stop", "/v1/doctor", "/v1/images/{name:path}", "/v1/tokens/{token}"}
)
FUZZED = [r for r in ROUTES if r.path not in LEFT_ALONE]
READS_ALL = {"/v1/images/verify", "/v1/images/export"}  # of a real image, in seconds: other tests let them
SCHEMAS = document(ROUTES)["components"]["schemas"]


@pytest.fixture(scope="module")
def http(make_server: Callable[[], Server]) -> Iterator[httpx2.Client]:
    """To a server that no other test uses: nonsense may well empty its pool."""
    server = make_server().start()
    with server.http() as client:
        yield client
    server.retire()


@pytest.fixture(scope="module")
def sandbox_id(http: httpx2.Client) -> Iterator[str]:
    sandbox = http.post("/v1/sandboxes", json={}).json()["id"]
    yield sandbox
    http.delete(f"/v1/sandboxes/{sandbox}").raise_for_status()


def body_for(schema: dict[str, Any], chance: random.Random, depth: int = 0) -> Any:
    """Mostly a value that fits the schema's fields, with nonsense in one or two of them."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if depth > 3 or chance.random() < 0.15 or "properties" not in schema:
        return chance.choice(NONSENSE)
    names = [name for name in schema["properties"] if name in schema.get("required", ()) or chance.random() < 0.3]
    made = {name: body_for(schema["properties"][name], chance, depth + 1) for name in names}
    return made | ({"nonsense": 1} if chance.random() < 0.05 else {})


def query_for(operation: dict[str, Any], chance: random.Random) -> list[tuple[str, str]]:
    wanted = [p for p in operation["parameters"] if p["in"] == "query" and chance.random() < 0.8]
    plausible = ("true", "false", "/workspace", "/etc/hostname", "0644", "root", "running", "a=b")
    query = [(p["name"], str(chance.choice((*plausible, *NONSENSE)))) for p in wanted]
    return query + ([query[0]] if query and chance.random() < 0.05 else [])


@pytest.mark.parametrize("route", FUZZED, ids=lambda route: f"{route.method} {route.path}")
def test_random_request_gets_a_response(http: httpx2.Client, sandbox_id: str, route: Any) -> None:
    operation = document([route])["paths"][shown_path(route)][route.method.lower()]
    chance = random.Random(f"{route.method} {route.path}")
    made: list[str] = []
    for _ in range(60):
        path = shown_path(route).replace("{process}", "p-aaaaaaaaaa").replace("{approval}", "q-aaaaaaaaaa")
        path = path.replace("{ref}", sandbox_id if not path.endswith("{ref}") or route.method != "DELETE" else "nobody")
        content: dict[str, Any] = {}
        if route.takes_json:
            body = body_for({"$ref": f"/{route.body.__name__}"}, chance)
            if path.endswith("processes") and isinstance(body, dict):
                body |= {"timeout": 2}
            if path == "/v1/images" and isinstance(body, dict) and body.get("snapshot") is None:
                body["snapshot"] = "nobody"  # without a snapshot it would build a real image
            text = json.dumps(body).replace("base", "\\ud800") if chance.random() < 0.1 else json.dumps(body)
            content = {"content": text.encode(), "headers": {"Content-Type": "application/json"}}
        elif route.takes:
            content["content"] = chance.randbytes(chance.randrange(100))
        query = query_for(operation, chance)
        if route.path in READS_ALL:
            query = [one for one in query if one[1] != "base"] or [("name", "nobody")]
        answer = http.request(route.method, path, params=query, **content)
        assert answer.status_code < 500, (content, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"code", "message", "hint", "details"}
        elif route.path == "/v1/sandboxes" and route.method == "POST":
            made.append(answer.json()["id"])
    for sandbox in made:
        assert http.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_sandbox_still_works_after_random_requests(http: httpx2.Client, sandbox_id: str) -> None:
    http.post(f"/v1/sandboxes/{sandbox_id}/resume").raise_for_status()
    answer = http.post(
        f"/v1/sandboxes/{sandbox_id}/processes", params={"wait": "true"}, json={"cmd": ["echo", "fine"], "cwd": "/"}
    )
    assert answer.json()["stdout"] == "fine\n"
