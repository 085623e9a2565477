"""Templates: built from steps, listed by their names, deleted."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse
from skerry.server.wire.e2b.builds import PAGE, BuildRequest, Builds, TemplateBuild
from skerry.server.wire.e2b.routes.records import LEVELS
from skerry.server.wire.e2b.template_store import (
    DEFAULT_TAG,
    TemplateBuilt,
    Templates,
    check_tags,
    check_template,
)
from skerry.server.wire.e2b.values import ENVD_VERSION, Milliseconds, json_response, moment
from skerry.types import Limits, Value


class NewTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    """POST /v3/templates, and /v2/templates with `alias`."""

    name: str | None = None
    alias: str | None = None
    tags: list[str] = []
    cpu_count: int | None = None
    memory_mb: int | None = msgspec.field(name="memoryMB", default=None)


class NewTags(Struct, frozen=True, kw_only=True):
    """POST /templates/tags. `target`: TEMPLATE:TAG, or TEMPLATE for its default build."""

    target: str
    tags: list[str]


class OldTags(Struct, frozen=True, kw_only=True):
    """DELETE /templates/tags."""

    name: str
    tags: list[str]


class TemplateUpdate(Struct, frozen=True, kw_only=True):
    """PATCH /templates/{template}."""

    public: bool | None = None


class BuildLogQuery(Value, frozen=True, kw_only=True):
    """`cursor`: a time in milliseconds. `source` is ignored: there is one log."""

    cursor: Milliseconds | None = None
    limit: int = PAGE
    direction: str = "forward"
    level: str | None = None
    source: str | None = None


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

    def __init__(self, builds: Builds, templates: Templates) -> None:
        self._builds, self._templates = builds, templates

    async def create(self, call: Call[Empty, NewTemplate]) -> StreamResponse:
        body = call.body
        name, _, tag = (body.name or body.alias or "").partition(":")
        limits = Limits(cpus=body.cpu_count, memory=f"{body.memory_mb}M" if body.memory_mb is not None else None)
        tags = tuple(dict.fromkeys((*body.tags, *([tag] if tag else [])))) or (DEFAULT_TAG,)
        build = self._builds.add(call.caller, name, limits, tags)
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

    async def logs(self, call: Call[BuildLogQuery, Empty]) -> StreamResponse:
        """Return the log of a build that this server has run: the whole, or a page from a time on."""
        query = call.query
        build = self._builds.find(call.caller, call.parameters["template"], call.parameters["build"])
        levels = LEVELS[LEVELS.index(query.level) :] if query.level in LEVELS else LEVELS
        found = [entry for entry in build.entries if entry["level"] in levels]
        if query.direction == "backward":
            found.reverse()
        if query.cursor is not None:
            at = moment(query.cursor / 1000)
            backward = query.direction == "backward"
            found = [entry for entry in found if (entry["timestamp"] <= at if backward else entry["timestamp"] >= at)]
        return json_response({"logs": found[: min(max(query.limit, 1), PAGE)]})

    async def alias(self, call: Call[Empty, Empty]) -> StreamResponse:
        name = call.parameters["template"]
        await self._templates.resolve(call.caller, name)
        return json_response({"templateID": name.partition(":")[0], "public": False})

    async def list_(self, call: Call[TeamQuery, Empty]) -> StreamResponse:
        """List the caller's templates: the newest build of each."""
        builds: dict[str, list[TemplateBuilt]] = {}
        for one in await self._templates.all(call.caller):
            builds.setdefault(one.name, []).append(one)
        return json_response([_shown(found, call) for found in builds.values()])

    async def get(self, call: Call[TeamQuery, Empty]) -> StreamResponse:
        """Return a template with its builds."""
        name = call.parameters["template"].partition(":")[0]
        found = await self._templates.versions(call.caller, name)
        if not found:
            raise NotFound(f"template {name[:80]!r} not found")
        return json_response({**_shown(found, call), "builds": [_build_shown(one, call) for one in found]})

    async def update(self, call: Call[Empty, TemplateUpdate]) -> StreamResponse:
        """Templates here belong to one owner, so `public` can only be false."""
        name = call.parameters["template"].partition(":")[0]
        if not await self._templates.versions(call.caller, name):
            raise NotFound(f"template {name[:80]!r} not found")
        if call.body.public:
            raise InvalidRequest(
                "public: not supported by this server", hint="`skerry image build` makes an image for all owners"
            )
        return json_response({"names": [name]})

    async def delete(self, call: Call[Empty, Empty]) -> None:
        """Delete a template with all its snapshots, or a snapshot: SDKs delete it as a template."""
        name = call.parameters["template"].partition(":")[0]
        found = await self._templates.versions(call.caller, name)
        for one in [built.info.id for built in found] or [name]:
            await call.engine.snapshots.delete(call.caller, one)

    # -- tags ---------------------------------------------------------------------------------------------------------

    async def tags(self, call: Call[Empty, Empty]) -> StreamResponse:
        name = call.parameters["template"]
        found = await self._templates.versions(call.caller, name)
        if not found:
            raise NotFound(f"template {name[:80]!r} not found")
        shown = [
            {"tag": tag, "buildID": one.entry.build, "createdAt": moment(one.entry.updated_at)}
            for one in found
            for tag in one.entry.tags
        ]
        return json_response(shown)

    async def assign_tags(self, call: Call[Empty, NewTags]) -> StreamResponse:
        tags = _plain_tags(call.body.tags, call.body.target.partition(":")[0])
        built = await self._templates.assign(call.caller, call.body.target, tags)
        return json_response({"buildID": built.entry.build, "tags": list(tags)}, 201)

    async def remove_tags(self, call: Call[Empty, OldTags]) -> None:
        tags = _plain_tags(call.body.tags, call.body.name)
        await self._templates.unassign(call.caller, call.body.name, tags)


