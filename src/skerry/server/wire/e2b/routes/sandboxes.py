"""The control plane's sandboxes: created with an absolute end, listed, connected to, paused and killed."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Meta

from skerry.engine.engine import Engine
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.decode import decode_json
from skerry.server.http.responses import StreamResponse
from skerry.server.routes.sandboxes import key_of
from skerry.server.wire.e2b.access import access_tokens
from skerry.server.wire.e2b.builds import START_ID
from skerry.server.wire.e2b.egress import network_of, shown
from skerry.server.wire.e2b.ports import check_mask
from skerry.server.wire.e2b.template_store import MARK, TemplateBase, Templates
from skerry.server.wire.e2b.values import (
    BUILD,
    ENVD_VERSION,
    HELPER,
    MAX_TIMEOUT_S,
    RESERVED,
    ConnectRequest,
    NetworkOptions,
    NewFork,
    NewSandbox,
    NewSnapshot,
    PauseRequest,
    RefreshRequest,
    SandboxMark,
    json_response,
    listed,
    mark_of,
    marked,
    metadata_of,
    state_of,
)
from skerry.types import (
    NAME,
    Caller,
    CreateRequest,
    ForkRequest,
    Lifecycle,
    RunRequest,
    SandboxInfo,
    SnapshotInfo,
    SnapshotRequest,
    UpdateRequest,
    Value,
)

log = logging.getLogger("skerry.server")
MAX_PAGE: Final = 1000
PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
CLOCK_S: Final = 0.001  # times are shown in microseconds, rounded
_TOKEN: Final = re.compile(r"([0-9]{1,12}\.[0-9]{1,12})_([a-z0-9-]{1,64})")
Listed = TypeVar("Listed", SandboxInfo, SnapshotInfo)


class SandboxPageQuery(Value, frozen=True, kw_only=True):
    """`metadata`: a query string of pairs, all of which must match. `state`: running, paused."""

    metadata: str | None = None
    state: tuple[str, ...] = ()
    limit: PageSize = 100
    next_token: str | None = msgspec.field(name="nextToken", default=None)
    started_after: str | None = msgspec.field(name="startedAfter", default=None)
    template: str | None = None
    order: str = "desc"


class SnapshotPageQuery(Value, frozen=True, kw_only=True):
    sandbox: str | None = msgspec.field(name="sandboxID", default=None)
    name: str | None = None
    limit: PageSize = 100
    next_token: str | None = msgspec.field(name="nextToken", default=None)


class SandboxRoutes:
    """Handlers of /sandboxes and /v2/sandboxes. `domain`: the parent of the host names of sandboxes."""

    def __init__(self, domain: str | None, templates: Templates) -> None:
        self._domain, self._templates = domain, templates

    def _shown(self, call: Call[Any, Any], info: SandboxInfo) -> dict[str, Any]:
        access, traffic = access_tokens(call.engine.tokens, call.caller, info.id)
        template = mark_of(info).template or info.image
        return {
            "templateID": template, "alias": template, "sandboxID": info.id, "clientID": "skerry",
            "envdVersion": ENVD_VERSION, "envdAccessToken": access, "trafficAccessToken": traffic,
            "domain": self._domain,
        }  # fmt: skip

    async def create(self, call: Call[Empty, NewSandbox]) -> StreamResponse:
        template = await self._templates.resolve(call.caller, call.body.template_id)
        request = create_request(call.body, template, longest_lifetime(call.engine))
        with _lifetime_refusals():
            info = await call.engine.sandboxes.create(call.caller, request, key_of(call))
        call.log["sandbox"] = info.id
        try:
            await _start_command(call.engine, call.caller, info)
        except SkerryError:
            with contextlib.suppress(SkerryError):
                await call.engine.sandboxes.delete(call.caller, info.id, force=True, purge=True)
            raise
        call.outcome |= {"id": info.id}
        return json_response(self._shown(call, info), 201)

    async def connect(self, call: Call[Empty, ConnectRequest]) -> StreamResponse:
        """Resume a paused sandbox. The end of a running one is only moved to a later time."""
        sandbox = call.engine.registry.find(call.caller, call.ref)
        was_running, timeout = state_of(sandbox.record.info()) == "running", _timeout(call.body.timeout)
        if not was_running:
            await call.engine.sandboxes.resume(call.caller, call.ref)
        info = await extend(call.engine, call.caller, sandbox, timeout, only_later=was_running)
        return json_response(self._shown(call, info), 200 if was_running else 201)

    async def resume(self, call: Call[Empty, ConnectRequest]) -> StreamResponse:
        sandbox = call.engine.registry.find(call.caller, call.ref)
        if state_of(sandbox.record.info()) == "running":
            raise Conflict(f"Sandbox {sandbox.record.id} is already running")
        await call.engine.sandboxes.resume(call.caller, call.ref)
        info = await extend(call.engine, call.caller, sandbox, _timeout(call.body.timeout))
        return json_response(self._shown(call, info), 201)

    async def fork(self, call: Call[Empty, NewFork]) -> StreamResponse:
        """Fork the files; processes are not copied."""
        timeout = _timeout(call.body.timeout)
        made = await call.engine.forks.fork(call.caller, call.ref, ForkRequest(n=call.body.count), key_of(call))
        forks = []
        for one in made:
            info = await extend(call.engine, call.caller, call.engine.registry.find(call.caller, one.id), timeout)
            forks.append({"sandbox": self._shown(call, info)})
        return json_response(forks, 201)

    async def get(self, call: Call[Empty, Empty]) -> StreamResponse:
        info = call.engine.sandboxes.get(call.caller, call.ref)
        mark, (access, _) = mark_of(info), access_tokens(call.engine.tokens, call.caller, info.id)
        more = {
            "envdAccessToken": access, "domain": self._domain, "allowInternetAccess": mark.internet,
            "lifecycle": {
                "autoResume": bool(info.lifecycle.auto_resume), "onTimeout": "pause" if mark.pause else "kill",
            },
            "network": {
                **shown(info.network), "allowPublicTraffic": mark.public,
                **({"maskRequestHost": mark.mask} if mark.mask is not None else {}),
            },
            "volumeMounts": [{"name": word, "path": path} for path, word in info.volumes.items()],
        }  # fmt: skip
        return json_response({**listed(info), **more})


async def _start_command(engine: Engine, caller: Caller, info: SandboxInfo) -> None:
    """Run the start command of a template. Its snapshot has no processes."""
    spec = engine.registry.find(caller, info.id).record.spec
    if MARK in spec.image and spec.cmd:
        request = RunRequest(id=START_ID, cmd=[*spec.cmd], cwd=spec.cwd, user=spec.user)
        with contextlib.suppress(Conflict):  # a repeated request with the same key
            await engine.processes.spawn(caller, info.id, request)


def longest_lifetime(engine: Engine) -> str:
    """Return the lifetime of a sandbox without an end: the operator's maximum."""
    longest: str | None = engine.settings["max.lifetime"]
    return longest if longest is not None else "never"


