"""/v1/tokens: who may call over TCP. All of it is the admin's."""

from __future__ import annotations

from skerry.server.call import Call, Nothing
from skerry.types import Answer, Scope, TokenInfo, Value


class TokenRequest(Value, frozen=True, kw_only=True):
    """A new token. Without an `owner` it is an owner of its own: it sees what it made, and nothing else."""

    scope: Scope
    owner: str | None = None
    note: str = ""


class TokenList(Answer, frozen=True, kw_only=True):
    tokens: list[TokenInfo]


async def create(call: Call[Nothing, TokenRequest]) -> TokenInfo:
    return call.engine.tokens.create(call.body.scope, call.body.owner, call.body.note)


async def list_(call: Call[Nothing, Nothing]) -> TokenList:
    return TokenList(tokens=call.engine.tokens.list())


async def remove(call: Call[Nothing, Nothing]) -> None:
    call.engine.tokens.remove(call.parameters["token"])
