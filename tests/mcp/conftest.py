from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from serving import Server
from talking import TRANSPORTS, WAYS, Talk, held


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS, ids="-".join)
async def talk(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Talk]:
    """One connection for the tests of a file, over each transport and in each mode."""
    transport, mode = request.param
    async with held(TRANSPORTS[transport](server, mode)) as connection:
        yield connection
