"""filesystem.Filesystem: entries and watches. envd works as root and gives new entries to the user of the call, and so
do these routes; the sandbox bounds root."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
import stat as mode_bits
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from skerry.engine.files.service import FileStep, FileWatch
from skerry.errors import (
    FileError,
    FileExists,
    FileNotFound,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SkerryError,
)
from skerry.keeper.files import Files
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import StreamResponse
from skerry.server.wire.e2b import connect
from skerry.server.wire.e2b.errors import RpcError
from skerry.server.wire.e2b.messages import Message
from skerry.server.wire.e2b.users import Account, Accounts, UserTable, absolute
from skerry.types import FileEvent, FileInfo

T = TypeVar("T")
MAX_LINKS: Final = 40
DIRECTORY_SIZE: Final = 4096  # as ext4 shows it; other file systems have none
_TYPES: Final = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY"}
_EVENTS: Final = {"created": "EVENT_TYPE_CREATE", "modified": "EVENT_TYPE_WRITE", "removed": "EVENT_TYPE_REMOVE"}


class EntryDescriber:
    """Descriptions of entries in the words of envd."""

    def __init__(self, users: UserTable) -> None:
        self._users = users

    async def user(self, call: Call[Any, Any]) -> Account:
        return await self._users.user(call)

    async def describe(self, call: Call[Any, Any], found: list[FileInfo], at: str | None = None) -> list[Message]:
        """Describe entries, links by their targets. `at`: the path that was requested, if it leads through links."""
        accounts = await self._users.accounts(call)
        files = call.engine.files.of(call.caller, call.ref)
        shown = []
        for info in found:
            if info.type != "link":
                shown.append(_entry(info, info, None, accounts, at))
                continue
            target, end = await files.do(partial(_target, info))
            shown.append(_entry(info, end, target, accounts, at))
        return shown


async def _target(info: FileInfo, keeper: Files) -> tuple[str, FileInfo | None]:
    """Return the path and the entry at the end of a link; its own path if it leads nowhere."""
    try:
        end = await keeper.stat(info.path, "root", follow=True)
    except FileError:
        return info.path, None
    path, link = info.path, info
    for _ in range(MAX_LINKS):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), link.target or ""))
        with contextlib.suppress(FileError):
            link = await keeper.stat(path, "root")
            if link.type == "link":
                continue
        break
    return path, end


def _entry(info: FileInfo, end: FileInfo | None, target: str | None, accounts: Accounts, at: str | None) -> Message:
    return {
        "name": info.name, "path": at or info.path, "modifiedTime": info.mtime,
        "size": info.size or (DIRECTORY_SIZE if info.type == "directory" else 0),
        "type": _TYPES.get(end.type if end is not None else "", "FILE_TYPE_UNSPECIFIED"),
        "mode": end.mode & 0o777 if end is not None else 0, "permissions": _permissions(info),
        "owner": accounts.owner(info.uid), "group": accounts.group(info.gid), "symlinkTarget": target,
        "isSymlink": info.type == "link",
    }  # fmt: skip


def _permissions(info: FileInfo) -> str:
    kind = {"directory": "d", "link": "L", "fifo": "p", "socket": "S", "device": "D"}.get(info.type, "-")
    return kind + mode_bits.filemode(info.mode & 0o777)[1:]


async def inside(call: Call[Any, Any], work: Callable[[Files], Awaitable[T]], step: FileStep | None = None) -> T:
    return await call.engine.files.of(call.caller, call.ref, step).do(work)


async def with_metadata(call: Call[Any, Any], entry: Message) -> Message:
    """Return an entry with the metadata that its file has as extended attributes."""
    path = entry["path"]
    found = await inside(call, lambda files: files.attributes(path, "root"))
    return {**entry, "metadata": found.get(path, {})}


async def ensure_directory(call: Call[Any, Any], path: str, user: Account, step: FileStep | None = None) -> None:
    """Create a directory and its missing parents, all owned by the user."""

    async def work(files: Files) -> None:
        missing, here = [], path
        while here != "/":
            try:
                await files.stat(here, "root", follow=True)
                break
            except FileNotFound:
                missing.append(here)
                here = posixpath.dirname(here)
        for one in reversed(missing):
            await files.mkdir(one, True, None, "root")
            await files.chown(one, f"{user.uid}:{user.gid}", "root")

    await inside(call, work, step)


# -- watches ----------------------------------------------------------------------------------------------------------

MAX_WATCHERS: Final = 64  # of one sandbox
MAX_EVENTS: Final = 10_000  # of one watcher that nothing reads
ARRIVAL_S: Final = 0.2
FORGET_S: Final = 600.0  # of a watcher that nothing asks


@dataclass
class Watcher:
    """A watch with the events that its client has not fetched."""

    sandbox: str
    events: deque[FileEvent]
    path: str
    include_entry: bool
    task: asyncio.Task[None] | None = None
    error: SkerryError | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    used_at: float = field(default_factory=time.monotonic)


class Watchers:
    """The watches of clients that poll. They end with this server: a client gets not_found, and watches again."""

    def __init__(self) -> None:
        self._watchers: dict[str, Watcher] = {}

    async def add(self, sandbox: str, watch: FileWatch, path: str, include_entry: bool) -> str:
        await self._forget_unused()
        if sum(one.sandbox == sandbox for one in self._watchers.values()) >= MAX_WATCHERS:
            await watch.aclose()
            raise QuotaExceeded(f"more than {MAX_WATCHERS} watchers in {sandbox}", hint="remove some")
        watcher, name = Watcher(sandbox, deque(maxlen=MAX_EVENTS), path, include_entry), secrets.token_hex(12)
        watcher.task = asyncio.create_task(_read(watch, watcher))
        self._watchers[name] = watcher
        return name

    def find(self, sandbox: str, name: str) -> Watcher:
        watcher = self._watchers.get(name)
        if watcher is None or watcher.sandbox != sandbox:
            raise NotFound(f"watcher with id {name[:80]} not found")
        watcher.used_at = time.monotonic()
        return watcher

    async def remove(self, sandbox: str, name: str) -> None:
        self.find(sandbox, name)
        await _stop(self._watchers.pop(name))

    async def _forget_unused(self) -> None:
        now = time.monotonic()
        for name, one in list(self._watchers.items()):
            if now - one.used_at > FORGET_S or one.error is not None:
                del self._watchers[name]
                await _stop(one)

    async def aclose(self) -> None:
        while self._watchers:
            await _stop(self._watchers.popitem()[1])


async def _read(watch: FileWatch, watcher: Watcher) -> None:
    try:
        async for event in watch:
            watcher.events.append(event)
            watcher.arrived.set()
    except SkerryError as error:
        watcher.error = error
    finally:
        await watch.aclose()


async def _stop(watcher: Watcher) -> None:
    if watcher.task is not None:
        watcher.task.cancel()
        await asyncio.wait((watcher.task,))


async def _watch(entries: EntryDescriber, call: Call[Empty, Empty], message: Message) -> tuple[FileWatch, str]:
    user = await entries.user(call)
    path = absolute(message.get("path", ""), user)
    found = await inside(call, lambda files: files.stat(path, "root", follow=True))
    if found.type != "directory":
        raise InvalidRequest(f"path {path} is not a directory")
    files = call.engine.files.of(call.caller, call.ref)
    return await files.watch(path, recursive=message.get("recursive", False), user="root"), path


async def _shown(
    entries: EntryDescriber, call: Call[Any, Any], event: FileEvent, root: str, include: bool
) -> AsyncGenerator[Message, None]:
    """Yield the events of envd for a change: a move is the end of one name and the start of another."""
    if event.type == "overflow":
        raise RpcError("resource_exhausted", "events were lost: watch again")
    kinds = [(_EVENTS.get(event.type, "EVENT_TYPE_RENAME"), event.path)]
    if event.type == "moved":
        kinds.append(("EVENT_TYPE_CREATE", event.to or ""))
    elif event.type == "created" and not event.directory:
        # A file gets its owner and its content under another name, which is then changed.
        kinds += [("EVENT_TYPE_CHMOD", event.path), ("EVENT_TYPE_WRITE", event.path)]
    for kind, path in kinds:
        shown: Message = {"name": posixpath.relpath(posixpath.join(root, path), root), "type": kind}
        if include and kind in ("EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"):
            with contextlib.suppress(FileError):
                place = posixpath.join(root, path)
                found = await inside(call, lambda files, place=place: files.stat(place, "root"))  # type: ignore[misc]
                (entry,) = await entries.describe(call, [found])
                shown["entry"] = await with_metadata(call, entry)
        yield shown


class FilesystemRoutes:
    """Handlers of the service `filesystem.Filesystem`."""

    def __init__(self, users: UserTable, watchers: Watchers) -> None:
        self._entries, self._watchers = EntryDescriber(users), watchers

    async def stat(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "PathRequest")
        path = absolute(message.get("path", ""), await self._entries.user(call))
        found = await inside(call, lambda files: files.stat(path, "root"))
        (shown,) = await self._entries.describe(call, [found], path)
        return connect.answer(call, "EntryResponse", {"entry": await with_metadata(call, shown)})

    async def list_(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "ListDirRequest")
        user = await self._entries.user(call)
        path, depth = absolute(message.get("path", ""), user), min(message.get("depth") or 1, 1 << 20)
        found = await inside(call, lambda files: files.list(path, "root", depth=depth))
        if found.more:
            raise RpcError("resource_exhausted", f"{path} has more than {len(found.entries)} entries")
        shown = await self._entries.describe(call, found.entries)
        for entry, info in zip(shown, found.entries, strict=True):
            entry["path"] = posixpath.join(path, info.path) if not info.path.startswith("/") else info.path
        metadata = await inside(call, lambda files: files.attributes(path, "root", depth))
        for entry in shown:
            entry["metadata"] = metadata.get(entry["path"], {})
        return connect.answer(call, "ListDirResponse", {"entries": shown})

    async def make_dir(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "PathRequest")
        user = await self._entries.user(call)
        path = absolute(message.get("path", ""), user)
        with contextlib.suppress(FileNotFound):
            there = await inside(call, lambda files: files.stat(path, "root", follow=True))
            if there.type == "directory":
                raise FileExists(f"directory already exists: {path}")
            raise InvalidRequest(f"path already exists but it is not a directory: {path}")
        await ensure_directory(call, path, user, FileStep("file.mkdir", {"path": path}, path))
        found = await inside(call, lambda files: files.stat(path, "root"))
        (shown,) = await self._entries.describe(call, [found])
        return connect.answer(call, "EntryResponse", {"entry": shown})

    async def move(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "MoveRequest")
        user = await self._entries.user(call)
        source, target = (absolute(message.get(name, ""), user) for name in ("source", "destination"))
        await ensure_directory(call, posixpath.dirname(target), user)
        step = FileStep("file.move", {"path": source, "to": target}, source)
        await inside(call, lambda files: files.move(source, target, "root", overwrite=True), step)
        found = await inside(call, lambda files: files.stat(target, "root"))
        (shown,) = await self._entries.describe(call, [found])
        return connect.answer(call, "EntryResponse", {"entry": await with_metadata(call, shown)})

    async def remove(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "PathRequest")
        path = absolute(message.get("path", ""), await self._entries.user(call))
        step = FileStep("file.remove", {"path": path}, path)
        with contextlib.suppress(FileNotFound):  # as `rm -f`
            await inside(call, lambda files: files.remove(path, True, "root"), step)
        return connect.answer(call, "Empty", {})

    async def watch(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.opening(call, "WatchRequest")
        watching, root = await _watch(self._entries, call, message)
        include = message.get("includeEntry", False)

        async def events() -> AsyncGenerator[Message, None]:
            yield {"start": {}}
            async for event in watching:
                async for shown in _shown(self._entries, call, event, root, include):
                    yield {"filesystem": shown}

        return connect.stream(call, "WatchDirResponse", events(), {"keepalive": {}}, watching.aclose)

    async def create_watcher(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "WatchRequest")
        watching, root = await _watch(self._entries, call, message)
        name = await self._watchers.add(call.ref, watching, root, message.get("includeEntry", False))
        return connect.answer(call, "WatcherResponse", {"watcherId": name})

    async def watcher_events(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "WatcherRequest")
        watcher = self._watchers.find(call.ref, message.get("watcherId", ""))
        if watcher.error is not None and not watcher.events:
            raise watcher.error
        if not watcher.events:  # one may be on its way
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watcher.arrived.wait(), ARRIVAL_S)
        watcher.arrived.clear()
        found: list[Message] = []
        while watcher.events:
            event = watcher.events.popleft()
            found += [shown async for shown in _shown(self._entries, call, event, watcher.path, watcher.include_entry)]
        return connect.answer(call, "WatcherEvents", {"events": found})

    async def remove_watcher(self, call: Call[Empty, Empty]) -> StreamResponse:
        message = await connect.unary(call, "WatcherRequest")
        await self._watchers.remove(call.ref, message.get("watcherId", ""))
        return connect.answer(call, "Empty", {})
