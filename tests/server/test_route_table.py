"""One table: served routes, documented routes and handlers are the same."""

from __future__ import annotations

import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
from support.listening_server import Listening

from skerry.server.app import ROUTES, make_app
from skerry.server.control import Control
from skerry.server.http import audit
from skerry.server.http.endpoint import Endpoint
from skerry.server.http.openapi import document, operation_id, shown_path
from skerry.server.http.responses import NDJSON, STATUSES


def test_openapi_document_lists_exactly_the_table() -> None:
    paths = document(ROUTES)["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == {(route.method, shown_path(route)) for route in ROUTES}
    assert len(documented) == len(ROUTES)


async def test_application_serves_exactly_the_table() -> None:
    served = set()
    for route in make_app(None, Control()).router.routes:  # type: ignore[arg-type]
        endpoint = route.endpoint  # type: ignore[attr-defined]
        assert isinstance(endpoint, Endpoint)
        served |= {(method, r.path) for method, r in endpoint.routes.items() if method != "HEAD"}
        assert ("HEAD" in endpoint.routes) == ("GET" in endpoint.routes)
    assert served == {(route.method, route.path) for route in ROUTES}


def test_openapi_document_is_served(listening: Listening) -> None:
    with listening.unix() as http:
        answer = http.get("/openapi.json")
    assert answer.json()["openapi"] == "3.1.0"
    assert answer.json() == json.loads(json.dumps(document(ROUTES)))


def test_every_reference_in_the_document_resolves() -> None:
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


def test_only_methods_with_bodies_declare_one() -> None:
    for route in ROUTES:
        assert not (route.method in ("GET", "DELETE") and (route.takes_json or route.takes))
        assert (route.status == 204) == (inspect.signature(route.handler).return_annotation == "None")


def test_only_health_checks_need_no_token() -> None:
    assert [route.path for route in ROUTES if route.scope is None] == ["/healthz", "/readyz"]


def test_routes_that_touch_the_host_are_admin_only() -> None:
    admin = {(route.method, route.path) for route in ROUTES if route.scope == "admin"}
    assert admin == {
        ("POST", "/v1/images"), ("POST", "/v1/images/pull"),
        ("POST", "/v1/images/import"),
        ("POST", "/v1/images/prune"), ("POST", "/v1/images/verify"), ("DELETE", "/v1/images/{name:path}"),
        ("GET", "/v1/pool"), ("PUT", "/v1/pool"), ("DELETE", "/v1/pool"),
        ("POST", "/v1/tokens"), ("GET", "/v1/tokens"), ("DELETE", "/v1/tokens/{token}"),
        ("POST", "/v1/server/stop"), ("GET", "/v1/doctor"),
        ("GET", "/v1/audit/verify"), ("GET", "/v1/audit/export"), ("GET", "/v1/audit/keys"), ("POST", "/v1/audit/keys"),
        ("GET", "/v1/webhooks"), ("GET", "/v1/webhooks/dead"),
        ("POST", "/v1/webhooks/{webhook}/test"), ("POST", "/v1/webhooks/{webhook}/retry"),
    }  # fmt: skip
    assert [route.path for route in ROUTES if route.scope == "metrics"] == ["/metrics"]


def test_every_route_states_its_effect() -> None:
    """A route that changes something is recorded in the audit log. These POST routes only read, or pass calls on."""
    only_read = {
        ("POST", "/v1/sandboxes/{ref}/review/git/pack"), ("POST", "/v1/images/verify"), ("POST", "/mcp"),
        ("DELETE", "/mcp"),
    }  # fmt: skip
    open_connections = {
        ("GET", "/v1/sandboxes/{ref}/processes/{process}/terminal"),
        ("GET", "/v1/sandboxes/{ref}/ports/{port}/connect"),
    }  # fmt: skip
    recorded = {(route.method, route.path) for route in ROUTES if route.effect is not None}
    changing = {(route.method, route.path) for route in ROUTES if route.method != "GET"}
    assert recorded == (changing - only_read) | open_connections
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+", route.effect) for route in ROUTES if route.effect is not None)


def test_every_parameter_of_a_recorded_route_is_recorded_or_hidden() -> None:
    """A new field is not in the audit log until a table names it, and this test requires that one does."""
    known = audit.RECORDED | audit.NAMES_ONLY | audit.HIDDEN
    assert not audit.HIDDEN & (audit.RECORDED | audit.NAMES_ONLY)
    for route in ROUTES:
        if route.effect is not None:
            assert _field_names(route.query) | _field_names(route.body) <= known, route.path


def _field_names(kind: Any) -> set[str]:
    names = set()
    for one in msgspec.structs.fields(kind):
        names.add(one.name)
        nested = [part for part in (one.type, *typing.get_args(one.type)) if isinstance(part, type)]
        if one.name not in audit.HIDDEN | audit.NAMES_ONLY:
            for part in nested:
                names |= _field_names(part) if issubclass(part, msgspec.Struct) else set()
    return names


def test_every_error_code_has_a_status() -> None:
    from skerry import errors

    codes = {e.code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.SkerryError)}
    not_over_http = {"command_failed", "command_timeout", "out_of_memory", "network_denied", "server_unreachable"}
    assert codes - not_over_http == set(STATUSES)


