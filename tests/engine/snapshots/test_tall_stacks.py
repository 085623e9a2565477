"""Snapshots of snapshots of snapshots: a stack of layers grows no higher than is good for a mount. A layer goes with
the last that names it, or that needs it for its work."""

from __future__ import annotations

import os
import subprocess
import sys

from support.server import Server

SCRIPT = """
import asyncio
from skerry.config import load
from skerry.engine.engine import Engine
from skerry.engine.snapshots import service
from skerry.types import Caller, CreateRequest, RunRequest, SnapshotRequest

service.MAX_LAYERS = 4
me = Caller(owner="local", scope="admin")

async def main():
    engine = await Engine.open(load())
    image, taken, heights = "base", [], []
    for number in range(5):
        info = await engine.sandboxes.create(me, CreateRequest(image=image))
        heights.append(len(engine.registry.get(info.id).record.spec.layers))
        line = f"touch /workspace/{number}; ls /workspace; sync"
        run = await engine.processes.run(me, info.id, RunRequest(cmd=line))
        seen = (await engine.processes.collect(run)).stdout.split()
        taken.append(await engine.snapshots.take(me, info.id, SnapshotRequest()))
        image = taken[-1].id
        await engine.sandboxes.delete(me, info.id)
    for snapshot in reversed(taken):
        await engine.snapshots.delete(me, snapshot.id)
    left = [engine.host.driver.snapshots()]
    info = await engine.sandboxes.create(me, CreateRequest())
    needed = await engine.snapshots.take(me, info.id, SnapshotRequest())
    with engine.snapshots.pinned(needed.layers[0]):
        await engine.snapshots._remove(needed)
        left.append(len(engine.host.driver.snapshots()))
    async with asyncio.timeout(10):
        while engine.host.driver.snapshots():
            await asyncio.sleep(0.01)
    await engine.sandboxes.delete(me, info.id)
    await engine.close()
    print(heights, seen, left)

asyncio.run(main())
"""


def test_tall_stack_copies_the_top_layer_and_keeps_layers_in_use(server: Server) -> None:
    server.end()
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "SKERRY_STATE_DIR": str(server.state_dir), "SKERRY_POOL_PER_IMAGE": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    server.start()
    assert out.stdout == "[2, 3, 4, 4, 4] ['0', '1', '2', '3', '4'] [set(), 1]\n", out.stderr