def _plain_tags(tags: list[str], template: str) -> tuple[str, ...]:
    """Return tags without the name of the template, which may precede each."""
    plain = tuple(tag.removeprefix(f"{template}:") for tag in tags)
    if not plain:
        raise InvalidRequest("tags: none given")
    check_tags(plain)
    return plain


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


def _shown(found: list[TemplateBuilt], call: Call[Any, Any]) -> dict[str, Any]:
    """A template as lists show it: the properties of its newest build."""
    newest, oldest = found[0], found[-1]
    names = [newest.name, *(f"{newest.name}:{tag}" for one in found for tag in one.entry.tags if tag != DEFAULT_TAG)]
    return {
        "templateID": newest.name, "buildID": newest.entry.build, **_size(newest, call), "public": False,
        "aliases": [newest.name], "names": names, "createdAt": moment(oldest.info.created_at),
        "updatedAt": moment(newest.entry.updated_at), "createdBy": None, "lastSpawnedAt": None, "spawnCount": 0,
        "buildCount": len(found), "envdVersion": ENVD_VERSION, "buildStatus": "ready",
    }  # fmt: skip


def _build_shown(one: TemplateBuilt, call: Call[Any, Any]) -> dict[str, Any]:
    at = moment(one.info.created_at)
    return {
        "buildID": one.entry.build, "status": "ready", "createdAt": at, "updatedAt": moment(one.entry.updated_at),
        "finishedAt": at, **_size(one, call), "envdVersion": ENVD_VERSION,
    }  # fmt: skip


def _size(one: TemplateBuilt, call: Call[Any, Any]) -> dict[str, int]:
    """The limits of sandboxes of a template; the operator's defaults fill the gaps."""
    limits, default = one.entry.limits, call.engine.settings.limits
    memory = limits if limits.memory is not None else default
    return {
        "cpuCount": max(1, round(limits.cpus or default.cpus or 1)), "memoryMB": memory.memory_bytes >> 20,
        "diskSizeMB": default.disk_bytes >> 20,
    }  # fmt: skip
