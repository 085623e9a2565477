from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.keeper import Room, eventually


@pytest.fixture(params=["group", "no group"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    """A keeper with its cgroup, and one that has to walk the process tree instead."""
    async with Room(tmp_path, group=request.param == "group") as room:
        yield room


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    before = len(os.listdir("/proc/self/fd"))
    async with Room(tmp_path) as room:
        yield room
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
