"""Template builds: the steps of a template, run in a sandbox whose files become a snapshot of the owner.

A template is the newest snapshot named `TEMPLATE.e2b-TIME`. Archives of files are kept until the server stops, and are
unpacked inside the sandbox only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import posixpath
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from skerry.engine.processes.run import collect
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.server.http.responses import BodyTooLarge
from skerry.server.wire.e2b.values import moment
from skerry.types import (
    NAME,
    Caller,
    CreateRequest,
    Lifecycle,
    Limits,
    Network,
    RunRequest,
    SnapshotInfo,
    SnapshotRequest,
)

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

log = logging.getLogger("skerry.server")
MARK: Final = ".e2b-"
MAX_ARCHIVE: Final = 1 << 30
MAX_ARCHIVES: Final = 64  # of one owner
MAX_BUILDS: Final = 4  # of one owner, at once
MAX_KEPT: Final = 200  # builds whose logs are kept
MAX_LOG: Final = 10_000  # entries
PAGE: Final = 100
BUILD_S: Final = 3600.0
READY_S: Final = 300.0
START_ID: Final = "e2b-start"
_HASH: Final = re.compile(r"[0-9a-zA-Z_-]{1,128}")
_TEMPLATE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,44}[a-z0-9]|[a-z0-9]")
_IMAGES: Final = {"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}
# $1: the unpacked archive, $2: the target, $3: the pattern of the sources, $4: the owner, $5: the mode or nothing
_COPY: Final = """
set -e; shopt -s dotglob nullglob; IFS=; cd "$1"; chown -hR "$4" .
[ -z "$5" ] || chmod -R "$5" .
found=( $3 ); [ ${#found[@]} -gt 0 ] || { echo "$3 matches no file" >&2; exit 1; }
if [ ${#found[@]} -eq 1 ] && [ -d "${found[0]}" ]; then mkdir -p "$2"; cp -a "${found[0]}/." "$2/"
elif [ ${#found[@]} -gt 1 ] || [[ $2 == */ ]] || [ -d "$2" ]; then mkdir -p "$2"; cp -a "${found[@]}" "$2/"
else mkdir -p "$(dirname "$2")"; cp -a "${found[0]}" "$2"; fi
rm -rf "$1"
"""


class TemplateStep(Struct, frozen=True, kw_only=True, rename="camel"):
    type: str
    args: list[str] = []
    files_hash: str | None = None


class BuildRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """POST /v2/templates/{template}/builds/{build}. Steps are never cached, so `force` has no effect."""

    from_image: str | None = None
    from_template: str | None = None
    from_image_registry: Any = None
    steps: list[TemplateStep] = []
    start_cmd: str | None = None
    ready_cmd: str | None = None


@dataclass
class TemplateBuild:
    """A build and its log."""

    id: str
    template: str
    caller: Caller
    limits: Limits
    status: str = "waiting"
    entries: list[dict[str, Any]] = field(default_factory=list)
    reason: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None

    def say(self, message: str, level: str = "info", step: str | None = None) -> None:
        if len(self.entries) < MAX_LOG:
            entry = {"timestamp": moment(time.time()), "message": message[:4096], "level": level}
            self.entries.append(entry | ({"step": step} if step is not None else {}))


class StepFailed(SkerryError):
    """A step of a build ended with an error."""

    code = "conflict"

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


class Builds:
    """The builds and the uploaded archives of this server. Both end with it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._builds: dict[str, TemplateBuild] = {}

    @property
    def _files(self) -> Path:
        return self._engine.settings.state_dir / "e2b-uploads"

    def clear(self) -> None:
        """Remove the archives that an earlier server left."""
        shutil.rmtree(self._files, ignore_errors=True)

    async def aclose(self) -> None:
        tasks = [build.task for build in self._builds.values() if build.task is not None and not build.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.clear()

    # -- archives -----------------------------------------------------------------------------------------------------

    def archive(self, caller: Caller, name: str) -> Path:
        if not _HASH.fullmatch(name):
            raise InvalidRequest("the hash of the files has an unexpected form")
        owner = hashlib.sha256(caller.owner.encode()).hexdigest()[:32]
        return self._files / owner / name

    async def store(self, caller: Caller, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Store an archive: complete, or not at all."""
        path = self.archive(caller, name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{uuid.uuid4().hex}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = 0
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_ARCHIVE:
                        raise BodyTooLarge(f"the archive is larger than {MAX_ARCHIVE >> 20} MiB")
                    await asyncio.to_thread(file.write, chunk)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
        kept = sorted(path.parent.glob("[!.]*"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-MAX_ARCHIVES]:
            old.unlink(missing_ok=True)

    # -- builds -------------------------------------------------------------------------------------------------------

    def add(self, caller: Caller, template: str, limits: Limits) -> TemplateBuild:
        check_template(template)
        finished = [name for name, one in self._builds.items() if one.status in ("ready", "error")]
        for name in finished[: max(0, len(self._builds) - MAX_KEPT)]:
            del self._builds[name]
        build = TemplateBuild(str(uuid.uuid4()), template, caller, limits)
        self._builds[build.id] = build
        return build

    def find(self, caller: Caller, template: str, name: str) -> TemplateBuild:
        build = self._builds.get(name)
        if build is None or build.caller.owner != caller.owner or build.template != template:
            raise NotFound(f"build {name[:80]!r} of template {template[:80]!r} not found")
        return build

    def start(self, build: TemplateBuild, request: BuildRequest) -> None:
        if build.status != "waiting":
            raise Conflict(f"build {build.id} has been started already")
        owned = [one for one in self._builds.values() if one.caller.owner == build.caller.owner]
        if sum(one.status == "building" for one in owned) >= MAX_BUILDS:
            raise QuotaExceeded(f"more than {MAX_BUILDS} builds at once", hint="wait until one ends")
        build.status = "building"
        build.task = asyncio.create_task(self._run(build, request))

    async def _run(self, build: TemplateBuild, request: BuildRequest) -> None:
        try:
            async with asyncio.timeout(BUILD_S):
                await self._build(build, request)
            build.status = "ready"
        except StepFailed as error:
            self._fail(build, error.message, error.step)
        except TimeoutError:
            self._fail(build, f"the build took longer than {BUILD_S:g} s", "finalize")
        except SkerryError as error:
            self._fail(build, error.message, "base")
        except Exception:
            log.exception("build failed with an unexpected error", extra={"template": build.template})
            self._fail(build, "unexpected error in the server", "base")

    @staticmethod
    def _fail(build: TemplateBuild, message: str, step: str) -> None:
        build.say(message, "error", step)
        build.reason = {"message": message, "step": step, "logEntries": build.entries[-20:]}
        build.status = "error"

    async def _build(self, build: TemplateBuild, request: BuildRequest) -> None:
        image = await self._base(build.caller, request)
        build.say(f"Building template {build.template} from {image}")
        sandbox = await self._engine.sandboxes.create(
            build.caller,
            CreateRequest(
                image=image, limits=build.limits, network=Network(allow=("*:*",)),
                lifecycle=Lifecycle(idle_timeout="never", max_lifetime=BUILD_S + 60),
            ),
        )  # fmt: skip
        work = StepRunner(self._engine, self, build, sandbox.id)
        try:
            for number, step in enumerate(request.steps, 1):
                await work.step(str(number), step)
            if request.start_cmd or request.ready_cmd:
                await work.start(request.start_cmd or "", request.ready_cmd or "")
            command = ("/bin/bash", "-l", "-c", request.start_cmd) if request.start_cmd else ()
            name = f"{build.template}{MARK}{time.time_ns() // 1000:x}"
            wanted = SnapshotRequest(name=name, env=work.env, user=work.user, cwd=work.cwd, cmd=command)
            made = await self._engine.snapshots.take(build.caller, sandbox.id, wanted)
            build.say(f"Build finished: snapshot {made.id}")
        finally:
            with contextlib.suppress(NotFound):
                await self._engine.sandboxes.delete(build.caller, sandbox.id, force=True, purge=True)
        await self._forget_older(build.caller, build.template)

    async def _base(self, caller: Caller, request: BuildRequest) -> str:
        if request.from_image_registry:
            raise InvalidRequest("fromImageRegistry: not supported by this server", hint="pull the image first")
        if request.from_template is not None:
            return await resolve(self._engine, caller, request.from_template)
        name = request.from_image or "base"
        repository, _, _ = name.partition(":")
        return await resolve(self._engine, caller, _IMAGES.get(repository, name), tags=False)

    async def _forget_older(self, caller: Caller, template: str) -> None:
        """Remove earlier snapshots of a template that no sandbox needs."""
        for old in (await versions(self._engine, caller, template))[1:]:
            with contextlib.suppress(SkerryError):
                await self._engine.snapshots.delete(caller, old.id)


class StepRunner:
    """Runs the steps of one build. `user`, `cwd` and `env` apply to the next step, and to sandboxes of the template."""

    def __init__(self, engine: Engine, builds: Builds, build: TemplateBuild, sandbox: str) -> None:
        self._engine, self._builds, self._build, self._sandbox = engine, builds, build, sandbox
        self.user, self.cwd = "user", "/home/user"
        self.env: dict[str, str] = {}

    async def step(self, number: str, step: TemplateStep) -> None:
        args = step.args
        self._build.say(f"[{number}] {step.type} {' '.join(args)}", step=number)
        if step.type == "ENV" and len(args) % 2 == 0:
            self.env.update(zip(args[::2], args[1::2], strict=True))
        elif step.type == "USER" and args:
            self.user = args[0]
        elif step.type == "WORKDIR" and args:
            self.cwd = self._absolute(args[0])
            owner = ["/bin/sh", "-c", '[ -d "$1" ] || { mkdir -p "$1" && chown "$2" "$1"; }', "sh", self.cwd, self.user]
            await self._run(number, owner, "root", "/")
        elif step.type == "RUN" and args:
            user = args[1] if len(args) > 1 and args[1] else self.user
            await self._run(number, ["/bin/bash", "-l", "-c", args[0]], user, self.cwd)
        elif step.type == "COPY" and len(args) >= 2 and step.files_hash is not None:
            await self._copy(number, args, step.files_hash)
        else:
            raise StepFailed(number, f"the step {step.type!r} with {len(args)} arguments is not known")

    def _absolute(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = ("/root" if self.user == "root" else f"/home/{self.user}") + path[1:]
        slash = "/" if path.endswith("/") else ""
        return posixpath.normpath(posixpath.join(self.cwd, path)).rstrip("/") + slash or "/"

    async def _copy(self, number: str, args: list[str], name: str) -> None:
        path = self._builds.archive(self._build.caller, name)
        if not path.exists():
            raise StepFailed(number, "the files of this step were not uploaded")
        source, target, owner, mode = [*args, "", ""][:4]
        place = f"/tmp/.e2b-{uuid.uuid4().hex}"  # noqa: S108 -- inside, unguessable
        files = self._engine.files.of(self._build.caller, self._sandbox)
        await files.do(lambda keeper: keeper.write(f"{place}.tar", _pieces(path), None, "root"))
        unpack = f'mkdir -m 700 "{place}" && tar -C "{place}" --no-same-owner -xf "{place}.tar" && rm "{place}.tar"'
        await self._run(number, ["/bin/sh", "-c", unpack], "root", "/")
        words = [place, self._absolute(target), posixpath.normpath(source), owner or self.user, mode]
        await self._run(number, ["/bin/bash", "-c", _COPY, "copy", *words], "root", "/")

    async def _run(self, number: str, cmd: list[str], user: str, cwd: str, check: bool = True) -> int:
        request = RunRequest(cmd=cmd, user=user, cwd=cwd, env=dict(self.env))
        try:
            end = await collect(await self._engine.processes.run(self._build.caller, self._sandbox, request))
        except SkerryError as error:
            raise StepFailed(number, error.message) from error
        if check:
            for level, text in (("info", end.stdout), ("warn", end.stderr)):
                for line in text.splitlines():
                    self._build.say(line, level, number)
            if end.exit_code != 0:
                said = (end.stderr or end.stdout).strip().rpartition("\n")[2][:300]
                raise StepFailed(
                    number, f"failed to run command '{cmd[-1][:200]}': exit status {end.exit_code}: {said}"
                )
        return end.exit_code if end.exit_code is not None else -1

    async def start(self, command: str, ready: str) -> None:
        """Check that the start command works: run it until the ready command succeeds."""
        if command:
            words = ["/bin/bash", "-l", "-c", command]
            request = RunRequest(id=START_ID, cmd=words, user=self.user, cwd=self.cwd, env=dict(self.env))
            await self._engine.processes.spawn(self._build.caller, self._sandbox, request)
        ends = time.monotonic() + READY_S
        while ready and await self._run("finalize", ["/bin/bash", "-l", "-c", ready], self.user, self.cwd, False) != 0:
            if time.monotonic() > ends:
                raise StepFailed("finalize", f"the ready command did not succeed within {READY_S:g} s")
            await asyncio.sleep(1)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    with file:
        while data := await asyncio.to_thread(file.read, 1 << 18):
            yield data


def check_template(name: str) -> None:
    if not _TEMPLATE.fullmatch(name):
        raise InvalidRequest(
            f"template: {name[:80]!r} can't be used", hint="1 to 46 lower-case letters, digits, '-', '_', '.'"
        )


async def versions(engine: Engine, caller: Caller, template: str) -> list[SnapshotInfo]:
    """Return the snapshots of a template, the newest first."""
    found = [info for info in await engine.snapshots.list(caller) if (info.name or "").rpartition(MARK)[0] == template]
    return sorted(found, key=lambda info: info.created_at, reverse=True)


async def resolve(engine: Engine, caller: Caller, template: str, tags: bool = True) -> str:
    """Return the image or the snapshot of a template. Tags of templates are ignored."""
    name = template.partition(":")[0] if tags else template
    if NAME.fullmatch(name) and (found := await versions(engine, caller, name)):
        return found[0].name or found[0].id
    try:
        engine.snapshots.image(caller, name)
    except NotFound as error:
        raise NotFound(f"template {template[:80]!r} not found") from error
    return name
