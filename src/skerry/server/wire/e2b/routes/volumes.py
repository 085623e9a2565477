"""Volumes, and their files without a sandbox of the caller.

The files of a volume are untrusted, so the server never walks them: it mounts the volume in a sandbox without a
network, and the keeper of that sandbox does the work. The sandbox is deleted when it is idle, or before its volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct

from skerry.errors import FileExists, FileIsDirectory, FileNotFound, NotFound
from skerry.keeper.files import Files
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import BYTES, StreamResponse
from skerry.server.wire.e2b.access import volume_token
from skerry.server.wire.e2b.values import HELPER, json_response, moment
from skerry.types import (
    Caller,
    CreateRequest,
    FileInfo,
    Lifecycle,
    Limits,
    Network,
    Options,
    PathText,
    Value,
    VolumeInfo,
    VolumeRequest,
    check_path,
)

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

T = TypeVar("T")
PLACE: Final = "/volume"
HELPER_IDLE_S: Final = 30
MAX_DEPTH: Final = 100
_TYPES: Final = {"file": "file", "directory": "directory", "link": "symlink"}
Number = Annotated[int, Meta(ge=0, le=(1 << 32) - 2)]
Mode = Annotated[int, Meta(ge=0, le=0o7777)]


class NewVolume(Struct, frozen=True, kw_only=True):
    """POST /volumes."""

    name: str


class VolumePathQuery(Value, frozen=True, kw_only=True):
    path: PathText


class VolumeDirQuery(VolumePathQuery, frozen=True, kw_only=True):
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH)] = 1


class VolumeWriteQuery(VolumePathQuery, frozen=True, kw_only=True):
    """`force`: replace a file; create missing parents of a directory, which may exist."""

    uid: Number | None = None
    gid: Number | None = None
    mode: Mode | None = None
    force: bool = False


class VolumeMetadata(Struct, frozen=True, kw_only=True):
    """PATCH /volumecontent/{volume}/path."""

    uid: Number | None = None
    gid: Number | None = None
    mode: Mode | None = None


class VolumeHelpers:
    """The sandboxes that serve the files of volumes, by volume."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sandboxes: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def sandbox(self, caller: Caller, volume: VolumeInfo) -> AsyncIterator[str]:
        """Yield the sandbox of a volume; create it if there is none. It is not deleted before the block ends."""
        self._users[volume.id] += 1
        try:
            async with self._locks.setdefault(volume.id, asyncio.Lock()):
                known = self._engine.registry.get(self._sandboxes.get(volume.id, ""))
                if known is None or known.record.state != "running":
                    self._sandboxes[volume.id] = (await self._create(caller, volume)).id
            yield self._sandboxes[volume.id]
        finally:
            self._users[volume.id] -= 1
            if not self._users[volume.id]:
                del self._users[volume.id]
                if volume.id not in self._sandboxes:
                    self._locks.pop(volume.id, None)

    async def _create(self, caller: Caller, volume: VolumeInfo) -> Any:
        self._forget_deleted()
        return await self._engine.sandboxes.create(
            caller,
            CreateRequest(
                image="base", labels={HELPER: volume.id}, network=Network(), volumes={PLACE: volume.id},
                limits=Limits(pids=64), options=Options(sudo=False),
                lifecycle=Lifecycle(idle_timeout=HELPER_IDLE_S, max_lifetime="1h", on_idle="delete"),
            ),
        )  # fmt: skip

    def _forget_deleted(self) -> None:
        for volume, sandbox in list(self._sandboxes.items()):
            if self._engine.registry.get(sandbox) is None and not self._users[volume]:
                del self._sandboxes[volume]
                self._locks.pop(volume, None)

    async def remove(self, caller: Caller, volume: str) -> None:
        """Delete the sandboxes of a volume, also those that an earlier server created."""
        self._sandboxes.pop(volume, None)
        if not self._users[volume]:
            self._locks.pop(volume, None)
        for info in self._engine.sandboxes.list(caller, {HELPER: volume}, None):
            with contextlib.suppress(NotFound):
                await self._engine.sandboxes.delete(caller, info.id, force=True, purge=True)