def test_document_describes_the_signal_request() -> None:
    paths: dict[str, Any] = document(ROUTES)["paths"]
    operation = paths["/v1/sandboxes/{ref}/processes/{process}/signal"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/SignalRequest"}


def test_reference_page_lists_exactly_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    listed = set(re.findall(r"^\| `([A-Z]+ /\S*)` \| (\w+) \| (\d+) \| (.+) \|$", page, re.MULTILINE))
    wanted = {(f"{r.method} {shown_path(r)}", r.scope or "open", str(r.status), r.summary) for r in ROUTES}
    assert listed == wanted
    assert all(f"`{code}`" in page or code.startswith("file_") for code in STATUSES)


def test_document_has_the_status_of_a_partial_download() -> None:
    responses = document(ROUTES)["paths"]["/v1/sandboxes/{ref}/files"]["get"]["responses"]
    assert responses["206"]["content"] == responses["200"]["content"]
    assert set(responses["206"]["content"]) == {"application/octet-stream"}


def test_document_has_the_error_form_of_mcp() -> None:
    described = document(ROUTES)
    for method in ("post", "get", "delete"):
        responses = described["paths"]["/mcp"][method]["responses"]
        assert {one["$ref"] for one in responses["429"]["content"]["application/json"]["schema"]["anyOf"]} == {
            "#/components/schemas/McpErrorResponse", "#/components/schemas/ErrorResponse",
        }  # fmt: skip
        assert responses["401"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorResponse")
    assert {"jsonrpc", "error"} <= set(described["components"]["schemas"]["McpErrorResponse"]["required"])


def test_document_has_the_types_of_the_lines_of_a_stream() -> None:
    """Output of processes and code is described with the frames; a review's tree has one form for git."""
    described = document(ROUTES)["paths"]
    without = {shown_path(route) for route in ROUTES if NDJSON in route.gives and not route.lines}
    one = "/v1/sandboxes/{ref}"
    assert without == {f"{one}/processes", f"{one}/processes/{{process}}/output", f"{one}/code", f"{one}/review/tree"}
    content = described[f"{one}/trace"]["get"]["responses"]["200"]["content"][NDJSON]
    names = [one["$ref"].rpartition("/")[2] for one in content["x-line"]["anyOf"]]
    assert names == ["TraceStep", "TraceEnd"]


def test_document_requires_every_field_of_an_answer_but_not_of_a_request() -> None:
    schemas = document(ROUTES)["components"]["schemas"]
    assert set(schemas["SandboxInfo"]["required"]) == set(schemas["SandboxInfo"]["properties"])
    assert not schemas["ImageLine"].get("required")
