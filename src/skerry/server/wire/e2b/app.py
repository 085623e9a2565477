"""The routes of the E2B protocols, and their way from a request to a handler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.http.auth import Authenticator
from skerry.server.http.call import Headers
from skerry.server.http.endpoint import Endpoint, RequestContext, ResponseWriter
from skerry.server.http.protocol import TIMEOUT_BODY
from skerry.server.http.responses import BYTES, JSON, ClientDisconnected, NoSuchPath, internal_error
from skerry.server.http.route import Handler, Route
from skerry.server.routes.code import CODE_LIMIT
from skerry.server.wire.e2b import errors
from skerry.server.wire.e2b.access import (
    CODE_PORT,
    ENVD_PORT,
    SandboxPort,
    api_caller,
    named_by_host,
    sandbox_caller,
    signed,
    target_of,
    upload_caller,
    volume_caller,
)
from skerry.server.wire.e2b.builds import Builds
from skerry.server.wire.e2b.connect import last_message, stream_type
from skerry.server.wire.e2b.errors import BadAccessToken, SandboxGone
from skerry.server.wire.e2b.ports import PortTraffic
from skerry.server.wire.e2b.routes import code, files, records, sandboxes
from skerry.server.wire.e2b.routes.filesystem import FilesystemRoutes, Watchers
from skerry.server.wire.e2b.routes.processes import ProcessRoutes
from skerry.server.wire.e2b.routes.templates import TemplateRoutes, upload_use
from skerry.server.wire.e2b.routes.volumes import VolumeHelpers, VolumeRoutes
from skerry.server.wire.e2b.template_store import Templates
from skerry.server.wire.e2b.users import UserTable

if TYPE_CHECKING:
    from skerry.engine.engine import Engine
    from skerry.server.control import Control
    from skerry.types import Caller

log = logging.getLogger("skerry.server")
ONE: Final = "/sandboxes/{ref}"
API_PATHS: Final = ("/sandboxes", "/v2", "/v3", "/snapshots", "/templates", "/volumes", "/teams", "/secrets",
                           "/volumecontent")  # fmt: skip
ENDS_EVERY_S: Final = 1.0
BUILD_LIMIT: Final = 4 << 20
_CONTENT: Final = re.compile(r"/volumecontent/([^/]+)/(?:path|dir|file)")
_UPLOAD: Final = re.compile(r"/templates/([^/]+)/files/([^/]+)")
CONNECT: Final = "application/connect"  # the body is read by the handler, in four encodings


def api_routes(domain: str | None, builds: Builds, known: Templates, helpers: VolumeHelpers) -> tuple[Route, ...]:
    """The control plane. `/v2/…` has the same bodies with other defaults."""
    made, forms = sandboxes.SandboxRoutes(domain, known), TemplateRoutes(builds, known)
    template, build = "/templates/{template}", "/templates/{template}/builds/{build}"
    volume, inner = "/volumes/{volume}", "/volumecontent/{volume}"
    content = VolumeRoutes(domain, helpers)
    statuses = (400, 401, 404, 409, 429)
    return (
        Route("POST", "/sandboxes", made.create, "use", "Create a sandbox", 201, statuses, effect="sandbox.create"),
        Route("POST", "/v2/sandboxes", made.create, "use", "Create a sandbox", 201, statuses, effect="sandbox.create"),
        Route("GET", "/sandboxes", sandboxes.list_running, "use", "List running sandboxes", effect=None),
        Route("GET", "/v2/sandboxes", sandboxes.list_, "use", "List sandboxes in pages", effect=None),
        Route("GET", "/sandboxes/metrics", records.all_metrics, "use", "Get the usage of sandboxes", effect=None),
        Route("GET", ONE, made.get, "use", "Get a sandbox", errors=(404,), effect=None),
        Route("DELETE", ONE, sandboxes.kill, "use", "Delete a sandbox", 204, statuses, effect="sandbox.delete"),
        Route("POST", f"{ONE}/connect", made.connect, "use", "Resume or keep a sandbox", effect="sandbox.resume"),
        Route("POST", f"/v2{ONE}/connect", made.connect, "use", "Resume or keep a sandbox", effect="sandbox.resume"),
        Route("POST", f"{ONE}/resume", made.resume, "use", "Resume a paused sandbox", 201, effect="sandbox.resume"),
        Route("POST", f"{ONE}/pause", sandboxes.pause, "use", "Pause a sandbox", 204, statuses, takes=BYTES,
              effect="sandbox.pause"),
        Route("POST", f"{ONE}/timeout", sandboxes.set_timeout, "use", "Set the end of a sandbox", 204, statuses,
              effect="sandbox.update"),
        Route("POST", f"{ONE}/refreshes", sandboxes.refresh, "use", "Move the end of a sandbox", 204, statuses,
              effect="sandbox.update"),
        Route("PUT", f"{ONE}/network", sandboxes.update_network, "use", "Replace the network policy", 204, statuses,
              effect="network.set"),
        Route("GET", f"{ONE}/metrics", records.metrics, "use", "Get the current resource usage", effect=None),
        Route("GET", f"{ONE}/logs", records.logs, "use", "Get the logs of a sandbox", effect=None),
        Route("GET", f"/v2{ONE}/logs", records.logs_v2, "use", "Get the logs of a sandbox", effect=None),
        Route("POST", f"{ONE}/snapshots", sandboxes.snapshot, "use", "Take a snapshot", 201, effect="snapshot.take"),
        Route("POST", f"{ONE}/fork", made.fork, "use", "Fork a sandbox", 201, effect="sandbox.fork"),
        Route("POST", "/v3/templates", forms.create, "use", "Prepare the build of a template", 202,
              effect="image.build"),
        Route("POST", "/v2/templates", forms.create, "use", "Prepare the build of a template", 202,
              effect="image.build"),
        Route("POST", f"/v2{build}", forms.start, "use", "Build a template", 202, limit=BUILD_LIMIT,
              effect="image.build"),
        Route("GET", f"{build}/status", forms.status, "use", "Get the state and the log of a build", effect=None),
        Route("GET", f"{template}/files/{{hash}}", forms.files, "use", "Get the URL for files of a build", 201,
              effect=None),
        Route("PUT", f"{template}/files/{{hash}}", forms.upload, "use", "Upload files of a build", takes=BYTES,
              effect="image.upload"),
        Route("GET", f"{build}/logs", forms.logs, "use", "Get the log of a build", effect=None),
        Route("GET", "/templates", forms.list_, "use", "List templates", effect=None),
        Route("GET", "/v2/templates", forms.list_, "use", "List templates", effect=None),
        Route("GET", "/templates/aliases/{template}", forms.alias, "use", "Find a template", effect=None),
        Route("GET", f"{template}/tags", forms.tags, "use", "List the tags of a template", effect=None),
        Route("POST", "/templates/tags", forms.assign_tags, "use", "Tag a template", 201, statuses,
              effect="image.tag"),
        Route("DELETE", "/templates/tags", forms.remove_tags, "use", "Remove tags of a template", 204, statuses,
              effect="image.tag"),
        Route("GET", template, forms.get, "use", "Get a template", effect=None),
        Route("PATCH", template, forms.update, "use", "Change a template", effect="image.tag"),
        Route("PATCH", f"/v2{template}", forms.update, "use", "Change a template", effect="image.tag"),
        Route("DELETE", template, forms.delete, "use", "Delete a template or a snapshot", 204, statuses,
              effect="snapshot.delete"),
        Route("GET", "/snapshots", sandboxes.snapshots, "use", "List snapshots", effect=None),
        Route("POST", "/volumes", content.create, "use", "Create a volume", 201, statuses, effect="volume.create"),
        Route("GET", "/volumes", content.list_, "use", "List volumes", effect=None),
        Route("GET", volume, content.get, "use", "Get a volume and a token for its files", effect=None),
        Route("DELETE", volume, content.remove, "use", "Delete a volume", 204, statuses, effect="volume.delete"),
        Route("GET", f"{inner}/path", content.stat, "use", "Describe a file of a volume", effect=None),
        Route("PATCH", f"{inner}/path", content.update, "use", "Change the owner or mode of a file of a volume",
              effect="volume.write"),
        Route("DELETE", f"{inner}/path", content.remove_path, "use", "Remove a file of a volume", 204, statuses,
              effect="volume.write"),
        Route("GET", f"{inner}/dir", content.entries, "use", "List a directory of a volume", effect=None),
        Route("POST", f"{inner}/dir", content.make_dir, "use", "Create a directory in a volume", 201, statuses,
              effect="volume.write"),
        Route("GET", f"{inner}/file", content.read, "use", "Download a file of a volume", gives=(BYTES,),
              effect=None),
        Route("PUT", f"{inner}/file", content.write, "use", "Upload a file of a volume", 201, takes=BYTES,
              effect="volume.write"),
    )  # fmt: skip


def envd_routes(users: UserTable, watchers: Watchers) -> tuple[Route, ...]:
    """envd, on port 49983 of each sandbox."""
    made, entries, content = ProcessRoutes(users), FilesystemRoutes(users, watchers), files.FileRoutes(users)

    def rpc(service: str, method: str, handler: Handler, effect: str | None) -> Route:
        """Only streamed input may pause: other calls have one message, which has to arrive in time."""
        summary, takes = f"Call {service}.{method}", CONNECT if method == "StreamInput" else JSON
        return Route("POST", f"/{service}/{method}", handler, "use", summary, takes=takes, effect=effect)

    return (
        rpc("process.Process", "Start", made.start, "process.run"),
        rpc("process.Process", "Connect", made.attach, None),
        rpc("process.Process", "List", made.list_, None),
        rpc("process.Process", "Update", made.update, "process.resize"),
        rpc("process.Process", "SendInput", made.send_input, "process.stdin"),
        rpc("process.Process", "StreamInput", made.stream_input, "process.stdin"),
        rpc("process.Process", "SendSignal", made.signal, "process.signal"),
        rpc("process.Process", "CloseStdin", made.close_stdin, "process.stdin"),
        rpc("filesystem.Filesystem", "Stat", entries.stat, None),
        rpc("filesystem.Filesystem", "ListDir", entries.list_, None),
        rpc("filesystem.Filesystem", "MakeDir", entries.make_dir, "file.mkdir"),
        rpc("filesystem.Filesystem", "Move", entries.move, "file.move"),
        rpc("filesystem.Filesystem", "Remove", entries.remove, "file.remove"),
        rpc("filesystem.Filesystem", "WatchDir", entries.watch, None),
        rpc("filesystem.Filesystem", "CreateWatcher", entries.create_watcher, None),
        rpc("filesystem.Filesystem", "GetWatcherEvents", entries.watcher_events, None),
        rpc("filesystem.Filesystem", "RemoveWatcher", entries.remove_watcher, None),
        Route("GET", "/files", content.read, "use", "Download a file", gives=(BYTES,), effect=None),
        Route("POST", "/files", content.write, "use", "Upload files", takes=BYTES, effect="file.write"),
        Route("POST", "/files/compose", content.compose, "use", "Join files", effect="file.write"),
        Route("GET", "/health", files.health, "use", "Check that a sandbox runs", 204, effect=None),
        Route("GET", "/metrics", records.envd_metrics, "use", "Get the current resource usage", effect=None),
        Route("GET", "/envs", files.envs, "use", "Get the variables of a sandbox", effect=None),
    )  # fmt: skip


def code_routes(users: UserTable) -> tuple[Route, ...]:
    """The code interpreter, on port 49999 of each sandbox."""
    made, one = code.CodeRoutes(users), "/contexts/{context}"
    return (
        Route("GET", "/health", code.health, "use", "Check that the interpreter runs", effect=None),
        Route("POST", "/execute", made.execute, "use", "Run code", limit=CODE_LIMIT, effect="code.run"),
        Route("POST", "/contexts", made.create, "use", "Create a context", effect="context.create"),
        Route("GET", "/contexts", made.list_, "use", "List contexts", effect=None),
        Route("POST", f"{one}/restart", code.restart, "use", "Restart a context", 204, effect="context.restart"),
        Route("DELETE", one, code.remove, "use", "Delete a context", 204, effect="context.delete"),
    )


class E2bWire:
    """Answers requests in the protocols of E2B."""

    def __init__(self, engine: Engine, control: Control, domain: str | None) -> None:
        domain = domain.lower() if domain is not None else None  # host names are compared in lower case
        self._engine, self._domain = engine, domain
        self._watchers = Watchers()
        known = Templates(engine)
        self._builds = Builds(engine, known)
        self._traffic = PortTraffic(engine, control, domain)
        users = UserTable()
        self._api = _router(api_routes(domain, self._builds, known, VolumeHelpers(engine)), engine, control)
        self._ports = {
            ENVD_PORT: _router(envd_routes(users, self._watchers), engine, control),
            CODE_PORT: _router(code_routes(users), engine, control),
        }

    def claims(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request is one of E2B's. None of its paths is a path of this server's own API, and requests
        for a sandbox name it."""
        try:
            return _is_api(scope["path"]) or self._target(scope, headers) is not None
        except InvalidRequest:
            return True  # `answer` reports it

    def _target(self, scope: Scope, headers: Headers) -> SandboxPort | None:
        by_host = named_by_host(headers, self._domain)
        if by_host is None and headers.get(b"x-api-key") is not None and _is_api(scope["path"]):
            return None  # old SDKs send the headers of a sandbox with every request
        return target_of(headers, scope["path"], scope["query_string"], self._domain)

    async def answer(
        self, authenticator: Authenticator, scope: Scope, receive: Receive, send: Send, context: RequestContext
    ) -> None:
        """Handle a request, and report errors in the form of its protocol."""
        path: str = scope["path"]
        form: errors.Form = "connect" if path.startswith(("/process.", "/filesystem.")) else "api"
        sandbox, stream = None, None
        try:
            target = self._target(scope, context.headers)
            if target is not None:
                form, sandbox = "envd" if form == "api" else form, target.sandbox
            scope[TIMEOUT_BODY] = errors.timeout_body(form)
            if target is not None and target.port not in self._ports:
                form = "envd"
                if named_by_host(context.headers, self._domain) is None:
                    authenticator.check_source(context.headers, (scope["server"] or ("",))[0])
                await self._traffic.answer(target, scope, receive, send, context)
                return
            authenticator.check_source(context.headers, (scope["server"] or ("",))[0])
            context.caller, router = self._admit(scope, context.headers, target)
            context.log["owner"] = context.caller.owner
            stream = stream_type(context.headers) if form == "connect" else None
            await router(scope, receive, send)
        except SkerryError as error:
            context.log["code"] = error.code
            if stream is not None and errors.ends_stream(error):
                await _end_stream(context.reply, error, stream)
            else:
                await _send_error(context.reply, error, form, sandbox)
        except ClientDisconnected:
            raise
        except Exception:
            log.exception("request failed with an unexpected error", extra={"request_id": context.reply.request_id})
            await _send_error(context.reply, internal_error(context.reply.request_id), form, sandbox)

    def _admit(self, scope: Scope, headers: Headers, target: SandboxPort | None) -> tuple[Caller, Router]:
        """Return the caller, and the routes that it may call. The sandbox of its access token is the only one that
        they see."""
        if target is None:
            scope["path_params"] = {}
            if (content := _CONTENT.fullmatch(scope["path"])) is not None:
                return volume_caller(self._engine.tokens, headers, content[1]), self._api
            match = _UPLOAD.fullmatch(scope["path"]) if scope["method"] == "PUT" else None
            if match is not None:
                use = upload_use(match[1], match[2])
                return upload_caller(self._engine.tokens, use, scope["query_string"]), self._api
            return api_caller(self._engine.tokens, headers), self._api
        caller, sandbox = sandbox_caller(self._engine.tokens, headers, target), target.sandbox
        if caller is None and scope["path"] == "/files" and target.port == ENVD_PORT:
            caller, sandbox = signed(
                self._engine.tokens, self._engine.registry, sandbox, scope["method"], scope["query_string"]
            )
        if caller is None or sandbox is None:
            raise BadAccessToken("unauthorized access, please provide a valid access token")
        try:
            self._engine.registry.find(caller, sandbox)
        except SkerryError as error:
            raise SandboxGone("The sandbox was not found") from error
        scope["path_params"] = {"ref": sandbox}
        return caller, self._ports[target.port]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Pause sandboxes at their ends, while the server serves."""
        self._builds.clear()
        tasks = [asyncio.create_task(work) for work in (self._watch_ends(), self._builds.recover())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._watchers.aclose()
            await self._builds.aclose()

    async def _watch_ends(self) -> None:
        while True:
            await asyncio.sleep(ENDS_EVERY_S)
            try:
                await sandboxes.pause_at_ends(self._engine)
            except Exception:
                log.exception("failed to pause sandboxes at their ends")


def _is_api(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in API_PATHS)


def _router(table: tuple[Route, ...], engine: Engine, control: Control) -> Router:
    paths: dict[str, tuple[Route, ...]] = {}
    for route in table:
        paths[route.path] = (*paths.get(route.path, ()), route)
    endpoints = [StarletteRoute(path, Endpoint(routes, engine, control)) for path, routes in paths.items()]
    return Router(endpoints, redirect_slashes=False, default=_unknown)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchPath("path not found")


async def _end_stream(reply: ResponseWriter, error: SkerryError, kind: str) -> None:
    if reply.status is None:
        last = last_message(error)
        await reply.start(200, kind, {"Content-Length": str(len(last))})
        await reply.chunk(last, more=False)


async def _send_error(reply: ResponseWriter, error: SkerryError, form: errors.Form, sandbox: str | None) -> None:
    if reply.status is None:
        status, body, headers = errors.response(error, form, sandbox)
        await reply.whole(status, body, headers)