class VolumeRoutes:
    """Handlers of /volumes and /volumecontent. `domain`: of the control plane's host name."""

    def __init__(self, domain: str | None, helpers: VolumeHelpers) -> None:
        self._domain, self._helpers = domain, helpers

    # -- volumes ------------------------------------------------------------------------------------------------------

    async def create(self, call: Call[Empty, NewVolume]) -> StreamResponse:
        made = await call.engine.volumes.create(call.caller, VolumeRequest(name=call.body.name))
        return json_response(self._shown(call, made), 201)

    async def list_(self, call: Call[Empty, Empty]) -> StreamResponse:
        found = [one for one in await call.engine.volumes.list(call.caller) if one.owner == call.caller.owner]
        return json_response([{"volumeID": one.id, "name": one.name} for one in found])

    async def get(self, call: Call[Empty, Empty]) -> StreamResponse:
        return json_response(self._shown(call, await self._volume(call)))

    async def remove(self, call: Call[Empty, Empty]) -> None:
        volume = await self._volume(call)
        await self._helpers.remove(call.caller, volume.id)
        await call.engine.volumes.delete(call.caller, volume.id)

    async def _volume(self, call: Call[Any, Any]) -> VolumeInfo:
        found = await call.engine.volumes.get(call.caller, call.parameters["volume"])
        if found.owner != call.caller.owner:
            raise NotFound(f"volume {found.id} not found")
        return found

    def _shown(self, call: Call[Any, Any], volume: VolumeInfo) -> dict[str, Any]:
        domain = {"domain": self._domain} if self._domain is not None else {}
        token = volume_token(call.engine.tokens, call.caller, volume.id)
        return {"volumeID": volume.id, "name": volume.name, "token": token, **domain}

    # -- files --------------------------------------------------------------------------------------------------------

    async def _inside(self, call: Call[Any, Any], work: Callable[[Files], Awaitable[T]]) -> T:
        async with self._helpers.sandbox(call.caller, await self._volume(call)) as sandbox:
            return await call.engine.files.of(call.caller, sandbox).do(work)

    async def stat(self, call: Call[VolumePathQuery, Empty]) -> StreamResponse:
        path = _inner(call.query.path)
        return json_response(_entry(await self._inside(call, lambda files: files.stat(path, "root"))))

    async def entries(self, call: Call[VolumeDirQuery, Empty]) -> StreamResponse:
        path, depth = _inner(call.query.path), call.query.depth or 1
        found = await self._inside(call, lambda files: files.list(path, "root", depth=depth))
        return json_response([_entry(one) for one in found.entries])

    async def make_dir(self, call: Call[VolumeWriteQuery, Empty]) -> StreamResponse:
        query, path = call.query, _inner(call.query.path)

        async def work(files: Files) -> FileInfo:
            with contextlib.suppress(FileNotFound):
                there = await files.stat(path, "root")
                if not query.force or there.type != "directory":
                    raise FileExists(f"Path {query.path} already exists")
            await files.mkdir(path, query.force, None, "root")
            return await _changed(files, path, query.uid, query.gid, query.mode)

        return json_response(_entry(await self._inside(call, work)), 201)

    async def update(self, call: Call[VolumePathQuery, VolumeMetadata]) -> StreamResponse:
        path, body = _inner(call.query.path), call.body
        found = await self._inside(call, lambda files: _changed(files, path, body.uid, body.gid, body.mode))
        return json_response(_entry(found))

    async def remove_path(self, call: Call[VolumePathQuery, Empty]) -> None:
        path = _inner(call.query.path)
        if path == PLACE:
            raise FileIsDirectory("the root of a volume cannot be removed")
        await self._inside(call, lambda files: files.remove(path, True, "root"))

    async def read(self, call: Call[VolumePathQuery, Empty]) -> StreamResponse:
        """Stream a file. The volume stays mounted until its last byte."""
        path = _inner(call.query.path)
        async with contextlib.AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(self._helpers.sandbox(call.caller, await self._volume(call)))
            files = call.engine.files.of(call.caller, sandbox)
            found = await files.do(lambda keeper: keeper.stat(path, "root", follow=True))
            if found.type != "file":
                raise FileNotFound(f"Path {call.query.path} not found: it is a {found.type}")
            reader = await files.read(path, user="root")
            stack.push_async_callback(reader.aclose)
            return StreamResponse(BYTES, _pieces(reader), close=stack.pop_all().aclose, length=reader.total)

    async def write(self, call: Call[VolumeWriteQuery, Empty]) -> StreamResponse:
        query, path = call.query, _inner(call.query.path)

        async def work(files: Files) -> FileInfo:
            with contextlib.suppress(FileNotFound):
                there = await files.stat(path, "root")
                if there.type == "directory" or not query.force:
                    raise FileExists(f"Path {query.path} already exists")
            owner = f"{query.uid or 0}:{query.gid or 0}"
            size = call.headers.body_size
            return await files.write(path, call.chunks(), query.mode, "root", False, owner, size)

        return json_response(_entry(await self._inside(call, work)), 201)


async def _pieces(reader: Any) -> Any:
    async for chunk in reader:
        yield chunk


async def _changed(files: Files, path: str, uid: int | None, gid: int | None, mode: int | None) -> FileInfo:
    if uid is not None or gid is not None:
        there = await files.stat(path, "root")
        await files.chown(path, f"{there.uid if uid is None else uid}:{there.gid if gid is None else gid}", "root")
    if mode is not None:
        await files.chmod(path, mode, "root")
    return await files.stat(path, "root")


def _inner(path: str) -> str:
    """Return the path in the helper's file system; links of the volume may lead elsewhere in it, which is harmless."""
    check_path("path", path)
    return posixpath.normpath(f"{PLACE}/{posixpath.normpath(f'/{path.strip()}').lstrip('/')}")


def _entry(info: FileInfo) -> dict[str, Any]:
    path = info.path if info.path.startswith(PLACE) else f"{PLACE}/{info.path}"
    path = path[len(PLACE) :] or "/"
    at = moment(info.mtime)
    shown = {
        "name": posixpath.basename(path) or "/", "type": _TYPES.get(info.type, "unknown"), "path": path,
        "size": info.size if info.type == "file" else 0, "mode": info.mode & 0o7777, "uid": info.uid, "gid": info.gid,
        "atime": at, "mtime": at, "ctime": at,
    }  # fmt: skip
    return {**shown, "target": info.target} if info.target is not None else shown
