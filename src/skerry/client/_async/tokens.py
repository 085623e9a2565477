"""The tokens of a server on TCP. Making and removing them needs the scope `admin`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from skerry.client import requests
from skerry.client.responses import TokenList
from skerry.types import TokenInfo

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient


class AsyncTokens:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, scope: str = "use", *, owner: str | None = None, note: str | None = None) -> TokenInfo:
        """A new token; its `secret` is in this answer and never shown again."""
        return await self._client.value(requests.create_token(scope, owner, note), TokenInfo)

    async def list(self) -> builtins.list[TokenInfo]:
        return (await self._client.value(requests.tokens(), TokenList)).tokens

    async def remove(self, token: str) -> None:
        await self._client.done(requests.remove_token(token))
