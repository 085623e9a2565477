"""`AsyncSandbox`: one isolated machine."""

# ruff: noqa: B008  (the values that stand as defaults are frozen)

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from msgspec import structs

from skerry.client import backend_async as backend
from skerry.client import preview_requests, requests, snapshot_requests
from skerry.client._async.client import AsyncClient
from skerry.client._async.code import AsyncCode
from skerry.client._async.files import AsyncFiles
from skerry.client._async.forward import AsyncForward
from skerry.client._async.git import AsyncGit
from skerry.client._async.network import AsyncSandboxNetwork
from skerry.client._async.previews import AsyncPreview, AsyncPreviews
from skerry.client._async.process import AsyncProcess
from skerry.client._async.processes import AsyncProcesses
from skerry.client._async.questions import AsyncAsking
from skerry.client._async.review import AsyncReview
from skerry.client._async.running import AsyncRunning, prepare
from skerry.client._async.sessions import AsyncSession, AsyncSessions
from skerry.client._async.snapshots import AsyncSnapshot
from skerry.client.created import CreatedEitherWay
from skerry.client.description import (
    UNSAID,
    AnyImage,
    Creation,
    Words,
    asking,
    described,
    recipe_of,
    run_request,
    seconds,
    spawn_request,
    texts,
)
from skerry.client.egress import secret_values, with_what_is_here
from skerry.client.outcome import Output, checked, never_opened
from skerry.client.patience import Rounds
from skerry.client.repository.source import AnyRepo, Imported, Repo, repo_of
from skerry.client.responses import SandboxList
from skerry.errors import Conflict, InvalidRequest, NotFound, ServerUnreachable, SkerryError
from skerry.types import (
    CreateRequest,
    Isolation,
    Lifecycle,
    Limits,
    Network,
    Options,
    PortState,
    PreviewInfo,
    ProcessInfo,
    Pty,
    Result,
    SandboxInfo,
    SessionInfo,
    SessionRequest,
    SnapshotInfo,
    SnapshotRequest,
    State,
    UpdateRequest,
    Usage,
)


