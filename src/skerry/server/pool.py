"""/v1/pool: sandboxes that are made ahead of need. All of it is the admin's."""

from __future__ import annotations

from skerry.server.call import Call, Nothing
from skerry.types import PoolInfo, PoolRequest


async def show(call: Call[Nothing, Nothing]) -> PoolInfo:
    return call.engine.pool.info()


async def set_(call: Call[Nothing, PoolRequest]) -> PoolInfo:
    return await call.engine.pool.set(call.body.image, call.body.wanted)


async def drain(call: Call[Nothing, Nothing]) -> PoolInfo:
    return await call.engine.pool.drain()
