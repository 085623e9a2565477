"""/v1/sandboxes/{ref}/ports: what listens inside."""

from __future__ import annotations

import math

from skerry.errors import InvalidRequest, NotFound
from skerry.server.call import Call, Nothing
from skerry.server.processes import WAIT_MOST
from skerry.types import PortState, Value, check_http_path, check_port


class PortQuery(Value, frozen=True, kw_only=True):
    """`timeout`: how many seconds the answer may take, at most 60; ask again then. `http_path`: it counts as open only
    once this path answers below 500."""

    timeout: float = 30.0
    http_path: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and 0 <= self.timeout <= WAIT_MOST):
            raise InvalidRequest(f"timeout: {self.timeout!r} is out of range", hint=f"0 to {WAIT_MOST:g} seconds")
        check_http_path(self.http_path)


async def wait(call: Call[PortQuery, Nothing]) -> PortState:
    text, query = call.parameters["port"], call.query
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise NotFound(f"there is no port {text[:20]!r}")
    check_port(int(text))
    opening = call.engine.ports.wait(call.caller, call.ref, int(text), query.timeout, query.http_path)
    state = await call.while_here(call.unless_stopping(opening))
    return state if state is not None else PortState(open=False, last="the server is stopping")