class AsyncSandbox:
    """An isolated Linux machine: files, processes, limits of its own.

    The constructor only describes it; `async with` or `.create()` makes it. Leaving `async with` deletes an unnamed
    sandbox and leaves a named one.

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
        network: Network = UNSAID,
        secrets: Sequence[object] = (),
        lifecycle: Lifecycle = Lifecycle(),
        options: Options = Options(),
        server: str | AsyncClient | None = None,
        on_unknown: backend.Answerer | None = None,
    ) -> None:
        if on_unknown is not None:
            network = asking(network)
        wish = described(image, name, env, labels, limits, network, lifecycle, options)
        self._begin(wish, None, server, secrets, on_unknown)
        self._repo = repo_of(repo)
        self._described = image if recipe_of(image) is not None else None  # an image that has to be built first

    _described: Any
    _repo: Repo | None

    def _begin(
        self,
        wish: CreateRequest | None,
        info: SandboxInfo | None,
        server: str | AsyncClient | None,
        secrets: Sequence[object] = (),
        on_unknown: backend.Answerer | None = None,
    ) -> None:
        self._wish = wish
        self._info = info
        self._shares_client = isinstance(server, AsyncClient)
        self.client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        self.code = AsyncCode(self)
        self.files = AsyncFiles(self)
        self.git = AsyncGit(self)
        self.network = AsyncSandboxNetwork(self)
        self.previews = AsyncPreviews(self)
        self.processes = AsyncProcesses(self)
        self.review = AsyncReview(self)
        self.sessions = AsyncSessions(self)
        self.asking: builtins.list[AsyncAsking] = []  # callbacks that answer questions for it
        self._secrets = secrets
        self._on_unknown = on_unknown
        self._described = None
        self._repo = None
        self.imported: Imported | None = None  # what `repo=` brought

    @classmethod
    def _of(cls, info: SandboxInfo, client: AsyncClient, *, shared: bool) -> AsyncSandbox:
        sandbox = cls.__new__(cls)
        sandbox._begin(None, info, client)
        sandbox._shares_client = shared
        return sandbox

    @CreatedEitherWay
    async def create(self) -> AsyncSandbox:
        """Make it: `AsyncSandbox(...).create()`, or describe and make in one call, `AsyncSandbox.create(...)`."""
        if self._info is not None or self._wish is None:
            raise Conflict(f"sandbox {self.id} is made already")
        wish = await backend.in_thread(with_what_is_here, self._wish, self._secrets)
        if self._described is not None:
            wish = structs.replace(wish, image=await self._build())
        if self._repo is not None:
            await self._make_with(self._repo, wish)
        else:
            self._info = await self._make_or_build(wish)
            await self._answer_questions()
        return self

    async def _make_with(self, repo: Repo, wish: CreateRequest) -> None:
        from skerry.client._async.importing import AsyncImport  # which most never need

        opened = await AsyncImport.open(repo)
        try:
            self._info = await self._make_or_build(wish)
            await self._answer_questions()
            self.imported = await opened.bring(self)
        except BaseException as error:
            if self._info is not None:  # half a repository is none
                await self._leave(error, hurried=True)
                self._info = None
            raise
        finally:
            await opened.aclose()

    async def _make_or_build(self, wish: CreateRequest) -> SandboxInfo:
        try:
            return await self._make(wish)
        except NotFound as error:
            if not (error.details.get("build") is True and self.client.address.local):
                raise
            await self.client.images.build(wish.image)
            return await self._make(wish)

    async def _build(self) -> str:
        """Its image, which is only described: built, or found to be."""
        from skerry.client._async.building import AsyncBuilder  # which most never need
        from skerry.client.building.options import BuildOptions

        options = BuildOptions(network=getattr(self._described, "network", None))
        return (await AsyncBuilder(self.client, AsyncSandbox, options).build(self._described.recipe)).id

    async def _answer_questions(self) -> None:
        if self._on_unknown is not None:
            await self.network.ask(self._on_unknown)

    async def _make(self, wish: CreateRequest) -> SandboxInfo:
        request = requests.create(wish)
        try:
            return await self.client.value(request, SandboxInfo)
        except Exception:
            raise
        except BaseException:
            # Interrupted with the request on its way. The same key names the same sandbox, so it can be taken back.
            await self._take_back(requests.hurried(request), SandboxInfo)
            raise

    async def _take_back(self, request: requests.Request, kind: type[SandboxInfo] | type[SandboxList]) -> None:
        try:
            made = await self.client.value(request, kind)
            for info in made.sandboxes if isinstance(made, SandboxList) else [made]:
                await self.client.done(requests.hurried(requests.delete(info.id)))
        except SkerryError:
            return

    @classmethod
    async def get(cls, ref: str, *, server: str | AsyncClient | None = None) -> AsyncSandbox:
        """A sandbox that exists, by id or name."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        info = await client.value(requests.get(ref), SandboxInfo)
        return cls._of(info, client, shared=client is server)

    @classmethod
    async def get_or_create(cls, name: str, **creation: Unpack[Creation]) -> AsyncSandbox:
        """The sandbox of that name, made as described if there is none. One that exists is given as it is."""
        sandbox = cls(name=name, **creation)
        try:
            sandbox._info = await sandbox.client.value(requests.get(name), SandboxInfo)
        except NotFound:
            try:
                return await sandbox.create()
            except Conflict:  # another was quicker
                sandbox._info = await sandbox.client.value(requests.get(name), SandboxInfo)
        await sandbox._answer_questions()
        return sandbox

    @classmethod
    async def list(
        cls, *, labels: Mapping[str, str] = {}, state: State | None = None, server: str | AsyncClient | None = None
    ) -> builtins.list[AsyncSandbox]:
        """Your sandboxes: those with all these labels, in that state."""
        client = server if isinstance(server, AsyncClient) else AsyncClient(server)
        answer = await client.value(requests.list_all(labels, state), SandboxList)
        return [cls._of(info, client, shared=True) for info in answer.sandboxes]

    async def __aenter__(self) -> AsyncSandbox:
        if self._info is None:
            try:
                await self.create()
            except BaseException:
                await self.aclose()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.name is None:
                await self._leave(error)
        finally:
            await self.aclose()

    async def _leave(self, error: BaseException | None, *, hurried: bool = False) -> None:
        request = requests.delete(self.id)
        try:
            await self.client.done(requests.hurried(request) if hurried else request)
        except NotFound:
            return
        except SkerryError as failure:
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {failure}")

    async def aclose(self) -> None:
        """Close the connections that are this sandbox's own, and answer no more questions. The sandbox lives on."""
        for one in self.asking[:]:
            await one.aclose()
        if not self._shares_client:
            await self.client.aclose()

    def __repr__(self) -> str:
        if self._info is None:
            return "<AsyncSandbox, not made yet>"
        return f"<AsyncSandbox {self._info.name or self._info.id} {self._info.state}>"

    @property
    def known(self) -> SandboxInfo:
        """All that was last seen of it; `.info()` asks again."""
        if self._info is None:
            raise InvalidRequest(
                "this sandbox is only described, not made",
                hint="use `async with AsyncSandbox(...) as sandbox:` or call .create() first",
            )
        return self._info

    @property
    def id(self) -> str:
        return self.known.id

    @property
    def name(self) -> str | None:
        return self.known.name

    @property
    def state(self) -> State:
        """As last seen; `.info()` looks again."""
        return self.known.state

    @property
    def reason(self) -> str | None:
        """Why it stopped or failed."""
        return self.known.reason

    @property
    def isolation(self) -> Isolation | None:
        """The runtime, what it guarantees, what was waived."""
        return self.known.isolation

    @property
    def labels(self) -> Mapping[str, str]:
        return self.known.labels

    async def info(self) -> SandboxInfo:
        """All that the server says of it, fresh."""
        self._info = await self.client.value(requests.get(self.id), SandboxInfo)
        return self._info

    async def update(
        self,
        *,
        limits: Limits | None = None,
        env: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str] | None = None,
        lifecycle: Lifecycle | None = None,
        secrets: Sequence[object] | None = None,
    ) -> None:
        """Change it: what `limits`, `env` and `lifecycle` name, and all of `labels` and `secrets`. In `env`, None
        unsets one variable. Limits below what it uses are a Conflict, and leave all as it was."""
        change = UpdateRequest(
            limits=limits,
            env=texts(env, "env") if env is not None else None,
            labels=texts(labels, "labels") if labels is not None else None,
            lifecycle=lifecycle,
            secrets=await backend.in_thread(secret_values, secrets) if secrets is not None else None,
        )
        self._info = await self.client.value(requests.update(self.id, change), SandboxInfo)

    async def usage(self) -> Usage:
        return await self.client.value(requests.usage(self.id), Usage)

    async def delete(self) -> None:
        """End it and remove all of it."""
        await self.client.done(requests.delete(self.id))
        await self.aclose()

    async def stop(self) -> None:
        """End its processes, keep its files. The next call starts it again."""
        self._info = await self.client.value(requests.act(self.id, "stop"), SandboxInfo)

    async def resume(self) -> None:
        """Wake it, paused or stopped."""
        self._info = await self.client.value(requests.act(self.id, "resume"), SandboxInfo)

    async def pause(self) -> None:
        """Freeze its processes where they are."""
        self._info = await self.client.value(requests.act(self.id, "pause"), SandboxInfo)

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Its files as they are at this moment, running or not; it goes on. Unnamed ones are found by their id."""
        wish = SnapshotRequest(name=name)
        return AsyncSnapshot(self.client, await self.client.value(snapshot_requests.take(self.id, wish), SnapshotInfo))

    async def rollback(self, snapshot: AsyncSnapshot | str | None = None, *, steps: int | None = None) -> None:
        """Its files as they were: in a snapshot, or before the last `steps` commands (`Options(auto_snapshot=True)`).
        Its processes end and its sessions are forgotten; calls under way fail with SandboxUnavailable."""
        request = snapshot_requests.rollback(self.id, snapshot, steps)
        self._info = await self.client.value(request, SandboxInfo)

    async def fork(self, n: int = 1) -> builtins.list[AsyncSandbox]:
        """New sandboxes that begin with its files, variables, limits, labels, policy and secrets, and share no writes
        with it or each other. All of them run, or none is made. They have no names; it goes on untouched."""
        request = snapshot_requests.fork(self.id, n)
        try:
            made = await self.client.value(request, SandboxList)
        except Exception:
            raise
        except BaseException:
            await self._take_back(requests.hurried(request), SandboxList)
            raise
        return [type(self)._of(info, self.client, shared=True) for info in made.sandboxes]

    async def run(
        self,
        cmd: Words | None = None,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        user: str | None = None,
        stdin: backend.AnySource | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
    ) -> Result:
        """Run a command to its end. A string is a shell line (`bash -lc`, `sh` where there is no bash), a list an argv;
        none is the image's own command.

        A non-zero exit or a time-out is a result, not an error, unless `check`. `on_output` gets each piece of output
        as it comes. An interrupt or cancellation of this call ends the command inside too.
        """
        request, source = prepare(run_request(cmd, env, cwd, user, timeout), stdin)
        result = await AsyncRunning(self, request, source, on_output).result()
        return checked(result, request.cmd) if check else result

    async def spawn(
        self,
        cmd: Words | None = None,
        *,
        env: Mapping[str, str | None] = {},
        cwd: str | None = None,
        user: str | None = None,
        pty: bool | Pty | None = None,
        timeout: float | None = None,
        stdin: bool | str | bytes = True,
        journal: str | int | None = None,
    ) -> AsyncProcess:
        """Start a command and leave it to itself: it goes on when this program ends, and is never slowed by a reader.

        `pty` gives it a terminal. `stdin`: a pipe to write to, unless False; text or bytes are all that it gets.
        `journal` is how much of its output is kept (64M): past that the oldest is dropped."""
        request = spawn_request(run_request(cmd, env, cwd, user, timeout), pty, stdin, journal)
        info = await self.client.value(requests.spawn(self.id, request), ProcessInfo)
        return AsyncProcess(self, info)

    async def session(
        self, name: str, *, user: str | None = None, cwd: str | None = None, env: Mapping[str, str | None] = {}
    ) -> AsyncSession:
        """The session of that name, made if there is none; `user`, `cwd` and `env` (None unsets) are for a new one."""
        request = SessionRequest(name=name, user=user, cwd=cwd, env=texts(env, "env"))
        info = await self.client.value(requests.open_session(self.id, request), SessionInfo)
        return AsyncSession(self, info)

    async def wait_for_port(self, port: int, timeout: float = 30, *, http_path: str | None = None) -> None:
        """Wait until something inside listens on a port; with `http_path`, until that path answers below 500.
        CommandTimeout if it does not come in time, with what was seen last."""
        rounds, last = Rounds(seconds(timeout)), ""
        for left in rounds:
            try:
                request = requests.wait_for_port(self.id, port, left, http_path)
                state = await self.client.value(request, PortState)
                rounds.renew()
            except ServerUnreachable as error:
                await backend.sleep(rounds.pause(error))
                continue
            if state.open:
                return
            last = state.last
        raise rounds.error or never_opened(port, timeout, last)

    async def expose(
        self, port: int, *, public: bool = False, expires: str | int | float | None = None
    ) -> AsyncPreview:
        """Show what listens on a port inside by a URL of its own, to those who have its token, or to all (`public`).
        `expires`: after so long ("1h"), else never. The same port again is the same preview, with these terms."""
        wish = preview_requests.preview_request(port, public, expires)
        info = await self.client.value(preview_requests.expose(self.id, wish), PreviewInfo)
        return AsyncPreview(self, info)

    def forward(
        self,
        remote: int,
        *,
        local: int = 0,
        bind: str = "127.0.0.1",
        on_error: backend.Callback[SkerryError] | None = None,
    ) -> AsyncForward:
        """A port of this machine that leads to one inside, while it is entered: `async with sandbox.forward(3000) as
        forward:` listens on `forward.port`, any that is free unless `local` names one."""
        return AsyncForward(self, remote, local=local, bind=bind, on_error=on_error)
