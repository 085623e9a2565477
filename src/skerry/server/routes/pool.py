"""/v1/pool: the pool of ready sandboxes. All routes need the scope `admin`."""

from __future__ import annotations

from skerry.server.http.call import Call, Empty
from skerry.types import PoolInfo, PoolRequest


async def show(call: Call[Empty, Empty]) -> PoolInfo:
    return call.engine.pool.info()


async def set_(call: Call[Empty, PoolRequest]) -> PoolInfo:
    return await call.engine.pool.set(call.body.image, call.body.size)


async def drain(call: Call[Empty, Empty]) -> PoolInfo:
    return await call.engine.pool.drain()
