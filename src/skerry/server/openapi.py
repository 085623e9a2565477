"""The OpenAPI 3.1 document, made from the route table and the types of its handlers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from skerry._version import __version__
from skerry.server.answers import JSON, ErrorAnswer
from skerry.server.call import Nothing
from skerry.server.route import Route

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_NOUNS = {"entries": "files", "edits": "files"}  # modules that share another's noun
_REF = "#/components/schemas/{name}"
_ALWAYS = {400: "The request makes no sense; the message names the place.",
           401: "No token, or one that is not known.",
           403: "The token's scope, or the calling web page, does not allow it.",
           421: "Called by a name that is not this server's."}  # fmt: skip
_REASONS = {
    **_ALWAYS,
    404: "There is no such thing, or it is another's.",
    406: "Accept names nothing that is offered.",
    409: "It is there already, or its state does not allow this.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    416: "The range is not in the file.",
    426: "A WebSocket is spoken here.",
    429: "The operator's maximum is reached.",
    501: "This host can't do it; `skerry doctor` explains.",
    503: "The sandbox failed or does not answer.",
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    routes = tuple(routes)
    schemas, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(shown_path(route), {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Skerry",
            "version": __version__,
            "summary": "Isolated Linux machines for AI agents.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def shown_path(route: Route) -> str:
    return _PARAMETER.sub(r"{\1}", route.path)


def operation_id(route: Route) -> str:
    return f"{_noun(route)}_{route.handler.__name__.strip('_')}"


def _noun(route: Route) -> str:
    module = route.handler.__module__.rpartition(".")[2]
    return _NOUNS.get(module, module)


def _schemas(routes: tuple[Route, ...]) -> tuple[dict[Any, Any], dict[str, Any]]:
    wanted = (kind for route in routes for kind in (route.body, route.answer, *route.also.values()))
    kinds = {kind for kind in wanted if kind not in (None, Nothing)}
    ordered = [ErrorAnswer, *sorted(kinds, key=str)]
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    return dict(zip(ordered, schemas, strict=True)), components


def _operation(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [_noun(route)],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, schemas),
        "security": [{"token": []}] if route.scope is not None else [],
    }
    if route.scope is not None:
        operation["x-scope"] = route.scope
    if body := _request_body(route, schemas):
        operation["requestBody"] = body
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = _PARAMETER.findall(route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    (_,), components = msgspec.json.schema_components([route.query], ref_template=_REF)
    schema = components[route.query.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": value}
        for name, value in schema["properties"].items()
    ]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in route.headers]


def _request_body(route: Route, schemas: dict[Any, Any]) -> dict[str, Any] | None:
    if route.takes is not None:
        return {"required": True, "content": {route.takes: {"schema": {"type": "string", "format": "binary"}}}}
    if route.takes_json:
        return {"required": True, "content": {JSON: {"schema": schemas[route.body]}}}
    return None


def _responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.status not in (101, 204):
        for media in route.gives:
            raw = {"type": "string"} if media != JSON or route.answer is None else schemas[route.answer]
            content[media] = {"schema": raw}
    success: dict[str, Any] = {"description": "A WebSocket from here on." if route.is_websocket else "Success."}
    if content:
        success["content"] = content
    error = {JSON: {"schema": schemas[ErrorAnswer]}}
    statuses = sorted({*(_ALWAYS if route.scope else (400, 403, 421)), *route.errors})
    refusals = {str(status): {"description": _REASONS[status], "content": error} for status in statuses}
    others = {str(status): _success(schemas[kind] if kind else None) for status, kind in route.also.items()}
    return {str(route.status): success, **others, **refusals}


def _success(schema: Any) -> dict[str, Any]:
    content = {"content": {JSON: {"schema": schema}}} if schema is not None else {}
    return {"description": "Success.", **content}