def create_request(body: NewSandbox, template: TemplateBase, longest: str) -> CreateRequest:
    """Return Skerry's request. A sandbox never ends for being idle; its end is absolute, or a pause within the
    `longest` lifetime."""
    for name, value in (("iam", body.iam), ("mcp", body.mcp)):
        if value:
            raise InvalidRequest(f"{name}: not supported by this server")
    if body.auto_resume.enabled and not body.auto_pause:
        raise InvalidRequest("autoResume: only with autoPause")
    for label in RESERVED:
        if label in (body.metadata or {}):
            raise InvalidRequest(f"metadata: the key {label} is reserved")
    check_mask(body.network.mask_request_host)
    timeout = _timeout(body.timeout)
    mark = SandboxMark(
        template=body.template_id, timeout=timeout, pause=body.auto_pause, memory=body.auto_pause_memory,
        end=time.time() + timeout if body.auto_pause else None, internet=body.allow_internet_access,
        public=body.network.allow_public_traffic is not False, mask=body.network.mask_request_host,
    )  # fmt: skip
    return CreateRequest(
        image=template.image, limits=template.limits, env=dict(body.env_vars or {}),
        labels=marked(body.metadata or {}, mark), volumes=_volumes(body),
        network=network_of(body.network, body.allow_internet_access),
        lifecycle=Lifecycle(
            idle_timeout="never", max_lifetime=longest if body.auto_pause else timeout,
            auto_resume=body.auto_resume.enabled,
        ),
    )  # fmt: skip


def _volumes(body: NewSandbox) -> dict[str, str]:
    """Return the mounts by their paths. Directories of the operator are not volumes of the owner."""
    found: dict[str, str] = {}
    for mount in body.volume_mounts:
        if not NAME.fullmatch(mount.name):
            raise InvalidRequest(f"volumeMounts: {mount.name[:80]!r} is not the name of a volume")
        path = posixpath.normpath(mount.path)
        if path in found:
            raise InvalidRequest(f"volumeMounts: {path[:80]!r} is given twice")
        found[path] = mount.name
    return found


