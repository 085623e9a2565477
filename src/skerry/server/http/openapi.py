"""Build the OpenAPI 3.1 document from the route table and the types of its handlers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from skerry._version import __version__
from skerry.server.http.call import Empty
from skerry.server.http.responses import EVENTS, JSON, NDJSON
from skerry.server.http.route import Route
from skerry.types import ErrorResponse
from skerry.types.values import Answer

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF = "#/components/schemas/{name}"
_ALWAYS = {400: "The request is invalid; the message names the field.",
           401: "The token is missing or unknown.",
           403: "The token's scope or the origin of the calling web page does not permit the request.",
           421: "The Host header names another server."}  # fmt: skip
_REASONS = {
    **_ALWAYS,
    404: "Not found, or owned by another owner.",
    406: "No media type in Accept is available.",
    409: "It already exists, or its state does not permit the request.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    416: "The range is outside the file.",
    426: "The path requires a WebSocket upgrade.",
    429: "A maximum set by the operator is reached.",
    501: "This host does not support it; `skerry doctor` explains.",
    503: "The sandbox failed or does not respond.",
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
    return route.handler.__module__.rpartition(".")[2]


def _schemas(routes: tuple[Route, ...]) -> tuple[dict[Any, Any], dict[str, Any]]:
    wanted = (
        kind for route in routes for kind in (route.body, route.answer, route.error, *route.lines, *route.also.values())
    )
    kinds = {kind for kind in wanted if kind not in (None, Empty)}
    ordered = [ErrorResponse, *sorted(kinds, key=str)]
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    for answer in _subclasses(Answer):  # the server sends every field of these
        if schema := components.get(answer.__name__):
            schema["required"] = list(schema["properties"])
    return dict(zip(ordered, schemas, strict=True)), components


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


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
    if route.query is Empty:
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
        for media in (*route.gives, *((EVENTS,) if NDJSON in route.gives else ())):
            raw = {"type": "string"} if media != JSON or route.answer is None else schemas[route.answer]
            content[media] = {"schema": raw}
    if route.lines:
        lines = [schemas[kind] for kind in route.lines]
        content[NDJSON]["x-line"] = lines[0] if len(lines) == 1 else {"anyOf": lines}
    success: dict[str, Any] = {"description": "Switched to a WebSocket." if route.is_websocket else "Success."}
    if content:
        success["content"] = content
    statuses = sorted({*(_ALWAYS if route.scope else (400, 403, 421)), *route.errors})
    refusals = {str(status): _refusal(route, status, schemas) for status in statuses}
    others = {str(status): _success(schemas[kind] if kind else None) for status, kind in route.also.items()}
    if 206 in route.also:
        others["206"] = {"description": "The requested range.", "content": content}
    return {str(route.status): success, **others, **refusals}


def _refusal(route: Route, status: int, schemas: dict[Any, Any]) -> dict[str, Any]:
    """The checks before the handler use this server's form; the handler may use that of another protocol."""
    schema = schemas[ErrorResponse]
    if route.error is not None and status not in (401, 403, 421):
        schema = {"anyOf": [schemas[route.error], schema]}
    return {"description": _REASONS[status], "content": {JSON: {"schema": schema}}}


def _success(schema: Any) -> dict[str, Any]:
    content = {"content": {JSON: {"schema": schema}}} if schema is not None else {}
    return {"description": "Success.", **content}
