"""`AsyncSandbox`: one isolated machine."""

# ruff: noqa: B008  (the values that stand as defaults are frozen)

from __future__ import annotations

import builtins
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import structs

from skerry.client._async.client import AsyncClient
from skerry.client._async.code import AsyncCode
from skerry.client._async.files import AsyncFiles
from skerry.client._async.forward import AsyncForward
from skerry.client._async.network import AsyncApprovalHandler, AsyncNetworkHandler, AsyncSandboxNetwork
from skerry.client._async.previews import AsyncPreview, AsyncPreviews
from skerry.client._async.processes import AsyncProcess, AsyncProcesses, AsyncRun, prepare_stdin, start_process
from skerry.client._async.records.trace import AsyncRecords
from skerry.client._async.review import AsyncSandboxReview
from skerry.client._async.sessions import AsyncSession, AsyncSessions
from skerry.client._async.snapshots import AsyncSnapshot
from skerry.client.create_options import (
    DEFAULT_NETWORK,
    AnyImage,
    AnyVolume,
    Command,
    CreateOptions,
    CreateTerms,
    check_budget,
    create_request,
    recipe_of,
    run_request,
    seconds,
    spawn_request,
    texts,
    with_approvals,
)
from skerry.client.host.git_clone import ENVIRONMENT, check_clone, check_cloned, clone_argv
from skerry.client.policy_inputs import resolve_create_request, secret_values
from skerry.client.repository.source import AnyRepo, ImportResult, Repo, repo_of
from skerry.client.results.command import Output, check_result, ended_before_port, port_timeout
from skerry.client.transport import backend_async as backend
from skerry.client.transport.backoff import PollDeadline
from skerry.client.transport.requests import previews, review, sandboxes, snapshots
from skerry.errors import Conflict, InvalidRequest, NotFound, ServerUnreachable, SkerryError, UnappliedChanges
from skerry.types import (
    Budget,
    CreateRequest,
    DeletedSandbox,
    DeletedSandboxList,
    Isolation,
    Lifecycle,
    Limits,
    Network,
    Options,
    PortState,
    PreviewInfo,
    Pty,
    Result,
    SandboxInfo,
    SandboxList,
    SandboxStats,
    SandboxStatsList,
    SessionInfo,
    SessionRequest,
    SnapshotInfo,
    SnapshotRequest,
    State,
    TerminalTicket,
    TransferResult,
    UndeleteRequest,
    UpdateRequest,
    Usage,
)

if TYPE_CHECKING:
    from skerry.client._async.repository import AsyncSandboxRepo


