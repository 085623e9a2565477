"""A policy that was changed holds, whatever else goes wrong with the change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skerry.config import load
from skerry.engine.database import Database
from skerry.engine.events import Events
from skerry.engine.live import Live
from skerry.engine.policies import Policies
from skerry.engine.rows import Row, Rows, Spec
from skerry.errors import QuotaExceeded
from skerry.types import Caller, CreateRequest, Lifecycle, Limits, Network, Options, Preset

ME = Caller(owner="me", scope="use")
SPEC = Spec(
    image="base", image_digest="", layers=(), user="root", cwd="/", image_env={}, env={}, labels={}, limits=Limits(),
    lifecycle=Lifecycle(), network=Network(presets=(Preset(name="pip", allow=("index.example",)),)), options=Options(),
)  # fmt: skip


async def test_a_narrower_policy_holds_though_its_furniture_can_not_be_put_inside(tmp_path: Path) -> None:
    """Root inside may be in the way of files; it must not be in the way of the worker."""
    live = Live(Row(id="sb-aaaaaaaaaa", owner="me", name=None, state="running", spec=SPEC, created_at=0.0))
    told: list[Network] = []

    @asynccontextmanager
    async def held(live: Live) -> AsyncIterator[None]:
        async with live.lock:
            yield

    class Doors:
        async def changed(self, live: Live) -> None:
            told.append(live.row.spec.network)

    async def furnish(live: Live) -> None:
        raise QuotaExceeded("no room inside")

    database = Database(tmp_path / "state.db")
    rows = Rows(database, Events(database))
    rows.insert((live.row,), CreateRequest(), None)
    settings = load(environ={"SKERRY_STATE_DIR": str(tmp_path)})
    policies = Policies(settings, lambda *_: live, held, lambda work: work, lambda _: live)
    policies.begin(rows, Doors(), furnish)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        with pytest.raises(QuotaExceeded):
            await policies.set(ME, "sb-aaaaaaaaaa", Network())
    assert told == [Network()]
    database.close()
