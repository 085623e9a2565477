# Generated from client/_async/build.py by scripts/generate_sync.py. Do not edit.
"""`Image`: an image described by steps, and the build of it in a sandbox."""

from __future__ import annotations

import builtins
import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack, overload

from skerry.client._sync.client import Client
from skerry.client._sync.sandbox import Sandbox
from skerry.client._sync.snapshots import Snapshot
from skerry.client.build import sources
from skerry.client.build.builder import ImageDescription, text_of
from skerry.client.build.image_toml import read_recipe_file
from skerry.client.build.options import (
    BuildArguments,
    BuildOptions,
    BuildStep,
    Presets,
    Tail,
    at_step,
    read_presets_of,
    step_failed,
)
from skerry.client.build.plan import BuildPlan, CopyAction, ImageState, RunAction, Task, make_plan
from skerry.client.build.sources import ArchiveRelay, compression, digest
from skerry.client.build.steps import Inline, Local, Manager, Recipe
from skerry.client.create_options import DEFAULT_NETWORK, seconds
from skerry.client.policy_inputs import secret_values
from skerry.client.results.command import Output
from skerry.client.transport import backend_sync as backend
from skerry.client.transport.requests import files as requests
from skerry.client.transport.requests import network, snapshots
from skerry.errors import (
    CommandFailed,
    CommandTimeout,
    Conflict,
    FileNotFound,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RegistryError,
    SkerryError,
)
from skerry.types import (
    Credentials,
    FileInfo,
    ImageInfo,
    Lifecycle,
    NetworkChange,
    NetworkInfo,
    SnapshotInfo,
    SnapshotList,
    SnapshotRequest,
    TransferResult,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

TRIES = 3
# The sandbox of a killed build is deleted when idle; a running step is never idle.
LIFECYCLE = Lifecycle(idle_timeout="5m", on_idle="delete")
Names = list[tuple[str, bool]]


class Image(ImageDescription):
    """Steps on a base. They run in `.build()`, or when a sandbox starts from the image:

        image = Image.base().apt("ffmpeg").pip("numpy").copy("src", "/app").workdir("/app")
        with Sandbox(image=image) as sandbox: ...

    The result of each step is cached by the step's inputs, so that only changed steps run again.
    """

    @classmethod
    def base(cls, name: str = "base") -> Image:
        """Start from an existing image or snapshot."""
        return cls.of(name)

    @classmethod
    def pull(
        cls,
        reference: str,
        *,
        platform: str | None = None,
        insecure: bool = False,
        credentials: Credentials | None = None,
        server: str | Client | None = None,
    ) -> Image:
        """Pull an image from a registry (needs an admin's token), and start from it."""
        with _client(server) as client:
            found = client.images.pull(reference, platform=platform, insecure=insecure, credentials=credentials)
        return cls.of(found.name)

    @classmethod
    def file(
        cls, path: str | os.PathLike[str] = "image.toml", *, context: str | os.PathLike[str] | None = None
    ) -> Image:
        """Read an image.toml. Its files are beside it, or in `context`, and nowhere else."""
        directory = os.path.abspath(context if context is not None else os.path.dirname(os.path.abspath(path)))
        return read_recipe_file(cls, text_of(path), os.fspath(path), directory)

    @classmethod
    def list(cls, *, server: str | Client | None = None) -> builtins.list[ImageInfo]:
        """Return the images in the store."""
        with _client(server) as client:
            return client.images.list()

    @overload
    def build(self, name: str, **how: Unpack[BuildArguments]) -> ImageInfo: ...
    @overload
    def build(self, name: None = None, **how: Unpack[BuildArguments]) -> Snapshot: ...
    def build(self, name: str | None = None, **how: Unpack[BuildArguments]) -> ImageInfo | Snapshot:
        """Build the image. With a name, which needs an admin's token, it becomes an image; without one, a snapshot of
        yours.

        `network`: the hosts that every step may reach; apt, pip and npm steps also reach the hosts that these programs
        are configured for on this machine. `timeout`: for one step (1800 s). `cache=False` runs every step. `on_step`
        is called for each step when it starts, `on_output` for each piece of output. A failing step raises
        CommandFailed, with its line and the end of its output.
        """
        given: dict[str, Any] = dict(how)
        server = given.pop("server", None)
        seconds(given.get("timeout"))
        options = BuildOptions(**{"network": self.network, **given})
        with _client(server) as client:
            info = Builder(client, Sandbox, options).build(self.recipe)
            if name is None:
                return Snapshot(client, info)
            return client.images.from_snapshot(info.id, name)


@contextmanager
def _client(server: str | Client | None) -> Iterator[Client]:
    """Yield a client. A new one closes its connections afterwards; later calls open new ones."""
    client = server if isinstance(server, Client) else Client(server)
    try:
        yield client
    finally:
        if client is not server:
            client.close()


class BaseChanged(Exception):
    """The base of the plan was removed or replaced."""


class Builder:
    """Builds recipes. `make`: the class of sandboxes, passed in because a sandbox of a described image builds it
    first."""

    def __init__(self, client: Client, make: type[Sandbox], options: BuildOptions) -> None:
        self.client = client
        self.make = make
        self.options = options
        self._presets: Presets = {}
        self._depth = 0  # of stages that copy from stages

    def build(self, recipe: Recipe) -> SnapshotInfo:
        """Find the cached results and run the other steps."""
        for _ in range(TRIES):
            bases = {name: self._base(name) for name in sorted(recipe.bases)}
            plan = backend.in_thread(make_plan, recipe, bases, _digest)
            try:
                return self.made(plan)
            except BaseChanged:
                continue
        raise Conflict(f"image {recipe.base} changed during the build", hint="build again")

    def _base(self, name: str) -> ImageState:
        found = self._found(name)
        return ImageState(found.digest, found.env, found.user, found.cwd, found.entrypoint, found.cmd)

    def _found(self, name: str) -> SnapshotInfo | ImageInfo:
        """Return the base as a create finds it: a snapshot of the caller, then an image. A missing image is pulled, as
        in docker; `base` is built."""
        try:
            return self.client.request_json(snapshots.get(name), SnapshotInfo)
        except NotFound:
            pass
        try:
            return self.client.images.get(name)
        except NotFound as error:
            if error.details.get("build") is True and self.client.address.local:
                return self.client.images.build(name)
            if error.details.get("build") is True or not self.options.pull:
                raise
            return self._pulled(name, error)

    def _pulled(self, name: str, missing: NotFound) -> ImageInfo:
        try:
            return self.client.images.pull(name)
        except PermissionDenied:  # only an admin may pull
            raise missing from None
        except (NotFound, InvalidRequest, RegistryError) as why:
            raise NotFound(f"{missing.message}, and it cannot be pulled: {why.message}", hint=why.hint) from why

    def made(self, plan: BuildPlan) -> SnapshotInfo:
        """Return the snapshot of the plan's result."""
        self._depth += 1
        try:
            return self._made(plan)
        finally:
            self._depth -= 1

    def _made(self, plan: BuildPlan) -> SnapshotInfo:
        done, found = self._cached(plan) if self.options.cache else (-1, None)
        replace = not self.options.cache
        if found is not None and self._too_old(found):
            done, found, replace = -1, None, True
        for number in range(done + 1):
            self.report_step(plan, number, cached=True)
        if found is not None and done == len(plan.tasks) - 1:
            return found
        left = {task.preset for task in plan.tasks[done + 1 :] if task.preset is not None}
        self._presets |= backend.in_thread(read_presets_of, left - self._presets.keys(), self.options)
        sandbox, begun = self._sandbox(plan, found), False
        try:
            with sandbox:
                begun = True
                self._check(sandbox, plan.digest if found is None else found.digest)
                return StepRunner(self, plan, sandbox, self._presets, replace=replace).all(done + 1)
        except NotFound as error:
            if begun:
                raise
            raise BaseChanged from error

    def _too_old(self, found: SnapshotInfo) -> bool:
        most = self.options.most_age
        return most is not None and time.time() - found.created_at > most

    def _cached(self, plan: BuildPlan) -> tuple[int, SnapshotInfo | None]:
        """Return the last step with a cached result."""
        for at in reversed(plan.marks):
            request = snapshots.list_all(None, plan.tasks[at].key)
            for info in (self.client.request_json(request, SnapshotList)).snapshots:
                return at, info
        return -1, None

    def _sandbox(self, plan: BuildPlan, found: SnapshotInfo | None) -> Sandbox:
        options = self.options
        return self.make(
            plan.base if found is None else found.id, env=options.env, limits=options.limits, options=options.options,
            network=DEFAULT_NETWORK if options.network is None else options.network, secrets=options.secrets,
            on_unknown=options.on_unknown, lifecycle=LIFECYCLE, labels=label(plan), server=self.client,
        )  # fmt: skip

    def _check(self, sandbox: Sandbox, digest: str) -> None:
        """Raise unless the sandbox has the digest that the plan's keys depend on."""
        if sandbox.cached_info.image_digest != digest:
            raise BaseChanged

    def stage_sandbox(self, plan: BuildPlan, made: SnapshotInfo) -> Sandbox:
        """Return a sandbox of another stage, to copy from."""
        return self.make(made.id, lifecycle=LIFECYCLE, labels=label(plan), server=self.client)

    def report_step(self, plan: BuildPlan, at: int, *, cached: bool = False) -> None:
        if self.options.on_step is not None:
            step = plan.tasks[at].step
            where = str(step.where) if step.where else None
            report = BuildStep(at + 1, len(plan.tasks), step.title, where, cached, self._depth > 1)
            backend.deliver(self.options.on_step, report)


def label(plan: BuildPlan) -> dict[str, str]:
    return {"skerry.build": plan.key[:12]}


def _digest(files: Sequence[Local], parents: bool) -> str:
    return digest(files, parents=parents)


class StepRunner:
    def __init__(
        self, builder: Builder, plan: BuildPlan, sandbox: Sandbox, presets: Presets, *, replace: bool
    ) -> None:
        self._builder = builder
        self._plan = plan
        self._sandbox = sandbox
        self._presets = presets
        self._network = sandbox.cached_info.network  # the network of every step
        self._preset: Manager | None = None
        self._ran = False
        self._replace = replace

    def all(self, first: int) -> SnapshotInfo:
        """Run the tasks from `first` on; return the snapshot after the last."""
        plan, marks = self._plan, set(self._plan.marks)
        for at in range(first, len(plan.tasks)):
            self._builder.report_step(plan, at)
            task = plan.tasks[at]
            try:
                self._do(at, task)
                info = self._snapshot(task) if at in marks else None
            except (CommandFailed, CommandTimeout):
                raise
            except SkerryError as error:
                raise at_step(task.step, error) from error
        assert info is not None  # noqa: S101  (the last is always a mark)
        return info

    def _do(self, at: int, task: Task) -> None:
        for directory in task.directories:
            self._sandbox.files.mkdir(directory, user="root")
        match task.action:
            case RunAction() as command:
                self._allow(command.preset)
                self._run(at, task, command)
            case CopyAction() as action:
                Copier(self._builder, self._sandbox, action).place()

    def _run(self, at: int, task: Task, command: RunAction) -> None:
        tail, on_output = Tail(), self._builder.options.on_output

        def heard(output: Output) -> None:
            tail.add(output)
            if on_output is not None:
                backend.deliver(on_output, output)

        self._ran = self._ran or command.preset is None
        result = self._sandbox.run(
            command.cmd, env=command.env, cwd=command.cwd, user=command.user, stdin=command.stdin,
            timeout=self._builder.options.timeout, on_output=heard,
        )  # fmt: skip
        if not result.ok:
            raise step_failed(task.step, at + 1, len(self._plan.tasks), result, tail.text, command.user)

    def _allow(self, preset: Manager | None) -> None:
        """Allow the hosts of this step's program, and remove those of the last step's."""
        if preset == self._preset:
            return
        client, ref = self._sandbox.client, self._sandbox.id
        if preset is not None and self._ran:  # a process left by an earlier step must not reach this step's hosts
            self._sandbox.stop()
            self._sandbox.resume()
            self._ran = False
        presets, secrets = self._presets[preset] if preset is not None else ((), ())
        if self._preset is not None:
            client.request_json(network.set_(ref, self._network), NetworkInfo)
        if secrets or (self._preset is not None and self._presets[self._preset][1]):
            given = backend.in_thread(secret_values, self._builder.options.secrets)
            self._sandbox.update(secrets=(*given, *secrets))
        if presets:
            client.request_json(network.change(ref, NetworkChange(presets=presets)), NetworkInfo)
        self._preset = preset

    def _snapshot(self, task: Task) -> SnapshotInfo:
        state = task.state
        payload = SnapshotRequest(
            key=task.key, env=dict(state.added), user=state.user, cwd=state.cwd, entrypoint=state.entrypoint,
            cmd=state.cmd, replace=self._replace,
        )  # fmt: skip
        return self._sandbox.client.request_json(snapshots.take(self._sandbox.id, payload), SnapshotInfo)


class Copier:
    def __init__(self, builder: Builder, sandbox: Sandbox, action: CopyAction) -> None:
        self._builder = builder
        self._sandbox = sandbox
        self._action = action

    def place(self) -> None:
        if self._action.stage is not None:
            self._from_stage()
            return
        matches = backend.in_thread(self._found)
        if self._action.unpack:
            matches = [match for match in matches if not self._unpacked(match)]
        inline = [source for source in self._action.sources if isinstance(source, Inline)]
        alone = len(matches) + len(inline) == 1 and not any(match.is_directory for match in matches)
        root, name = self._where(alone)
        if matches or inline:
            self._prepare(root)
        for source in inline:
            data = sources.inline_archive(name or source.name, source.content.encode())
            self._send(root, iter([data]))
            self._set_attributes(root, [(name or source.name, False)])
        if matches:
            archive = sources.SourceArchive(matches, name=name, parents=self._action.parents)
            self._send(root, archive)
            self._set_attributes(root, archive.names)
        backend.in_thread(self._check)

    @property
    def _locals(self) -> list[Local]:
        return [source for source in self._action.sources if isinstance(source, Local)]

    def _found(self) -> list[sources.SourceMatch]:
        return [match for source in self._locals for match in sources.find_matches(source)]

    def _check(self) -> None:
        """Raise Conflict unless the files that were sent match the step's key."""
        if self._locals and sources.digest(self._locals, parents=self._action.parents) != self._action.content:
            raise Conflict("the files changed while they were copied", hint="build again")

    def _where(self, alone: bool) -> tuple[str, str | None]:
        """Return the directory that receives the files and, for a single file, its name there."""
        target = self._action.target
        if not alone or self._action.parents or target.endswith("/") or self._is_directory(target):
            return target, None
        return posixpath.dirname(target), posixpath.basename(target)

    def _look(self, path: str) -> FileInfo | None:
        try:
            return self._sandbox.files.stat(path, follow=True, user="root")
        except FileNotFound:
            return None

    def _is_directory(self, path: str) -> bool:
        found = self._look(path)
        return found is not None and found.type == "directory"

    def _prepare(self, root: str) -> None:
        """Create a directory with the owner and mode of the copy."""
        if self._look(root) is None:
            self._sandbox.files.mkdir(root, user="root")
            self._set_attributes(
                posixpath.dirname(root.rstrip("/")) or "/", [(posixpath.basename(root.rstrip("/")), True)]
            )

    def _send(self, root: str, archive: backend.AnySource) -> None:
        sandbox = self._sandbox
        request = requests.upload_tree(sandbox.id, root, backend.chunks(archive), "root")
        sandbox.client.request_json(request, TransferResult)

    def _set_attributes(self, root: str, names: Names) -> None:
        """Set owners and modes; a link has no mode."""
        paths = [posixpath.join(root, name) for name, _ in names]
        if self._action.owner is not None:
            self._on_each(["chown", "-h", "--", _owner(self._action.owner)], paths)
        if self._action.mode is not None:
            plain = [path for path, (_, is_link) in zip(paths, names, strict=True) if not is_link]
            self._on_each(["chmod", "--", f"{self._action.mode:o}"], plain)

    def _on_each(self, words: list[str], paths: list[str]) -> None:
        if not paths:
            return
        listed = b"\0".join(path.encode("utf-8", "surrogateescape") for path in paths)
        result = self._sandbox.run(["xargs", "-0", *words], user="root", cwd="/", stdin=listed)
        if not result.ok:
            raise InvalidRequest(f"{' '.join(words)}: {result.stderr.strip()[-1000:] or 'it failed'}")

    def _unpacked(self, match: sources.SourceMatch) -> bool:
        """Unpack an archive into the target with the image's tar; return False if the file is not an archive."""
        file, flag = backend.in_thread(compression, match)
        if file is None:
            return False
        with file:
            self._prepare(self._action.target)
            words = ["tar", "-x", *flag, "-f", "-", "-C", self._action.target]
            result = self._sandbox.run(words, user="root", cwd="/", stdin=file, timeout=None)
        if not result.ok:
            raise InvalidRequest(f"{match.way}: tar: {result.stderr.strip()[-1000:] or 'it failed'}")
        return True

    def _from_stage(self) -> None:
        """Copy from the other stage's sandbox into this one, without using this host's disk."""
        plan = self._action.stage
        if plan is None:
            return
        with self._builder.stage_sandbox(plan, self._builder.made(plan)) as stage:
            paths = [path for source in self._action.sources for path in _matching(stage, str(source))]
            found = [(path, stage.files.stat(path, follow=True, user="root")) for path in paths]
            alone = len(found) == 1 and found[0][1].type != "directory"
            root, name = self._where(alone)
            self._prepare(root)
            for path, info in found:
                if info.type == "directory":
                    self._tree(stage, path, root)
                else:
                    self._file(stage, path, info, root, name or posixpath.basename(path))

    def _tree(self, stage: Sandbox, path: str, root: str) -> None:
        passing = ArchiveRelay()
        request = requests.download_tree(stage.id, path, (), "root")
        with stage.client.stream(request) as chunks:
            self._send(root, _relay(chunks, passing))
        self._set_attributes(root, passing.names)

    def _file(self, stage: Sandbox, path: str, info: FileInfo, root: str, name: str) -> None:
        content = stage.files.stream(path, user="root")
        self._sandbox.files.write(posixpath.join(root, name), content, mode=info.mode & 0o777, user="root")
        self._set_attributes(root, [(name, False)])


def _relay(chunks: Iterator[bytes], passing: ArchiveRelay) -> Iterator[bytes]:
    for chunk in chunks:
        for piece in passing.feed(chunk):
            yield piece
    passing.finish()


def _matching(stage: Sandbox, path: str) -> list[str]:
    if not any(char in path for char in "*?["):
        return [path]
    names = sorted(info.path for info in stage.files.glob(path, path="/", user="root"))
    if not names:
        raise InvalidRequest(f"{path}: not found in that stage")
    return names


def _owner(owner: str) -> str:
    """Return the owner with the user's group, if none is named."""
    user, colon, group = owner.partition(":")
    if colon and group:
        return owner
    return f"{user}:{user}" if user.isdecimal() else f"{user}:"
