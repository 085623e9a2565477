"""One row of the route table."""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from skerry.server.answers import JSON, Answered, Passed, Stream
from skerry.server.call import JSON_LIMIT, Call, Nothing
from skerry.server.upgrade import Upgrade
from skerry.types import Scope

Handler = Callable[[Call[Any, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """A method on a path. What it takes and gives is read off the handler's annotations, `Call[Query, Body] -> Answer`:
    the same types decode the request, encode the answer and make the OpenAPI document.

    scope: the least that the caller's token must have; None: open to anyone.
    takes: the media type of a raw body; None: JSON if the handler declares a body, else no body at all.
    gives: the media types it can answer with, the usual one first.
    status: of a success; 101: the path speaks WebSocket, and its handler answers with an Upgrade.
    also: further statuses that are a success, with what comes then (None: nothing); the handler gives an `Answered`.
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
        return self.takes is None and self.body is not Nothing

    @cached_property
    def answer(self) -> type | None:
        """The JSON answer's type; None where there is none (204, or a stream only)."""
        returned = self._hints["return"]
        kinds = typing.get_args(returned) if isinstance(returned, types.UnionType) else (returned,)
        values = [kind for kind in kinds if kind not in (Stream, Answered, Passed, Upgrade, types.NoneType)]
        return values[0] if values else None
