"""A changed policy applies even if another part of the change fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.config import load
from skerry.engine.database import Database
from skerry.engine.events import Events
from skerry.engine.network.cassettes import CassetteStore
from skerry.engine.network.policies import PolicyService
from skerry.engine.sandboxes.record import SandboxRecord, SandboxSpec, SandboxTable
from skerry.engine.sandboxes.registry import SandboxRegistry
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import QuotaExceeded
from skerry.types import Caller, CreateRequest, Lifecycle, Limits, Network, Options, Preset

ME = Caller(owner="me", scope="use")
SPEC = SandboxSpec(
    image="base", image_digest="", layers=(), user="root", cwd="/", image_env={}, env={}, labels={}, limits=Limits(),
    lifecycle=Lifecycle(), network=Network(presets=(Preset(name="pip", allow=("index.example",)),)), options=Options(),
)  # fmt: skip


async def test_narrower_policy_applies_although_guest_files_cannot_be_written(tmp_path: Path) -> None:
    """Root inside may be in the way of files; it must not be in the way of the worker."""
    live = Sandbox(SandboxRecord(id="sb-aaaaaaaaaa", owner="me", name=None, state="running", spec=SPEC, created_at=0.0))
    told: list[Network] = []

    class Gateways:
        async def update_rules(self, live: Sandbox) -> None:
            told.append(live.record.spec.network)

    class Lifecycle:
        async def configure(self, live: Sandbox) -> None:
            raise QuotaExceeded("no room inside")

    database = Database(tmp_path / "state.db")
    settings = load(environ={"SKERRY_STATE_DIR": str(tmp_path)})
    registry = SandboxRegistry(settings, SandboxTable(database, Events(database)))
    registry.table.insert((live.record,), CreateRequest(), None)
    registry.add((live,))
    cassettes = CassetteStore(tmp_path / "cassettes")
    policies = PolicyService(settings, Gateways(), cassettes, registry, Lifecycle(), Tasks())  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        with pytest.raises(QuotaExceeded):
            await policies.set(ME, "sb-aaaaaaaaaa", Network())
    assert told == [Network()]
    database.close()