def _timeout(seconds: int) -> int:
    if not 0 <= seconds <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout: {seconds} is out of range")
    return max(seconds, 1)


async def extend(
    engine: Engine, caller: Caller, sandbox: Sandbox, timeout: int, only_later: bool = False
) -> SandboxInfo:
    """Set the end of a sandbox to `timeout` seconds from now."""
    info, now = sandbox.record.info(), time.time()
    mark = mark_of(info)
    end = mark.end if mark.pause else info.ends_at
    if only_later and end is not None and end >= now + timeout:
        return info
    lifetime = now - (info.started_at or now) + timeout
    mark = msgspec.structs.replace(mark, timeout=timeout, end=now + timeout if mark.pause else None)
    lifecycle = Lifecycle(max_lifetime=longest_lifetime(engine) if mark.pause else lifetime)
    return await _update(engine, caller, info, mark, lifecycle)


async def _update(
    engine: Engine, caller: Caller, info: SandboxInfo, mark: SandboxMark, lifecycle: Lifecycle
) -> SandboxInfo:
    with _lifetime_refusals():
        return await engine.sandboxes.update(
            caller, info.id, UpdateRequest(labels=marked(metadata_of(info), mark), lifecycle=lifecycle)
        )


@contextlib.contextmanager
def _lifetime_refusals() -> Iterator[None]:
    """Report a timeout above `max.lifetime` as E2B does: as a wrong argument."""
    try:
        yield
    except QuotaExceeded as error:
        if error.details.get("limit") != "max_lifetime":
            raise
        raise InvalidRequest(f"timeout: {error.message}", hint=error.hint) from error


async def set_timeout(call: Call[Empty, ConnectRequest]) -> None:
    sandbox = call.engine.registry.find(call.caller, call.ref)
    if state_of(sandbox.record.info()) != "running":
        raise NotFound(f"Sandbox {sandbox.record.id} not found: it is not running")
    await extend(call.engine, call.caller, sandbox, _timeout(call.body.timeout))


async def refresh(call: Call[Empty, RefreshRequest]) -> None:
    sandbox = call.engine.registry.find(call.caller, call.ref)
    await extend(call.engine, call.caller, sandbox, _timeout(call.body.duration), only_later=True)


async def pause(call: Call[Empty, Empty]) -> None:
    """Pause a sandbox until a caller resumes it: it has no end meanwhile."""
    body = decode_json(await call.read(1 << 16), PauseRequest) if call.headers.has_body else PauseRequest()
    sandbox = call.engine.registry.find(call.caller, call.ref)
    if state_of(sandbox.record.info()) != "running":
        raise Conflict(f"Sandbox {sandbox.record.id} is already paused")
    await suspend(call.engine, call.caller, sandbox, body.memory)


async def suspend(engine: Engine, caller: Caller, sandbox: Sandbox, memory: bool) -> None:
    """Pause a sandbox. Its end is removed first, because a frozen keeper cannot be configured; if the pause fails, it
    is set again."""
    info, longest = sandbox.record.info(), longest_lifetime(engine)
    mark = mark_of(info)
    paused = msgspec.structs.replace(mark, end=0.0)
    await _update(engine, caller, info, paused, Lifecycle(max_lifetime=longest))
    try:
        await (engine.sandboxes.pause if memory else engine.sandboxes.stop)(caller, info.id)
    except Exception:
        with contextlib.suppress(SkerryError):
            former = Lifecycle(max_lifetime=info.lifecycle.max_lifetime or longest)
            await _update(engine, caller, info, mark, former)
        raise


async def kill(call: Call[Empty, Empty]) -> None:
    await call.engine.sandboxes.delete(call.caller, call.ref)


async def list_(call: Call[SandboxPageQuery, Empty]) -> StreamResponse:
    """List sandboxes, newest first."""
    query = call.query
    wanted = {unquote(key): unquote(value) for key, value in parse_qsl(query.metadata or "", keep_blank_values=True)}
    after = _time(query.started_after)
    states = {word for text in query.state for word in text.split(",")} or {"running", "paused"}
    found = [
        info for info in call.engine.sandboxes.list(call.caller, wanted, None)
        if state_of(info) in states and not info.labels.keys() & {HELPER, BUILD}
        and query.template in (None, mark_of(info).template, info.image)
        and (after is None or (info.started_at or info.created_at) >= after - CLOCK_S)
    ]  # fmt: skip
    page, token = page_of(found, query.next_token, query.limit, newest_first=query.order != "asc")
    return json_response([listed(info) for info in page], headers={"X-Next-Token": token} if token else {})


