# Generated from client/_async/sandbox.py by scripts/generate_sync.py. Do not edit.
"""`Sandbox`: one isolated machine."""

# ruff: noqa: B008  (the values that stand as defaults are frozen)

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from msgspec import structs

from skerry.client import backend_sync as backend
from skerry.client import preview_requests, requests, snapshot_requests
from skerry.client._sync.client import Client
from skerry.client._sync.code import Code
from skerry.client._sync.files import Files
from skerry.client._sync.forward import Forward
from skerry.client._sync.git import Git
from skerry.client._sync.network import SandboxNetwork
from skerry.client._sync.previews import Preview, Previews
from skerry.client._sync.process import Process
from skerry.client._sync.processes import Processes
from skerry.client._sync.questions import Asking
from skerry.client._sync.review import Review
from skerry.client._sync.running import Running, prepare
from skerry.client._sync.sessions import Session, Sessions
from skerry.client._sync.snapshots import Snapshot
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


class Sandbox:
    """An isolated Linux machine: files, processes, limits of its own.

    The constructor only describes it; `with` or `.create()` makes it. Leaving `with` deletes an unnamed
    sandbox and leaves a named one.

        with Sandbox(limits=Limits(memory="512M")) as sandbox:
            result = sandbox.run("python3 -c 'print(6*7)'")
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
        server: str | Client | None = None,
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
        server: str | Client | None,
        secrets: Sequence[object] = (),
        on_unknown: backend.Answerer | None = None,
    ) -> None:
        self._wish = wish
        self._info = info
        self._shares_client = isinstance(server, Client)
        self.client = server if isinstance(server, Client) else Client(server)
        self.code = Code(self)
        self.files = Files(self)
        self.git = Git(self)
        self.network = SandboxNetwork(self)
        self.previews = Previews(self)
        self.processes = Processes(self)
        self.review = Review(self)
        self.sessions = Sessions(self)
        self.asking: builtins.list[Asking] = []  # callbacks that answer questions for it
        self._secrets = secrets
        self._on_unknown = on_unknown
        self._described = None
        self._repo = None
        self.imported: Imported | None = None  # what `repo=` brought

    @classmethod
    def _of(cls, info: SandboxInfo, client: Client, *, shared: bool) -> Sandbox:
        sandbox = cls.__new__(cls)
        sandbox._begin(None, info, client)
        sandbox._shares_client = shared
        return sandbox

    @CreatedEitherWay
    def create(self) -> Sandbox:
        """Make it: `Sandbox(...).create()`, or describe and make in one call, `Sandbox.create(...)`."""
        if self._info is not None or self._wish is None:
            raise Conflict(f"sandbox {self.id} is made already")
        wish = backend.in_thread(with_what_is_here, self._wish, self._secrets)
        if self._described is not None:
            wish = structs.replace(wish, image=self._build())
        if self._repo is not None:
            self._make_with(self._repo, wish)
        else:
            self._info = self._make_or_build(wish)
            self._answer_questions()
        return self

    def _make_with(self, repo: Repo, wish: CreateRequest) -> None:
        from skerry.client._sync.importing import Import  # which most never need

        opened = Import.open(repo)
        try:
            self._info = self._make_or_build(wish)
            self._answer_questions()
            self.imported = opened.bring(self)
        except BaseException as error:
            if self._info is not None:  # half a repository is none
                self._leave(error, hurried=True)
                self._info = None
            raise
        finally:
            opened.close()

    def _make_or_build(self, wish: CreateRequest) -> SandboxInfo:
        try:
            return self._make(wish)
        except NotFound as error:
            if not (error.details.get("build") is True and self.client.address.local):
                raise
            self.client.images.build(wish.image)
            return self._make(wish)

    def _build(self) -> str:
        """Its image, which is only described: built, or found to be."""
        from skerry.client._sync.building import Builder  # which most never need
        from skerry.client.building.options import BuildOptions

        options = BuildOptions(network=getattr(self._described, "network", None))
        return (Builder(self.client, Sandbox, options).build(self._described.recipe)).id

    def _answer_questions(self) -> None:
        if self._on_unknown is not None:
            self.network.ask(self._on_unknown)

    def _make(self, wish: CreateRequest) -> SandboxInfo:
        request = requests.create(wish)
        try:
            return self.client.value(request, SandboxInfo)
        except Exception:
            raise
        except BaseException:
            # Interrupted with the request on its way. The same key names the same sandbox, so it can be taken back.
            self._take_back(requests.hurried(request), SandboxInfo)
            raise

    def _take_back(self, request: requests.Request, kind: type[SandboxInfo] | type[SandboxList]) -> None:
        try:
            made = self.client.value(request, kind)
            for info in made.sandboxes if isinstance(made, SandboxList) else [made]:
                self.client.done(requests.hurried(requests.delete(info.id)))
        except SkerryError:
            return

    @classmethod
    def get(cls, ref: str, *, server: str | Client | None = None) -> Sandbox:
        """A sandbox that exists, by id or name."""
        client = server if isinstance(server, Client) else Client(server)
        info = client.value(requests.get(ref), SandboxInfo)
        return cls._of(info, client, shared=client is server)

    @classmethod
    def get_or_create(cls, name: str, **creation: Unpack[Creation]) -> Sandbox:
        """The sandbox of that name, made as described if there is none. One that exists is given as it is."""
        sandbox = cls(name=name, **creation)
        try:
            sandbox._info = sandbox.client.value(requests.get(name), SandboxInfo)
        except NotFound:
            try:
                return sandbox.create()
            except Conflict:  # another was quicker
                sandbox._info = sandbox.client.value(requests.get(name), SandboxInfo)
        sandbox._answer_questions()
        return sandbox

    @classmethod
    def list(
        cls, *, labels: Mapping[str, str] = {}, state: State | None = None, server: str | Client | None = None
    ) -> builtins.list[Sandbox]:
        """Your sandboxes: those with all these labels, in that state."""
        client = server if isinstance(server, Client) else Client(server)
        answer = client.value(requests.list_all(labels, state), SandboxList)
        return [cls._of(info, client, shared=True) for info in answer.sandboxes]

    def __enter__(self) -> Sandbox:
        if self._info is None:
            try:
                self.create()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.name is None:
                self._leave(error)
        finally:
            self.close()

    def _leave(self, error: BaseException | None, *, hurried: bool = False) -> None:
        request = requests.delete(self.id)
        try:
            self.client.done(requests.hurried(request) if hurried else request)
        except NotFound:
            return
        except SkerryError as failure:
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {failure}")

    def close(self) -> None:
        """Close the connections that are this sandbox's own, and answer no more questions. The sandbox lives on."""
        for one in self.asking[:]:
            one.close()
        if not self._shares_client:
            self.client.close()

    def __repr__(self) -> str:
        if self._info is None:
            return "<Sandbox, not made yet>"
        return f"<Sandbox {self._info.name or self._info.id} {self._info.state}>"

    @property
    def known(self) -> SandboxInfo:
        """All that was last seen of it; `.info()` asks again."""
        if self._info is None:
            raise InvalidRequest(
                "this sandbox is only described, not made",
                hint="use `with Sandbox(...) as sandbox:` or call .create() first",
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

    def info(self) -> SandboxInfo:
        """All that the server says of it, fresh."""
        self._info = self.client.value(requests.get(self.id), SandboxInfo)
        return self._info

    def update(
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
            secrets=backend.in_thread(secret_values, secrets) if secrets is not None else None,
        )
        self._info = self.client.value(requests.update(self.id, change), SandboxInfo)

    def usage(self) -> Usage:
        return self.client.value(requests.usage(self.id), Usage)

    def delete(self) -> None:
        """End it and remove all of it."""
        self.client.done(requests.delete(self.id))
        self.close()

    def stop(self) -> None:
        """End its processes, keep its files. The next call starts it again."""
        self._info = self.client.value(requests.act(self.id, "stop"), SandboxInfo)

    def resume(self) -> None:
        """Wake it, paused or stopped."""
        self._info = self.client.value(requests.act(self.id, "resume"), SandboxInfo)

    def pause(self) -> None:
        """Freeze its processes where they are."""
        self._info = self.client.value(requests.act(self.id, "pause"), SandboxInfo)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Its files as they are at this moment, running or not; it goes on. Unnamed ones are found by their id."""
        wish = SnapshotRequest(name=name)
        return Snapshot(self.client, self.client.value(snapshot_requests.take(self.id, wish), SnapshotInfo))

    def rollback(self, snapshot: Snapshot | str | None = None, *, steps: int | None = None) -> None:
        """Its files as they were: in a snapshot, or before the last `steps` commands (`Options(auto_snapshot=True)`).
        Its processes end and its sessions are forgotten; calls under way fail with SandboxUnavailable."""
        request = snapshot_requests.rollback(self.id, snapshot, steps)
        self._info = self.client.value(request, SandboxInfo)

    def fork(self, n: int = 1) -> builtins.list[Sandbox]:
        """New sandboxes that begin with its files, variables, limits, labels, policy and secrets, and share no writes
        with it or each other. All of them run, or none is made. They have no names; it goes on untouched."""
        request = snapshot_requests.fork(self.id, n)
        try:
            made = self.client.value(request, SandboxList)
        except Exception:
            raise
        except BaseException:
            self._take_back(requests.hurried(request), SandboxList)
            raise
        return [type(self)._of(info, self.client, shared=True) for info in made.sandboxes]

    def run(
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
        result = Running(self, request, source, on_output).result()
        return checked(result, request.cmd) if check else result

    def spawn(
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
    ) -> Process:
        """Start a command and leave it to itself: it goes on when this program ends, and is never slowed by a reader.

        `pty` gives it a terminal. `stdin`: a pipe to write to, unless False; text or bytes are all that it gets.
        `journal` is how much of its output is kept (64M): past that the oldest is dropped."""
        request = spawn_request(run_request(cmd, env, cwd, user, timeout), pty, stdin, journal)
        info = self.client.value(requests.spawn(self.id, request), ProcessInfo)
        return Process(self, info)

    def session(
        self, name: str, *, user: str | None = None, cwd: str | None = None, env: Mapping[str, str | None] = {}
    ) -> Session:
        """The session of that name, made if there is none; `user`, `cwd` and `env` (None unsets) are for a new one."""
        request = SessionRequest(name=name, user=user, cwd=cwd, env=texts(env, "env"))
        info = self.client.value(requests.open_session(self.id, request), SessionInfo)
        return Session(self, info)

    def wait_for_port(self, port: int, timeout: float = 30, *, http_path: str | None = None) -> None:
        """Wait until something inside listens on a port; with `http_path`, until that path answers below 500.
        CommandTimeout if it does not come in time, with what was seen last."""
        rounds, last = Rounds(seconds(timeout)), ""
        for left in rounds:
            try:
                request = requests.wait_for_port(self.id, port, left, http_path)
                state = self.client.value(request, PortState)
                rounds.renew()
            except ServerUnreachable as error:
                backend.sleep(rounds.pause(error))
                continue
            if state.open:
                return
            last = state.last
        raise rounds.error or never_opened(port, timeout, last)

    def expose(
        self, port: int, *, public: bool = False, expires: str | int | float | None = None
    ) -> Preview:
        """Show what listens on a port inside by a URL of its own, to those who have its token, or to all (`public`).
        `expires`: after so long ("1h"), else never. The same port again is the same preview, with these terms."""
        wish = preview_requests.preview_request(port, public, expires)
        info = self.client.value(preview_requests.expose(self.id, wish), PreviewInfo)
        return Preview(self, info)

    def forward(
        self,
        remote: int,
        *,
        local: int = 0,
        bind: str = "127.0.0.1",
        on_error: backend.Callback[SkerryError] | None = None,
    ) -> Forward:
        """A port of this machine that leads to one inside, while it is entered: `with sandbox.forward(3000) as
        forward:` listens on `forward.port`, any that is free unless `local` names one."""
        return Forward(self, remote, local=local, bind=bind, on_error=on_error)
