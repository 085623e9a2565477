"""A row of the route table."""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from skerry.server.http.call import JSON_LIMIT, Call, Empty
from skerry.server.http.responses import JSON, AsgiResponse, StatusResponse, StreamResponse
from skerry.server.http.upgrade import Upgrade
from skerry.types import Scope

Handler = Callable[[Call[Any, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """A method on a path. The handler's annotations, `Call[Query, Body] -> Answer`, declare its input and output: the
    same types decode the request, encode the response and build the OpenAPI document.

    scope: the scope that the caller's token needs; None: public.
    takes: the media type of a raw body; None: JSON if the handler declares a body, else no body.
    gives: the media types of the response, the default first.
    status: of a success; 101: the path is a WebSocket, and its handler returns an Upgrade.
    also: further statuses of a success with their types (None: no body; for 206, a part of the body); the handler
    returns a `StatusResponse`.
    lines: the types of the lines of an NDJSON response.
    error: the form of the handler's own errors, if another protocol defines it.
    effect: the type of the audit record; None: the route changes nothing, and is not recorded. Every row has it.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    summary: str
    status: int = 200
    errors: tuple[int, ...] = ()
    takes: str | None = None
    gives: tuple[str, ...] = (JSON,)
    limit: int = JSON_LIMIT
    headers: tuple[str, ...] = ()
    also: Mapping[int, type | None] = field(default_factory=dict)
    lines: tuple[type, ...] = ()
    error: type | None = None
    effect: str | None = field(kw_only=True)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.handler)

    @cached_property
    def query(self) -> type:
        kind: type = typing.get_args(self._hints["call"])[0]
        return kind

    @cached_property
    def body(self) -> type:
        kind: type = typing.get_args(self._hints["call"])[1]
        return kind

    @property
    def is_websocket(self) -> bool:
        return self.status == 101

    @property
    def takes_json(self) -> bool:
        return self.takes is None and self.body is not Empty

    @property
    def streams_body(self) -> bool:
        """Whether the body is a stream, like a file or a terminal's input, which may pause."""
        return self.takes not in (None, JSON)

    @cached_property
    def answer(self) -> type | None:
        """The type of the JSON response; None for 204 or a stream."""
        returned = self._hints["return"]
        kinds = typing.get_args(returned) if isinstance(returned, types.UnionType) else (returned,)
        values = [
            kind
            for kind in kinds
            if kind not in (StreamResponse, StatusResponse, AsgiResponse, Upgrade, types.NoneType)
        ]
        return values[0] if values else None
