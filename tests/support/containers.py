"""Sandboxes with a probe as PID 1 that answers queries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from skerry.runtimes import ContainerConfig, Init, spec
from skerry.runtimes.oci import OciRuntime
from skerry.types import DEFAULT_LIMITS, Limits

PROBE = "/run/skerry/bin/skerry-keeper"
# Far above the ranges of a server on this machine, and different for each test process.
_BLOCK = (os.getppid() + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])) % 32
BASE = 0x70000000 + (3200 + 25 * _BLOCK) * 65536

CONFIG = ContainerConfig(
    id="sb-abcdefghij",
    run_dir=Path("/run/skerry/instance01"),
    cgroup_root="/skerry/instance01",
    layers=(Path("/var/lib/skerry/layers/one"),),
    upper_dir=Path("/var/lib/skerry/pool/sb-abcdefghij"),
    uid_base=0x70000000,
    limits=DEFAULT_LIMITS,
    hostname="island",
    keeper=Path("/opt/skerry/skerry-keeper"),
)
HOST = spec.HostFeatures("x86_64", 20_000, "limit")


def make_config(runtime: OciRuntime, layer: Path, unit: Path, probe: Path, sandbox: str, base: int) -> ContainerConfig:
    for name in ("upper", "work"):
        (unit / name).mkdir(parents=True)
    some = limits(cpus=0.5, memory="256M", pids=64, open_files=1024)
    return ContainerConfig(sandbox, runtime.run_dir, runtime.cgroup_root, (layer,), unit, base, some, "island", probe)


def limits(**changes: Any) -> Limits:
    return msgspec.structs.replace(DEFAULT_LIMITS, **changes)


class Container:
    """A started container whose probe answers queries."""

    def __init__(self, runtime: OciRuntime, config: ContainerConfig, init: Init) -> None:
        self.runtime, self.config, self.init = runtime, config, init

    async def ask(self, **question: Any) -> dict[str, Any]:
        connection = await self.runtime.connect(self.config.id)
        connection.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 22)
        try:
            writer.write(json.dumps(question).encode() + b"\n")
            answer = await asyncio.wait_for(reader.readline(), 30)
        finally:
            writer.close()
        return cast(dict[str, Any], json.loads(answer))

    async def run(self, *words: str, uid: int = 0) -> str:
        answer = await self.ask(argv=[PROBE, *words], uid=uid)
        return cast(str, answer["out"]) + (f"[{answer['error']}]" if answer["error"] else "")

    async def read(self, path: str) -> str:
        answer = await self.ask(read=path)
        return cast(str, answer["out"]) or f"[{answer['error']}]"


@contextlib.asynccontextmanager
async def started_container(runtime: OciRuntime, config: ContainerConfig) -> AsyncIterator[Container]:
    try:
        yield Container(runtime, config, await runtime.start(config))
    finally:
        await runtime.clear(config.id)


async def eventually(condition: Callable[[], bool] | Callable[[], Awaitable[bool]], limit_s: float = 30.0) -> None:
    """Bounded: fails when the time is over."""
    end = asyncio.get_running_loop().time() + limit_s
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert asyncio.get_running_loop().time() < end, "did not come to pass in time"
        await asyncio.sleep(0.005)
