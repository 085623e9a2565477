from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio
from support.mcp_clients import TRANSPORTS, WAYS, Talk, held
from support.server import Server


@pytest.fixture(scope="session")
def server(make_server: Callable[[], Server]) -> Iterator[Server]:
    """One server for all files in this directory."""
    made = make_server().start()
    yield made
    made.retire()


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=WAYS, ids="-".join)
async def talk(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Talk]:
    """One connection over each transport and in each mode."""
    transport, mode = request.param
    async with held(TRANSPORTS[transport](server, mode)) as connection:
        yield connection
