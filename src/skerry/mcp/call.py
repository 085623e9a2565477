"""A tool call, its progress reports, and its caller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from skerry.client._async.client import AsyncClient
from skerry.client._async.sandbox import AsyncSandbox
from skerry.client._async.snapshots import AsyncSnapshot
from skerry.client.repository.source import Repo
from skerry.client.results.command import Output
from skerry.codecs.text import escape
from skerry.errors import Conflict, NotFound, SkerryError, UnappliedChanges
from skerry.mcp.text import one_line
from skerry.types import Progress, SandboxInfo

log = logging.getLogger("skerry.mcp")
T = TypeVar("T")
FIRST_REPORT_S = 0.5  # seconds until the first progress report of a call
REPORT_INTERVAL_S = 1.0  # seconds between later reports
MAX_ANSWER = 6 << 20
MAX_HTTP_ANSWER = 1_000_000
CLEANUP_TIMEOUT_S = 10.0  # seconds for the clean-up of a cancelled call
_TAIL = 2000


def max_answer_size(context: Context[Any, Any]) -> int:
    """Return the maximum size of an answer: clients that read HTTP events accept one MiB per event."""
    return MAX_ANSWER if context.headers is None else MAX_HTTP_ANSWER


class ToolCall:
    """The first argument of a tool: its caller and the means to report progress."""

    def __init__(self, caller: McpCaller, access: McpAccess, context: Context[Any, Any]) -> None:
        self.caller = caller
        self.access = access
        self._context = context

    @property
    def room(self) -> int:
        return max_answer_size(self._context)

    async def sandbox(self, ref: str | None) -> AsyncSandbox:
        return await self.caller.sandbox(ref, self.access)

    @asynccontextmanager
    async def progress(self, timeout: float | None = None) -> AsyncIterator[ProgressReporter]:
        """Report progress to the client each second, with the last line of output."""
        progress = ProgressReporter(self._context, timeout)
        try:
            yield progress
        finally:
            await progress.end()


class ProgressReporter:
    """Sends progress reports. The task starts late: most calls end before the first report."""

    def __init__(self, context: Context[Any, Any], timeout: float | None) -> None:
        self._context = context
        self._timeout = timeout
        self._started = time.monotonic()
        self._tail = b""
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(FIRST_REPORT_S, self._start)

    def output(self, piece: Output) -> None:
        self._tail = (self._tail + piece.data)[-_TAIL:]

    def installing(self, step: Progress) -> None:
        """Report a step of an installation; a new line replaces the last."""
        percent = f" {step.done * 100 // step.total} %" if step.total else ""
        self._tail = f"installing: {step.stage}{percent} {step.message}".encode("utf-8", "replace")[:_TAIL]

    async def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._report())

    async def _report(self) -> None:
        while True:
            lines = self._tail.decode("utf-8", "replace").strip().splitlines()
            seconds = round(time.monotonic() - self._started, 1)
            try:
                await self._context.report_progress(seconds, self._timeout, one_line(lines[-1]) if lines else None)
            except (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the client has disconnected
            await asyncio.sleep(REPORT_INTERVAL_S)


async def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a separate task that is cancelled only once.

    The protocol's library cancels a call again and again, at every await. The SDK's client cleans up in the sandbox
    when it is cancelled, and a second cancellation would interrupt that."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task], timeout=CLEANUP_TIMEOUT_S)
        raise


# -- callers --

MAX_KNOWN = 256
OWNER_LABEL = "skerry.mcp"  # of a sandbox that a client created over HTTP; its value names the client and the sandbox
_OTHERS = "you can use the sandboxes that you created; a person can add others to the configuration of this client"


@dataclass(frozen=True)
class McpAccess:
    """The sandboxes that a client's configuration gives it beside those that it created: names and IDs, or all."""

    names: frozenset[str] = frozenset()
    everything: bool = False


SandboxDefaults = Callable[[], Mapping[str, Any]]


