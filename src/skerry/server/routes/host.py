"""/v1/server, /v1/doctor, /healthz, /readyz, /metrics, /openapi.json: the server itself and the host that it is on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from skerry.engine.doctor import examine
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StatusResponse, StreamResponse
from skerry.server.metrics import ServerMetrics
from skerry.types import Answer, Check


class ServerInfo(Answer, frozen=True, kw_only=True):
    """The server. Details of the host (pid, directories, addresses, stalls) are shown to admins only. `network`: the
    network worker is starting, ready or down; until it is ready, all sandboxes have no network. `stalls`: how often the
    event loop was blocked for 0.1 seconds or more; the log names the routes. `longest_busy_s`: the longest of them
    without the time in which the machine did other work."""

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
    stalls: int | None = None
    longest_stall_s: float | None = None
    longest_busy_s: float | None = None


class Health(Answer, frozen=True, kw_only=True):
    ok: bool


class Readiness(Answer, frozen=True, kw_only=True):
    """`problems`: disk (less than `storage.min_free_space` is free), audit (the audit log cannot be written),
    network (the worker is down), full (`max.sandboxes` are live), stopping."""

    ok: bool
    problems: tuple[str, ...] = ()


class Report(Answer, frozen=True, kw_only=True):
    ok: bool
    checks: list[Check]


async def info(call: Call[Empty, Empty]) -> ServerInfo:
    status = call.engine.status()
    shown = {name: status[name] for name in ("version", "build", "sandboxes", "runtime", "storage", "network")}
    info = ServerInfo(**shown, started_at=call.control.started_at, uptime_s=call.control.uptime_s)
    if call.caller.scope != "admin":
        return msgspec.structs.replace(info, sandboxes=len(call.engine.sandboxes.list(call.caller, {}, None)))
    addresses = tuple(call.control.addresses)
    return msgspec.structs.replace(
        info, pid=status["pid"], state_dir=status["state_dir"], addresses=addresses,
        address=addresses[0] if addresses else None, stalls=call.control.loop.stalls,
        longest_stall_s=round(call.control.loop.longest_s, 3),
        longest_busy_s=round(call.control.loop.longest_busy_s, 3),
    )  # fmt: skip


async def stop(call: Call[Empty, Empty]) -> Health:
    """Stop the server after sending the answer. Sandboxes keep running."""
    call.control.stop()
    return Health(ok=True)


async def doctor(call: Call[Empty, Empty]) -> Report:
    checks = await asyncio.to_thread(examine, call.engine.settings)
    return Report(ok=all(check.ok is not False for check in checks), checks=checks)


async def health(call: Call[Empty, Empty]) -> Health:
    return Health(ok=True)


async def ready(call: Call[Empty, Empty]) -> Readiness | StatusResponse:
    found = [problem async for problem in call.engine.problems()]
    problems = (*found, "stopping") if call.control.stopping.is_set() else tuple(found)
    answer = Readiness(ok=not problems, problems=problems)
    return StatusResponse(503, answer) if problems else answer


async def metrics(call: Call[Empty, Empty]) -> StreamResponse:
    figures = ServerMetrics(call.engine, call.control.requests, call.control.loop)
    media_type, body = figures.text(call.headers.get(b"accept") or "")

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body

    return StreamResponse(media_type, chunks(), length=len(body))


async def openapi(call: Call[Empty, Empty]) -> dict[str, Any]:
    return call.control.document
