"""The ready sandboxes of a server. All of it needs the scope `admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.client import requests
from skerry.types import PoolInfo

if TYPE_CHECKING:
    from skerry.client._async.client import AsyncClient


class AsyncPool:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def show(self) -> PoolInfo:
        """How many there are of which image, and how often a create found one."""
        return await self._client.value(requests.pool(), PoolInfo)

    async def set(self, image: str, wanted: int) -> PoolInfo:
        """Keep that many of an image, for as long as the server runs."""
        return await self._client.value(requests.set_pool(image, wanted), PoolInfo)

    async def drain(self) -> PoolInfo:
        """Let all of them go; none is made until one is wanted again."""
        return await self._client.value(requests.pool("DELETE"), PoolInfo)