class AsyncSandbox:
    """An isolated Linux machine with its own files, processes and limits.

    The constructor only describes it; `async with` or `.start()` creates it. Leaving `async with` deletes an unnamed
    sandbox and keeps a named one.

        async with AsyncSandbox(limits=Limits(memory="512M")) as sandbox:
            result = await sandbox.run("python3 -c 'print(6*7)'")
    """

    def __init__(
        self,
        image: AnyImage = "base",
        *,
        name: str | None = None,
        repo: AnyRepo = None,
        env: Mapping[str, str | None] = {},
        labels: Mapping[str, str] = {},
        limits: Limits = Limits(),
        network: Network = DEFAULT_NETWORK,
        secrets: Sequence[object] = (),
        volumes: Mapping[str, AnyVolume] = {},
        lifecycle: Lifecycle = Lifecycle(),
        budget: Budget | None = None,
        options: Options = Options(),
        server: str | AsyncClient | None = None,
        on_unknown: backend.Answerer | None = None,
    ) -> None:
        if on_unknown is not None:
            network = with_approvals(network)
        payload = create_request(image, name, env, labels, limits, network, lifecycle, options, budget, volumes)
        self._init(payload, None, server, secrets, on_unknown)
        self._repo = repo_of(repo)
        self._described = image if recipe_of(image) is not None else None  # an image that must be built first

    _described: Any
    _repo: Repo | None

    def _init(
        self,
        payload: CreateRequest | None,
        info: SandboxInfo | None,
        server: str | AsyncClient | None,
        secrets: Sequence[object] = (),
        on_unknown: backend.Answerer | None = None,
    ) -> None:
        self._payload = payload
        self._info = info
        self._shares_client = isinstance(server, AsyncClient)
        self.client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        self.code = AsyncCode(self)
        self.files = AsyncFiles(self)
        self.git = AsyncGit(self)
        self.network = AsyncSandboxNetwork(self)
        self.previews = AsyncPreviews(self)
        self.processes = AsyncProcesses(self)
        self.review = AsyncSandboxReview(self)
        self.sessions = AsyncSessions(self)
        self.approval_handlers: builtins.list[AsyncApprovalHandler] = []  # callbacks that answer approval requests
        self.network_handlers: builtins.list[AsyncNetworkHandler] = []  # callbacks that decide about requests
        self._secrets = secrets
        self._on_unknown = on_unknown
        self._described = None
        self._repo = None
        self.imported: ImportResult | None = None  # the result of `repo=`

    @property
    def records(self) -> AsyncRecords:
        """Its trace: all steps so far with their inputs and outputs."""
        return self.client.records(self.id)

    @property
    def repo(self) -> AsyncSandboxRepo:
        """The repository of this host that /workspace is a copy of."""
        from skerry.client._async.repository import AsyncSandboxRepo  # rarely needed

        return AsyncSandboxRepo(self)

    @classmethod
    def _of(cls, info: SandboxInfo, client: AsyncClient, *, shared: bool) -> AsyncSandbox:
        sandbox = cls.__new__(cls)
        sandbox._init(None, info, client)
        sandbox._shares_client = shared
        return sandbox

    @classmethod
    async def create(
        cls, image: AnyImage = "base", *, name: str | None = None, **terms: Unpack[CreateTerms]
    ) -> AsyncSandbox:
        """Create a sandbox; the arguments are those of `AsyncSandbox(...)`."""
        return await cls(image, name=name, **terms).start()

    async def start(self) -> AsyncSandbox:
        """Create the described sandbox."""
        if self._info is not None or self._payload is None:
            raise Conflict(f"sandbox {self.id} already exists")
        payload = await backend.in_thread(resolve_create_request, self._payload, self._secrets)
        if self._described is not None:
            payload = structs.replace(payload, image=await self._build())
        if self._repo is not None:
            await self._create_with_repo(self._repo, payload)
        else:
            self._info = await self._create_or_build(payload)
            await self._start_approval_handler()
        return self

    async def _create_with_repo(self, repo: Repo, payload: CreateRequest) -> None:
        from skerry.client._async.repository import AsyncImport  # rarely needed

        opened, lifecycle = await AsyncImport.open(repo), payload.lifecycle
        bare = structs.replace(lifecycle, on_start=None, ready=None)
        try:
            self._info = await self._create_or_build(structs.replace(payload, lifecycle=bare))
            await self._start_approval_handler()
            self.imported = await opened.bring(self)
            if lifecycle != bare:  # its commands begin when the repository is there
                await self.update(lifecycle=lifecycle)
        except BaseException as error:
            if self._info is not None:  # an incomplete repository is of no use
                await self._delete_on_exit(error, hurried=True)
                self._info = None
            raise
        finally:
            await opened.aclose()

    async def _create_or_build(self, payload: CreateRequest) -> SandboxInfo:
        try:
            return await self._create(payload)
        except NotFound as error:
            if not (error.details.get("build") is True and self.client.address.local):
                raise
            await self.client.images.build(payload.image)
            return await self._create(payload)

    async def _build(self) -> str:
        """Return the image of a description, built or from the cache."""
        from skerry.client._async.build import AsyncBuilder  # rarely needed
        from skerry.client.build.options import BuildOptions

        options = BuildOptions(network=getattr(self._described, "network", None))
        return (await AsyncBuilder(self.client, AsyncSandbox, options).build(self._described.recipe)).id

    async def _start_approval_handler(self) -> None:
        if self._on_unknown is not None:
            await self.network.ask(self._on_unknown)

    async def _create(self, payload: CreateRequest) -> SandboxInfo:
        request = sandboxes.create(payload)
        try:
            return await self.client.request_json(request, SandboxInfo)
        except Exception:
            raise
        except BaseException:
            # Interrupted after the request was sent. The same key names the same sandbox, so it can be deleted.
            await self._delete_created(sandboxes.for_clean_up(request), SandboxInfo)
            raise

    async def _delete_created(self, request: sandboxes.Request, kind: type[SandboxInfo] | type[SandboxList]) -> None:
        try:
            made = await self.client.request_json(request, kind)
            for info in made.sandboxes if isinstance(made, SandboxList) else [made]:
                await self.client.request(sandboxes.for_clean_up(sandboxes.delete(info.id, force=True, purge=True)))
        except SkerryError:
            return

    @classmethod
    async def get(cls, ref: str, *, server: str | AsyncClient | None = None) -> AsyncSandbox:
        """Return an existing sandbox by ID or name."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        info = await client.request_json(sandboxes.get(ref), SandboxInfo)
        return cls._of(info, client, shared=client is server)

    @classmethod
    async def get_or_create(cls, name: str, **creation: Unpack[CreateOptions]) -> AsyncSandbox:
        """Return the sandbox of that name, or create it as described. An existing one is returned unchanged."""
        sandbox = cls(name=name, **creation)
        try:
            sandbox._info = await sandbox.client.request_json(sandboxes.get(name), SandboxInfo)
        except NotFound:
            try:
                return await sandbox.start()
            except Conflict:  # created concurrently
                sandbox._info = await sandbox.client.request_json(sandboxes.get(name), SandboxInfo)
        await sandbox._start_approval_handler()
        return sandbox

    @classmethod
    async def list(
        cls, *, labels: Mapping[str, str] = {}, state: State | None = None, server: str | AsyncClient | None = None
    ) -> builtins.list[AsyncSandbox]:
        """Return your sandboxes with all these labels, in that state."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        answer = await client.request_json(sandboxes.list_all(labels, state), SandboxList)
        return [cls._of(info, client, shared=True) for info in answer.sandboxes]

    @classmethod
    async def list_deleted(cls, *, server: str | AsyncClient | None = None) -> builtins.list[DeletedSandbox]:
        """Return your deleted sandboxes with a kept review, the last deleted first."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        try:
            return (await client.request_json(review.deleted(), DeletedSandboxList)).sandboxes
        finally:
            if client is not server:
                await client.aclose()

    @classmethod
    async def undelete(
        cls, ref: str, *, name: str | None = None, server: str | AsyncClient | None = None
    ) -> AsyncSandbox:
        """Create a sandbox like the deleted one of that ID or name, with its review, the decisions and the kept files
        of its workspace. `name`: another name. Other files, processes and secrets do not come back."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        info = await client.request_json(review.undelete(ref, UndeleteRequest(name=name)), SandboxInfo)
        return cls._of(info, client, shared=client is server)

    async def __aenter__(self) -> AsyncSandbox:
        if self._info is None:
            try:
                await self.start()
            except BaseException:
                await self.aclose()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.name is None:
                await self._delete_on_exit(error)
        finally:
            await self.aclose()

    async def _delete_on_exit(self, error: BaseException | None, *, hurried: bool = False) -> None:
        try:
            if hurried:
                await self.client.request(sandboxes.for_clean_up(sandboxes.delete(self.id, force=True, purge=True)))
            else:
                await self._delete_with_notice()
        except NotFound:
            return
        except SkerryError as failure:
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {failure}")

    async def _delete_with_notice(self) -> None:
        try:
            await self.client.request(sandboxes.delete(self.id))
        except UnappliedChanges as error:
            await self.client.request(sandboxes.delete(self.id, force=True))
            message = f"{error.message}; they are kept: `skerry undelete {self.id}`, Sandbox.undelete({self.id!r})"
            warnings.warn(message, stacklevel=4)

    async def aclose(self) -> None:
        """Close the connections of this sandbox object, and stop answering approval requests. The sandbox keeps
        running."""
        for one in self.approval_handlers[:]:
            await one.aclose()
        for handler in self.network_handlers[:]:
            await handler.detach()
        if not self._shares_client:
            await self.client.aclose()

    def __repr__(self) -> str:
        if self._info is None:
            return "<AsyncSandbox, not created yet>"
        return f"<AsyncSandbox {self._info.name or self._info.id} {self._info.state}>"

    @property
    def cached_info(self) -> SandboxInfo:
        """The last known information; `.info()` requests it again."""
        if self._info is None:
            raise InvalidRequest(
                "this sandbox has not been created",
                hint="use `async with AsyncSandbox(...) as sandbox:` or call .start() first",
            )
        return self._info

    @property
    def id(self) -> str:
        return self.cached_info.id

    @property
    def name(self) -> str | None:
        return self.cached_info.name

    @property
    def state(self) -> State:
        """The last known state; `.info()` requests it again."""
        return self.cached_info.state

    @property
    def reason(self) -> str | None:
        """Why it stopped or failed."""
        return self.cached_info.reason

    @property
    def isolation(self) -> Isolation | None:
        """The runtime, its guarantees, and the waived ones."""
        return self.cached_info.isolation

    @property
    def labels(self) -> Mapping[str, str]:
        return self.cached_info.labels

    async def info(self) -> SandboxInfo:
        """Request the current information from the server."""
        self._info = await self.client.request_json(sandboxes.get(self.id), SandboxInfo)
        return self._info

    async def update(
        self,
        *,
        limits: Limits | None = None,
        env: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str] | None = None,
        lifecycle: Lifecycle | None = None,
        secrets: Sequence[object] | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Change the given fields of `limits`, `env` and `lifecycle`, and replace `labels`, `secrets` and `budget`. In
        `env`, None unsets a variable. `Budget()` removes the budget; another one keeps the used amounts. Limits below
        the current usage raise Conflict, and nothing changes."""
        check_budget(budget)
        change = UpdateRequest(
            limits=limits,
            env=texts(env, "env") if env is not None else None,
            labels=texts(labels, "labels") if labels is not None else None,
            lifecycle=lifecycle,
            budget=budget,
            secrets=await backend.in_thread(secret_values, secrets) if secrets is not None else None,
        )
        self._info = await self.client.request_json(sandboxes.update(self.id, change), SandboxInfo)

    async def usage(self) -> Usage:
        return await self.client.request_json(sandboxes.usage(self.id), Usage)

    async def stats(self) -> SandboxStats:
        """Return its current resource usage, with its limits and its network traffic."""
        return (await self.client.request_json(sandboxes.stats([self.id]), SandboxStatsList)).sandboxes[0]

    async def rename(self, name: str) -> None:
        """Give it another name, or a first one; it is not deleted automatically then. Raise Conflict if another sandbox
        has the name. Inside, the host name changes too."""
        self._info = await self.client.request_json(sandboxes.rename(self.id, name), SandboxInfo)

    async def delete(self, *, force: bool = False, purge: bool = False) -> None:
        """Delete the sandbox with its processes and files. If it has accepted changes that were not applied, raise
        UnappliedChanges, unless `force` is set. Its review is kept for a while (`undelete`), unless `purge` is set."""
        await self.client.request(sandboxes.delete(self.id, force=force, purge=purge))
        await self.aclose()

    async def stop(self) -> None:
        """End its processes and keep its files. The next call starts it again."""
        self._info = await self.client.request_json(sandboxes.act(self.id, "stop"), SandboxInfo)

    async def resume(self) -> None:
        """Start it again after a pause or stop."""
        self._info = await self.client.request_json(sandboxes.act(self.id, "resume"), SandboxInfo)

    async def pause(self) -> None:
        """Freeze its processes."""
        self._info = await self.client.request_json(sandboxes.act(self.id, "pause"), SandboxInfo)

    async def snapshot(
        self, name: str | None = None, *, path: str | None = None, ttl: str | int | float | None = None
    ) -> AsyncSnapshot:
        """Take a snapshot of its current files, running or not; it continues. An unnamed snapshot is found by its ID.
        `path`: of this directory only, for `restore`. `ttl`: remove it after this time ("7d"), once nothing needs
        it."""
        payload = SnapshotRequest(name=name, path=path, ttl=ttl)
        return AsyncSnapshot(
            self.client, await self.client.request_json(snapshots.take(self.id, payload), SnapshotInfo)
        )

    async def rollback(self, snapshot: AsyncSnapshot | str | None = None, *, steps: int | None = None) -> None:
        """Restore its files from a snapshot, or from before the last `steps` commands (`Options(auto_snapshot=True)`).
        Its processes end and its sessions are discarded; running calls fail with SandboxUnavailable."""
        request = snapshots.rollback(self.id, snapshot, steps)
        self._info = await self.client.request_json(request, SandboxInfo)

    async def restore(
        self, snapshot: AsyncSnapshot | str, path: str | None = None, *, user: str | None = None
    ) -> TransferResult:
        """Add the files of a snapshot of a directory (`snapshot(path=…)`, of this or another sandbox), at their former
        path or at `path`; existing files of the same name are replaced, and others stay. They belong to `user`."""
        request = snapshots.restore(self.id, snapshot, path, user)
        return await self.client.request_json(request, TransferResult)

    async def fork(self, n: int = 1, *, name: str | None = None) -> builtins.list[AsyncSandbox]:
        """Create sandboxes with the same files, variables, limits, labels, policy and secrets, which share no later
        writes. All of them run, or none is created. The original is unchanged. They are unnamed, unless a single one is
        given a `name`."""
        request = snapshots.fork(self.id, n, name)
        try:
            made = await self.client.request_json(request, SandboxList)
        except Exception:
            raise
        except BaseException:
            await self._delete_created(sandboxes.for_clean_up(request), SandboxList)
            raise
        return [type(self)._of(info, self.client, shared=True) for info in made.sandboxes]

    async def run(
        self,
        cmd: Command | None = None,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.AnySource | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_start: backend.Callback[AsyncRun] | None = None,
    ) -> Result:
        """Run a command to its end. A string is a shell line (`bash -lc`, or `sh` without bash), a list an argv; the
        default is the image's command.

        A non-zero exit or a timeout is a result, not an exception, unless `check` is set. `on_output` is called for
        each piece of output; `on_start` once, with an object that has the `id` of the process and can `signal` it.
        Interrupting or cancelling this call kills the command too.
        """
        request, source = prepare_stdin(run_request(cmd, env, cwd, user, timeout), stdin)
        result = await AsyncRun(self, request, source, on_output, on_start).result()
        return check_result(result, request.cmd) if check else result

    async def spawn(
        self,
        cmd: Command | None = None,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        user: str | None = None,
        pty: bool | Pty | None = None,
        timeout: float | None = None,
        stdin: bool | str | bytes = True,
        journal: str | int | None = None,
        id: str | None = None,  # noqa: A002 -- the public name
        auto_remove: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_exit: backend.Callback[Result] | None = None,
    ) -> AsyncProcess:
        """Start a command in the background: it continues when this program ends, and no reader slows it down.

        `pty` gives it a terminal. `stdin`: an open pipe, unless False; str or bytes are its whole input. `journal`: how
        much of its output is kept (64M); beyond that the oldest is dropped. `id`: its ID instead of a generated one;
        Conflict if it is taken. `auto_remove`: remove it, with its output, some seconds after its end. `on_output` and
        `on_exit` are called, in a task or thread, while this program runs.
        """
        request = spawn_request(run_request(cmd, env, cwd, user, timeout), pty, stdin, journal, id, auto_remove)
        return await start_process(self, request, on_output, on_exit)

    async def terminal_ticket(self) -> TerminalTicket:
        """Return a ticket with which a browser opens one terminal of this sandbox, within a minute."""
        return await self.client.request_json(sandboxes.terminal_ticket(self.id), TerminalTicket)

    async def session(
        self,
        name: str,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        timeout: float | None = None,
    ) -> AsyncSession:
        """Return the session of that name, or create it. `user`, `cwd`, `env` (None unsets) and `timeout`, the timeout
        of its commands in seconds, apply to a new one."""
        request = SessionRequest(name=name, user=user, cwd=cwd, env=texts(env, "env"), timeout=seconds(timeout))
        info = await self.client.request_json(sandboxes.open_session(self.id, request), SessionInfo)
        return AsyncSession(self, info)

    async def wait_for_port(
        self,
        port: int,
        timeout: float = 30,
        *,
        http_path: str | None = None,
        status: int | None = None,
        interval: float = 0.2,
        process: AsyncProcess | None = None,
    ) -> None:
        """Wait until a process inside listens on a port; with `http_path`, until that path returns a status below 500,
        or `status`, which is checked again after `interval` seconds. Raise CommandTimeout with the last observation if
        it does not happen in time, and CommandFailed at once if `process` ends before."""
        if status is not None and http_path is None:
            raise InvalidRequest("status: only allowed with http_path", hint='http_path="/"')
        polls, last = PollDeadline(seconds(timeout)), ""
        opener = process.id if process is not None else None
        for left in polls:
            try:
                request = sandboxes.wait_for_port(self.id, port, left, http_path, opener)
                state = await self.client.request_json(request, PortState)
                polls.reset()
            except ServerUnreachable as error:
                await backend.sleep(polls.next_delay(error))
                continue
            if state.open and status in (None, state.status):
                return
            if state.ended and process is not None:
                raise ended_before_port(process.cached_info, port, await process.wait())
            last = state.last
            if state.open:
                last = f"status {state.status} of {http_path}"
                await backend.sleep(min(max(interval, 0.01), left))
        raise polls.error or port_timeout(port, timeout, last)

    async def expose(
        self,
        port: int,
        *,
        name: str | None = None,
        public: bool = False,
        expires: str | int | float | None = None,
        token: str | None = None,
    ) -> AsyncPreview:
        """Give a port inside a URL, for holders of its token, or for everyone (`public`). `name` takes the place of the
        port in the URL. `expires`: a duration ("1h"), by default none. `token`: one of your choice, by default random.
        Exposing the same port again updates the preview."""
        payload = previews.preview_request(port, public, expires, name, token)
        info = await self.client.request_json(previews.expose(self.id, payload), PreviewInfo)
        return AsyncPreview(self, info)

    def forward(
        self,
        remote: int,
        *,
        local: int = 0,
        bind: str = "127.0.0.1",
        on_error: backend.Callback[SkerryError] | None = None,
    ) -> AsyncForward:
        """Forward a port of this machine to one inside while the block is entered: `async with sandbox.forward(3000) as
        forward:` listens on `forward.port`, a free port unless `local` names one."""
        return AsyncForward(self, remote, local=local, bind=bind, on_error=on_error)


class AsyncGit:
    """`sandbox.git`. For the rest of git use `sandbox.run("git …")`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        depth: int | None = None,
        branch: str | None = None,
        user: str | None = None,
        timeout: float | None = 300,
    ) -> str:
        """Clone a repository inside; return the absolute path of its working tree.

        `url`: an address that the sandbox's network allows, or a path inside; `path`: the target, by default a
        directory with the repository's name. A failure raises `CommandFailed` with a hint.
        """
        target = check_clone(url, path)
        sandbox, argv = self._sandbox, clone_argv(url, target, depth, branch)
        check_cloned(await sandbox.run(argv, env=ENVIRONMENT, user=user, timeout=timeout), url, target, branch)
        where = ["git", "-C", target, "rev-parse", "--show-toplevel"]
        return check_result(await sandbox.run(where, user=user, timeout=timeout), where).stdout.removesuffix("\n")