def _time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text is not None else None
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"startedAfter: {text!r:.60} is not a time") from error


async def list_running(call: Call[SandboxPageQuery, Empty]) -> StreamResponse:
    """GET /sandboxes: the first version has no pages."""
    call.query = msgspec.structs.replace(call.query, state=("running",), limit=MAX_PAGE)
    return await list_(call)


def page_of(
    found: Iterable[Listed], token: str | None, limit: int, newest_first: bool
) -> tuple[list[Listed], str | None]:
    """Return a page, and the token of the next one: the time and the ID of the last item. It names a position, so the
    item may be deleted meanwhile."""
    ordered = sorted(found, key=_position, reverse=newest_first)
    if token is not None:
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise InvalidRequest("nextToken: not a token of this server", hint="list from the start again")
        last = float(match[1]), match[2]
        ordered = [one for one in ordered if (_position(one) < last if newest_first else _position(one) > last)]
    page = ordered[:limit]
    return page, "{!r}_{}".format(*_position(page[-1])) if len(ordered) > limit else None


def _position(info: SandboxInfo | SnapshotInfo) -> tuple[float, str]:
    return info.created_at, info.id


async def update_network(call: Call[Empty, NetworkOptions]) -> None:
    """Replace the policy. Options of ports can be set at create only, as there."""
    for name, value in (
        ("allowPublicTraffic", call.body.allow_public_traffic), ("maskRequestHost", call.body.mask_request_host),
    ):  # fmt: skip
        if value is not None:
            raise InvalidRequest(f"{name}: cannot be changed after the create")
    await call.engine.network.set(call.caller, call.ref, network_of(call.body, True))
    info = call.engine.sandboxes.get(call.caller, call.ref)
    mark = msgspec.structs.replace(mark_of(info), internet=call.body.allow_internet_access is not False)
    await _update(call.engine, call.caller, info, mark, Lifecycle())


# -- snapshots --------------------------------------------------------------------------------------------------------


def _snapshot(info: SnapshotInfo) -> dict[str, Any]:
    return {"snapshotID": info.name or info.id, "names": [info.name] if info.name else []}


async def snapshot(call: Call[Empty, NewSnapshot]) -> StreamResponse:
    """Snapshot the files; a sandbox that starts from them has no processes."""
    info = await call.engine.snapshots.take(call.caller, call.ref, SnapshotRequest(name=call.body.name))
    return json_response(_snapshot(info), 201)


async def snapshots(call: Call[SnapshotPageQuery, Empty]) -> StreamResponse:
    query = call.query
    found = [
        info for info in await call.engine.snapshots.list(call.caller)
        if MARK not in (info.name or "")
        and query.sandbox in (None, info.sandbox) and query.name in (None, info.name)
    ]  # fmt: skip
    page, token = page_of(found, query.next_token, query.limit, newest_first=True)
    return json_response([_snapshot(info) for info in page], headers={"X-Next-Token": token} if token else {})


# -- ends -------------------------------------------------------------------------------------------------------------


async def pause_at_ends(engine: Engine) -> None:
    """Pause sandboxes at their end, if they are to be paused then. A failure of one sandbox must not keep those of
    other owners running."""
    for sandbox in list(engine.registry):
        try:
            await _pause_at_end(engine, sandbox)
        except SkerryError:
            continue
        except Exception:
            log.exception("failed to pause a sandbox at its end", extra={"sandbox": sandbox.record.id})


async def _pause_at_end(engine: Engine, sandbox: Sandbox) -> None:
    """Pause a sandbox at its end. A sandbox that resumed by itself gets a new end."""
    info = sandbox.record.info()
    mark = mark_of(info)
    if not mark.pause or info.state != "running" or mark.end is None or mark.end > time.time():
        return
    caller = Caller(owner=info.owner, scope="use")
    if mark.end:
        await suspend(engine, caller, sandbox, mark.memory)
    else:
        await extend(engine, caller, sandbox, max(mark.timeout, DEFAULT_RESUME_S))


DEFAULT_RESUME_S: Final = 300
