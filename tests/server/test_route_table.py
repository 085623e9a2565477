"""One table: what is served, what is documented and what the handlers are written for are the same."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from server.listening import Listening

from skerry.server.answers import STATUSES
from skerry.server.app import ROUTES, make_app
from skerry.server.control import Control
from skerry.server.endpoint import Endpoint
from skerry.server.openapi import document, operation_id, shown_path


def test_the_document_lists_exactly_the_table() -> None:
    paths = document(ROUTES)["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == {(route.method, shown_path(route)) for route in ROUTES}
    assert len(documented) == len(ROUTES)


async def test_the_application_serves_exactly_the_table() -> None:
    served = set()
    for route in make_app(None, Control()).router.routes:  # type: ignore[arg-type]
        endpoint = route.endpoint  # type: ignore[attr-defined]
        assert isinstance(endpoint, Endpoint)
        served |= {(method, r.path) for method, r in endpoint.routes.items() if method != "HEAD"}
        assert ("HEAD" in endpoint.routes) == ("GET" in endpoint.routes)
    assert served == {(route.method, route.path) for route in ROUTES}


def test_the_document_is_served(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.get("/openapi.json")
    assert answer.json()["openapi"] == "3.1.0"
    assert answer.json() == json.loads(json.dumps(document(ROUTES)))


def test_every_reference_in_the_document_leads_somewhere() -> None:
    text = json.dumps(document(ROUTES))
    schemas = document(ROUTES)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(schemas)


def test_operation_ids_are_unique() -> None:
    ids = [operation_id(route) for route in ROUTES]
    assert len(set(ids)) == len(ids)


def test_every_path_parameter_is_described() -> None:
    for path, methods in document(ROUTES)["paths"].items():
        for operation in methods.values():
            described = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert described == set(re.findall(r"\{(\w+)\}", path))


def test_bodies_come_with_the_methods_that_have_them() -> None:
    for route in ROUTES:
        assert not (route.method in ("GET", "DELETE") and (route.takes_json or route.takes))
        assert (route.status == 204) == (inspect.signature(route.handler).return_annotation == "None")


def test_only_the_health_check_is_open() -> None:
    assert [route.path for route in ROUTES if route.scope is None] == ["/healthz"]


def test_what_touches_the_host_is_the_admins() -> None:
    admin = {(route.method, route.path) for route in ROUTES if route.scope == "admin"}
    assert admin == {
        ("POST", "/v1/images"), ("POST", "/v1/images/from-snapshot"), ("POST", "/v1/images/pull"),
        ("POST", "/v1/images/import"),
        ("POST", "/v1/images/prune"), ("POST", "/v1/images/verify"), ("DELETE", "/v1/images/{name:path}"),
        ("GET", "/v1/pool"), ("PUT", "/v1/pool"), ("DELETE", "/v1/pool"),
        ("POST", "/v1/tokens"), ("GET", "/v1/tokens"), ("DELETE", "/v1/tokens/{token}"),
        ("POST", "/v1/server/stop"), ("GET", "/v1/doctor"),
    }  # fmt: skip


def test_every_error_code_has_a_status() -> None:
    from skerry import errors

    codes = {e.code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.SkerryError)}
    not_over_http = {"command_failed", "command_timeout", "server_unreachable"}
    assert codes - not_over_http == set(STATUSES)


def test_the_document_says_what_a_signal_request_looks_like() -> None:
    paths: dict[str, Any] = document(ROUTES)["paths"]
    operation = paths["/v1/sandboxes/{ref}/processes/{process}/signal"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/SignalRequest"}


def test_the_reference_page_lists_exactly_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    listed = set(re.findall(r"^\| `([A-Z]+ /\S*)` \| (\w+) \| (\d+) \| (.+) \|$", page, re.MULTILINE))
    wanted = {(f"{r.method} {shown_path(r)}", r.scope or "open", str(r.status), r.summary) for r in ROUTES}
    assert listed == wanted
    assert all(f"`{code}`" in page or code.startswith("file_") for code in STATUSES)
