"""What a sandbox used and did: samples of its resources, and the log of its commands from its trace."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from skerry.codecs.traces import merge
from skerry.errors import InvalidRequest
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse
from skerry.server.wire.e2b.values import Milliseconds, json_response, moment
from skerry.types import SandboxStats, TraceContent, TraceStep, Value

CPU_SAMPLE_S: Final = 0.1
MAX_SAMPLES: Final = 100  # sandboxes in one request
LEVELS: Final = ("debug", "info", "warn", "error")
MAX_READ: Final = 8 << 20  # bytes of a trace
MAX_ENTRIES: Final = 1000
MAX_TEXT: Final = 4096
Entry = tuple[float, dict[str, Any]]


class RangeQuery(Value, frozen=True, kw_only=True):
    """A period in seconds. Only the current values are known."""

    start: int | None = None
    end: int | None = None


class SamplesQuery(Value, frozen=True, kw_only=True):
    """`sandbox_ids`: separated by commas."""

    sandbox_ids: str


class LogQuery(Value, frozen=True, kw_only=True):
    """`start` and `cursor`: a time in milliseconds, from which on entries are returned, or until which, backwards."""

    start: Milliseconds | None = None
    cursor: Milliseconds | None = None
    limit: int = MAX_ENTRIES
    direction: str = "forward"
    level: str | None = None
    search: str | None = None


# -- resources --------------------------------------------------------------------------------------------------------


async def _samples(call: Call[Any, Any], refs: tuple[str, ...]) -> list[tuple[SandboxStats, float]]:
    """Return the current resources of sandboxes, and the percentage of a CPU that each used in a short moment."""
    before = await call.engine.sandboxes.stats(call.caller, refs)
    await asyncio.sleep(CPU_SAMPLE_S)
    now = await call.engine.sandboxes.stats(call.caller, refs)
    return [
        (two, round(max(100 * (two.usage.cpu_s - one.usage.cpu_s) / max(two.at - one.at, 0.001), 0.0), 2))
        for one, two in zip(before, now, strict=True)
    ]


def _metric(stats: SandboxStats, percent: float) -> dict[str, Any]:
    limits, usage = stats.limits, stats.usage
    return {
        "timestamp": moment(stats.at), "timestampUnix": int(stats.at), "cpuCount": max(1, round(limits.cpus or 1)),
        "cpuUsedPct": percent, "memUsed": usage.memory or 0, "memTotal": limits.memory_bytes, "memCache": 0,
        "diskUsed": usage.disk or 0, "diskTotal": limits.disk_bytes,
    }  # fmt: skip


async def metrics(call: Call[RangeQuery, Empty]) -> StreamResponse:
    """Return one sample, if the period includes this moment."""
    ((now, percent),) = await _samples(call, (call.ref,))
    outside = (call.query.start or 0) > now.at + 1 or (call.query.end or now.at) < int(now.at) - 1
    return json_response([] if now.state != "running" or outside else [_metric(now, percent)])


async def all_metrics(call: Call[SamplesQuery, Empty]) -> StreamResponse:
    refs = tuple(dict.fromkeys(name for name in call.query.sandbox_ids.split(",") if name))
    if not 1 <= len(refs) <= MAX_SAMPLES:
        raise InvalidRequest(f"sandbox_ids: 1 to {MAX_SAMPLES} are required")
    found = await _samples(call, refs)
    return json_response({"sandboxes": {stats.id: _metric(stats, percent) for stats, percent in found}})


async def envd_metrics(call: Call[Empty, Empty]) -> StreamResponse:
    ((stats, percent),) = await _samples(call, (call.ref,))
    limits, usage = stats.limits, stats.usage
    return json_response({
        "ts": int(time.time()), "cpu_count": max(1, round(limits.cpus or 1)), "cpu_used_pct": percent,
        "mem_total": limits.memory_bytes, "mem_used": usage.memory or 0, "mem_cache": 0,
        "mem_total_mib": limits.memory_bytes >> 20, "mem_used_mib": (usage.memory or 0) >> 20,
        "disk_used": usage.disk or 0, "disk_total": limits.disk_bytes,
    })  # fmt: skip


# -- log --------------------------------------------------------------------------------------------------------------


async def logs(call: Call[LogQuery, Empty]) -> StreamResponse:
    """The first version: each entry also as a line of JSON."""
    found = await _log(call, call.query.start)
    lines = [{"timestamp": one["timestamp"], "line": msgspec.json.encode(one).decode()} for one in found]
    return json_response({"logs": lines, "logEntries": found})


async def logs_v2(call: Call[LogQuery, Empty]) -> StreamResponse:
    return json_response({"logs": await _log(call, call.query.cursor)})


async def _log(call: Call[LogQuery, Empty], at_ms: int | None) -> list[dict[str, Any]]:
    """Return a page of the log, from the start of the sandbox's trace. A long one takes a while to read."""
    check_log(call.query)
    sandbox = call.engine.registry.find(call.caller, call.ref).record.id
    data = bytearray()
    async with contextlib.aclosing(await call.engine.traces.lines(call.caller, sandbox)) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) > MAX_READ:
                break
    return await asyncio.to_thread(_read, bytes(data), call.query, at_ms)