class McpCaller:
    """A client of the SDK with the caller's rights, the default sandbox of its calls, and the sandboxes it created.

    The default sandbox is created on first use. With a `name`, it is the sandbox of that name, created if it does not
    exist and kept. Sandboxes without a name are deleted by `aclose` unless `keep` is set. `sandbox_defaults` returns
    keyword arguments of `AsyncSandbox` for new sandboxes; it is called once, in a thread. They are decisions of a
    person, not of a model: the network, secrets, the host directory to copy.

    A model may be misled by what it reads, so a call reaches only sandboxes that this caller created and those of its
    `McpAccess`. A caller with a `label` marks the sandboxes that it creates, to find them after a restart.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        name: str | None = None,
        keep: bool = False,
        label: str | None = None,
        sandbox_defaults: SandboxDefaults = dict,
    ) -> None:
        self.client = client
        self.name = name
        self.keep = keep
        self._label = label
        self._load_defaults = sandbox_defaults
        self._defaults: Mapping[str, Any] | None = None
        self._default: AsyncSandbox | None = None
        self._default_lock = asyncio.Lock()
        self._defaults_lock = asyncio.Lock()
        self._made: set[str] = set()  # without a name: deleted at the end
        self._own: set[str] = set()  # with and without a name
        self._snapshots: set[str] = set()
        self._known: dict[str, AsyncSandbox] = {}

    async def sandbox(self, ref: str | None, access: McpAccess) -> AsyncSandbox:
        """Return the named sandbox, else the default one. A lookup by ID is cached, because IDs are never reused. A
        sandbox that the client may not use is not found, as if it did not exist."""
        if ref is None:
            return await self.default()
        try:
            found = self._known.get(ref) or await AsyncSandbox.get(ref, server=self.client)
        except NotFound as error:
            raise NotFound(error.message, hint=_OTHERS) from None
        if not self._may_use(found.cached_info, access):
            raise NotFound(f"sandbox {ref!r} not found", hint=_OTHERS)
        if found.id == ref:
            self._known[ref] = found
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return found

    async def sandboxes(self, access: McpAccess) -> list[AsyncSandbox]:
        found = await AsyncSandbox.list(server=self.client)
        return [sandbox for sandbox in found if self._may_use(sandbox.cached_info, access)]

    def _may_use(self, info: SandboxInfo, access: McpAccess) -> bool:
        return (
            access.everything
            or info.id in self._own
            or not access.names.isdisjoint({info.id, info.name})
            or (self.name is not None and info.name == self.name)
            or (self._label is not None and info.labels.get(OWNER_LABEL) == self._mark(info.id))
        )

    def _mark(self, sandbox: str) -> str:
        """Return the label's value. It names the sandbox too, because a fork by a person has a copy of the label."""
        return f"{self._label} {sandbox}"

    async def check_image(self, image: str, access: McpAccess) -> None:
        """Reject a snapshot of a sandbox that the client may not use: it contains the files of that sandbox."""
        try:
            snapshot = await AsyncSnapshot.get(image, server=self.client)
        except NotFound:
            return  # an image, or nothing
        if access.everything or snapshot.id in self._snapshots:
            return
        try:
            await self.sandbox(snapshot.info.sandbox or snapshot.id, access)
        except NotFound:
            raise NotFound(f"image {image!r} not found", hint=_OTHERS) from None

    @asynccontextmanager
    async def session(self, name: str | None, access: McpAccess) -> AsyncIterator[None]:
        """Reject the name of an existing sandbox that the client may not use, and adopt the one that is created."""
        found = None if name is None else await self._find(name)
        if found is not None and not self._may_use(found.cached_info, access):
            raise Conflict(f"a sandbox named {name!r} already exists and is not yours", hint="choose another name")
        yield
        if name is not None and found is None and (made := await self._find(name)) is not None:
            await self.take(made)

    async def _find(self, name: str) -> AsyncSandbox | None:
        try:
            return await AsyncSandbox.get(name, server=self.client)
        except NotFound:
            return None

    async def default(self) -> AsyncSandbox:
        async with self._default_lock:
            if self._default is None:
                self._default = await self._open_default()
            return self._default

    async def _open_default(self) -> AsyncSandbox:
        if self.name is None:
            return await self.create()
        defaults = await self.sandbox_defaults()
        found = await AsyncSandbox.get_or_create(self.name, server=self.client, **defaults)
        repo = defaults.get("repo")
        if isinstance(repo, Repo) and repo.url is None and found.imported is None:
            await refresh_copy(found, repo)
        return found

    async def create(self, name: str | None = None, **options: Any) -> AsyncSandbox:
        """Create a sandbox with the defaults; `options` override them."""
        made = await AsyncSandbox(name=name, server=self.client, **{**await self.sandbox_defaults(), **options}).start()
        await self.take(made)
        return made

    async def sandbox_defaults(self) -> Mapping[str, Any]:
        async with self._defaults_lock:
            if self._defaults is None:
                self._defaults = await asyncio.to_thread(self._load_defaults)
            return self._defaults

    async def take(self, sandbox: AsyncSandbox) -> None:
        """Adopt a sandbox that was created for this caller: without a name, it is deleted with the caller."""
        if sandbox.id in self._own:
            return
        self._own.add(sandbox.id)
        if sandbox.name is None:
            self._made.add(sandbox.id)
        if self._label is not None:
            await sandbox.update(labels={**sandbox.labels, OWNER_LABEL: self._mark(sandbox.id)})

    def take_snapshot(self, snapshot: str) -> None:
        self._snapshots.add(snapshot)

    @property
    def known_default(self) -> str | None:
        """Return the ID of the default sandbox if it exists already."""
        return None if self._default is None else self._default.id

    def forget(self, sandbox: str) -> None:
        """Forget a deleted sandbox."""
        self._made.discard(sandbox)
        self._own.discard(sandbox)
        self._known.pop(sandbox, None)
        if self.known_default == sandbox:
            self._default = None

    async def aclose(self) -> None:
        """Delete the caller's unnamed sandboxes and close the connections."""
        made, self._made = (set() if self.keep else self._made), set()
        try:
            ends = await asyncio.gather(*map(self._delete, made), return_exceptions=True)
        finally:
            await self.client.aclose()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _delete(self, ref: str) -> None:
        """Delete a sandbox. With accepted changes that were not applied it is only stopped: the connection ends without
        a person's decision."""
        with contextlib.suppress(NotFound):
            sandbox = await AsyncSandbox.get(ref, server=self.client)
            try:
                await sandbox.delete()
            except UnappliedChanges as error:
                log.warning("%s; the sandbox was stopped and kept: skerry apply %s", error.message, ref)
                await sandbox.stop()


async def refresh_copy(sandbox: AsyncSandbox, repo: Repo) -> None:
    """Bring the user's edits into an existing sandbox, if nothing conflicts. Failures are only logged: stderr is for
    the client's user."""
    try:
        status = await sandbox.repo.status(repo.source)
        if status.behind or status.files is None:
            done = await sandbox.repo.pull(repo.source)
            changed = sum(file.how != "same" for file in done.files)
            log.warning("%s was %s; pulled %d changed files", sandbox.name, status, changed)
    except SkerryError as error:
        log.warning("%s keeps its files: %s", sandbox.name, escape(error.message, lines=True))


async def sandbox_exists(caller: McpCaller, sandbox: str) -> bool:
    """Return whether a sandbox exists, after an error that something in it was not found."""
    try:
        await AsyncSandbox.get(sandbox, server=caller.client)
    except NotFound:
        return False
    except SkerryError:
        return True
    return True
