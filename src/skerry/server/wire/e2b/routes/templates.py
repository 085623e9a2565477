"""Templates: built from steps, listed by their names, deleted."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse
from skerry.server.wire.e2b.builds import (
    MARK,
    PAGE,
    BuildRequest,
    Builds,
    TemplateBuild,
    check_template,
    resolve,
    versions,
)
from skerry.server.wire.e2b.values import ENVD_VERSION, json_response, moment
from skerry.types import DEFAULT_LIMITS, Limits, SnapshotInfo, Value


class NewTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    """POST /v3/templates, and /v2/templates with `alias`."""

    name: str | None = None
    alias: str | None = None
    tags: list[str] = []
    cpu_count: int | None = None
    memory_mb: int | None = msgspec.field(name="memoryMB", default=None)


class StatusQuery(Value, frozen=True, kw_only=True):
    logs_offset: int = msgspec.field(name="logsOffset", default=0)
    limit: int = PAGE
    level: str | None = None


class TeamQuery(Value, frozen=True, kw_only=True):
    team: str | None = msgspec.field(name="teamID", default=None)
    limit: int | None = None
    next_token: str | None = msgspec.field(name="nextToken", default=None)


class TemplateRoutes:
    """Handlers of /templates."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    async def create(self, call: Call[Empty, NewTemplate]) -> StreamResponse:
        body = call.body
        name, _, tag = (body.name or body.alias or "").partition(":")
        limits = Limits(cpus=body.cpu_count, memory=f"{body.memory_mb}M" if body.memory_mb else None)
        build = self._builds.add(call.caller, name, limits)
        tags = [*body.tags, *([tag] if tag else [])] or ["default"]
        made = {
            "templateID": name,
            "buildID": build.id,
            "public": False,
            "names": [name],
            "aliases": [name],
            "tags": tags,
        }
        return json_response(made, 202)

    async def files(self, call: Call[Empty, Empty]) -> StreamResponse:
        """Return the URL that an archive is sent to. Its token opens this URL only, and ends with the API key."""
        template, name = call.parameters["template"], call.parameters["hash"]
        check_template(template)
        token = call.engine.tokens.derive(call.caller, upload_use(template, name))
        scheme = call.headers.get(b"x-forwarded-proto") or "http"
        host = call.headers.get(b"host") or ""
        url = f"{'https' if scheme == 'https' else 'http'}://{host}/templates/{template}/files/{name}?token={token}"
        return json_response({"present": self._builds.archive(call.caller, name).exists(), "url": url}, 201)

    async def upload(self, call: Call[UploadQuery, Empty]) -> StreamResponse:
        await self._builds.store(call.caller, call.parameters["hash"], call.chunks())
        return json_response({})

    async def start(self, call: Call[Empty, BuildRequest]) -> StreamResponse:
        build = self._builds.find(call.caller, call.parameters["template"], call.parameters["build"])
        self._builds.start(build, call.body)
        return json_response({}, 202)

    async def status(self, call: Call[StatusQuery, Empty]) -> StreamResponse:
        build = self._builds.find(call.caller, call.parameters["template"], call.parameters["build"])
        start = max(call.query.logs_offset, 0)
        entries = build.entries[start : start + min(max(call.query.limit, 1), PAGE)]
        return json_response(_status(build, entries))


class UploadQuery(Value, frozen=True, kw_only=True):
    """The token was checked with the caller."""

    token: str


def upload_use(template: str, name: str) -> str:
    return f"e2b.upload:{template}:{name}"


def _status(build: TemplateBuild, entries: list[dict[str, Any]]) -> dict[str, Any]:
    shown = {
        "buildID": build.id, "templateID": build.template, "status": build.status, "logEntries": entries,
        "logs": [entry["message"] for entry in entries],
    }  # fmt: skip
    return shown if build.reason is None else {**shown, "reason": build.reason}


async def alias(call: Call[Empty, Empty]) -> StreamResponse:
    name = call.parameters["template"]
    await resolve(call.engine, call.caller, name)
    return json_response({"templateID": name.partition(":")[0], "public": False})


async def list_(call: Call[TeamQuery, Empty]) -> StreamResponse:
    """List the caller's templates: the newest snapshot of each."""
    newest: dict[str, SnapshotInfo] = {}
    for info in await call.engine.snapshots.list(call.caller):
        name, mark, _ = (info.name or "").rpartition(MARK)
        if mark:
            newest[name] = info
    return json_response([_shown(name, info) for name, info in newest.items()])


def _shown(name: str, info: SnapshotInfo) -> dict[str, Any]:
    return {
        "templateID": name, "buildID": info.id, "cpuCount": 1, "memoryMB": DEFAULT_LIMITS.memory_bytes >> 20,
        "diskSizeMB": DEFAULT_LIMITS.disk_bytes >> 20, "public": False, "aliases": [name], "names": [name],
        "createdAt": moment(info.created_at), "updatedAt": moment(info.created_at), "createdBy": None,
        "lastSpawnedAt": None, "spawnCount": 0, "buildCount": 1, "envdVersion": ENVD_VERSION, "buildStatus": "ready",
    }  # fmt: skip


async def delete(call: Call[Empty, Empty]) -> None:
    """Delete a template with all its snapshots, or a snapshot: SDKs delete it as a template."""
    name = call.parameters["template"].partition(":")[0]
    found = await versions(call.engine, call.caller, name)
    for one in [info.id for info in found] or [name]:
        await call.engine.snapshots.delete(call.caller, one)


async def tags(call: Call[Empty, Empty]) -> StreamResponse:
    """Return the only tag that a template has here."""
    found = await versions(call.engine, call.caller, call.parameters["template"])
    if not found:
        raise NotFound(f"template {call.parameters['template'][:80]!r} not found")
    return json_response([{"tag": "default", "buildID": found[0].id, "createdAt": moment(found[0].created_at)}])


async def assign_tags(call: Call[Empty, Empty]) -> StreamResponse:
    raise InvalidRequest("tags of templates are not supported by this server", hint="use another name")
