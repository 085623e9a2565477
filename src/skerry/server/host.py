"""/v1/server, /v1/doctor, /healthz, /openapi.json: the server itself and the host that it is on."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from skerry.engine.doctor import examine
from skerry.server.call import Call, Nothing
from skerry.types import Answer, Check


class ServerInfo(Answer, frozen=True, kw_only=True):
    """The server. What tells of the host (pid, directories, addresses) is for admins. `network`: its worker is
    starting, ready or down; while it is not ready nothing gets out of any sandbox."""

    version: str
    build: str
    uptime_s: float
    started_at: float
    sandboxes: int
    runtime: str = ""
    storage: str = ""
    network: str = ""
    pid: int | None = None
    address: str | None = None
    addresses: tuple[str, ...] = ()
    state_dir: str | None = None


class Health(Answer, frozen=True, kw_only=True):
    ok: bool


class Report(Answer, frozen=True, kw_only=True):
    ok: bool
    checks: list[Check]


async def info(call: Call[Nothing, Nothing]) -> ServerInfo:
    status = call.engine.status()
    shown = {name: status[name] for name in ("version", "build", "sandboxes", "runtime", "storage", "network")}
    info = ServerInfo(**shown, started_at=call.control.started_at, uptime_s=call.control.uptime_s)
    if call.caller.scope != "admin":
        return msgspec.structs.replace(info, sandboxes=len(call.engine.list(call.caller, {}, None)))
    addresses = tuple(call.control.addresses)
    return msgspec.structs.replace(
        info, pid=status["pid"], state_dir=status["state_dir"], addresses=addresses,
        address=addresses[0] if addresses else None,
    )  # fmt: skip


async def stop(call: Call[Nothing, Nothing]) -> Health:
    """The answer is still sent; sandboxes live on."""
    call.control.stop()
    return Health(ok=True)


async def doctor(call: Call[Nothing, Nothing]) -> Report:
    checks = await asyncio.to_thread(examine, call.engine.settings)
    return Report(ok=all(check.ok is not False for check in checks), checks=checks)


async def health(call: Call[Nothing, Nothing]) -> Health:
    return Health(ok=True)


async def openapi(call: Call[Nothing, Nothing]) -> dict[str, Any]:
    return call.control.document
