"""/v1/tokens: tokens for access over TCP. All routes need the scope `admin`."""

from __future__ import annotations

from skerry.server.http.call import Call, Empty
from skerry.types import Scope, TokenInfo, TokenList, Value


class TokenRequest(Value, frozen=True, kw_only=True):
    """A new token. Without `owner` it gets a new owner: it sees only its own resources."""

    scope: Scope
    owner: str | None = None
    note: str = ""


async def create(call: Call[Empty, TokenRequest]) -> TokenInfo:
    return call.engine.tokens.create(call.body.scope, call.body.owner, call.body.note)


async def list_(call: Call[Empty, Empty]) -> TokenList:
    return TokenList(tokens=call.engine.tokens.list())


async def remove(call: Call[Empty, Empty]) -> None:
    token = call.parameters["token"]
    call.engine.tokens.remove(token)
    call.control.revoke(token, call.connection)