def _read(data: bytes, query: LogQuery, at_ms: int | None) -> list[dict[str, Any]]:
    entries = [entry for step in merge(data.splitlines()).steps for entry in _entries_of(step)]
    return _page(sorted(entries, key=lambda entry: entry[0]), query, at_ms)


def check_log(query: LogQuery) -> None:
    if query.level is not None and query.level not in LEVELS:
        raise InvalidRequest(f"level: {query.level[:40]!r} is not a level", hint=f"one of {', '.join(LEVELS)}")
    if query.direction not in ("forward", "backward") or not 0 <= query.limit <= MAX_ENTRIES:
        raise InvalidRequest(f"direction is forward or backward, and limit at most {MAX_ENTRIES}")


def _entries_of(step: TraceStep) -> Iterator[Entry]:
    """Yield a step, the lines of its output, and its end."""
    level = "debug" if step.event or step.kind.startswith("file.") else "info"
    yield _entry(step, step.at, level, f"{step.kind} {step.text}".strip())
    if (end := step.end) is None:
        return
    for level, content in (("info", end.stdout), ("warn", end.stderr)):
        for line in _text(content).splitlines():
            yield _entry(step, end.at, level, line)
    if end.error is not None:
        yield _entry(step, end.at, "error", f"{step.kind} failed: {end.error.message or end.error.code}")
    elif end.exit_code is not None or end.signal is not None:
        how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.exit_code}"
        yield _entry(step, end.at, "info" if end.exit_code == 0 else "warn", f"{step.kind} ended with {how}")


def _entry(step: TraceStep, at: float, level: str, message: str) -> Entry:
    fields = {"logger": "skerry", "event_type": step.kind}
    if step.process is not None:
        fields["process"] = step.process
    return at, {"timestamp": moment(at), "message": message[:MAX_TEXT], "level": level, "fields": fields}


def _text(content: TraceContent | None) -> str:
    """Return the content in the line of a step; long ones are blobs of the trace."""
    if content is None:
        return ""
    if content.text is not None:
        return content.text
    return content.data.decode("utf-8", "replace") if content.data is not None else f"({content.size} bytes)"


def _page(entries: list[Entry], query: LogQuery, at_ms: int | None) -> list[dict[str, Any]]:
    levels = LEVELS[LEVELS.index(query.level or LEVELS[0]) :]
    found = entries if query.direction == "forward" else entries[::-1]
    if at_ms is not None:
        forward = query.direction == "forward"
        found = [one for one in found if (one[0] * 1000 >= at_ms if forward else one[0] * 1000 <= at_ms)]
    kept = [
        entry for _, entry in found
        if entry["level"] in levels and (query.search or "").lower() in entry["message"].lower()
    ]  # fmt: skip
    return kept[: query.limit]
