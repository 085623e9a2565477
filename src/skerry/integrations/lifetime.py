"""Sandboxes in programs of a framework: attach in any event loop, delete without an error if they are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from skerry import AsyncClient, AsyncSandbox, NotFound, Sandbox


@asynccontextmanager
async def attached(sandbox: Sandbox | str, server: Any = None) -> AsyncIterator[AsyncSandbox]:
    """Open a sandbox in the running event loop: a framework may call an adapter from several loops and threads, and a
    connection belongs to one of them."""
    if isinstance(sandbox, Sandbox):
        address, sandbox = sandbox.client.address, sandbox.id
        async with AsyncClient(str(address), token=address.token) as client:
            yield await AsyncSandbox.get(sandbox, server=client)
        return
    opened = await AsyncSandbox.get(sandbox, server=server)
    try:
        yield opened
    finally:
        await opened.aclose()


async def delete(sandbox: AsyncSandbox) -> None:
    """Delete a sandbox that only a framework used, without keeping its review."""
    try:
        await sandbox.delete(force=True, purge=True)
    except NotFound:
        await sandbox.aclose()
