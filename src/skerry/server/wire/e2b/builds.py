"""Template builds: the steps of a template, run in a sandbox; its files become a snapshot of the owner.

Each step that changes files ends with a snapshot, which later builds with the same steps start from. Archives of files
are kept until the server stops, and are unpacked inside the sandbox only.
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
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from skerry.engine.processes.run import collect
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, SkerryError
from skerry.server.http.responses import BodyTooLarge
from skerry.server.wire.e2b.template_store import MARK, TemplateEntry, Templates, check_tags, check_template
from skerry.server.wire.e2b.values import BUILD, moment
from skerry.types import (
    Caller,
    CreateRequest,
    Lifecycle,
    Limits,
    Network,
    Progress,
    PullRequest,
    RunRequest,
    SnapshotRequest,
    parse_reference,
    parse_size,
    readable_size,
)

if TYPE_CHECKING:
    from skerry.engine.engine import Engine

log = logging.getLogger("skerry.server")
MAX_ARCHIVE: Final = 1 << 30
MAX_ARCHIVES: Final = 64  # of one owner
MAX_STORED: Final = 8 << 30  # bytes of the archives of one owner
MAX_UPLOADS: Final = 4  # of one owner, at once
MAX_BUILDS: Final = 4  # of one owner, at once
MAX_KEPT: Final = 100  # builds of one owner with their logs
MAX_LOG: Final = 10_000  # entries
MAX_LOG_TEXT: Final = 1 << 20  # characters
PAGE: Final = 100
BUILD_S: Final = 3600.0
READY_S: Final = 300.0
START_ID: Final = "e2b-start"
_HASH: Final = re.compile(r"[0-9a-zA-Z_-]{1,128}")
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
# Templates have a user `user`, which images of others lack. Only shell built-ins until it is known to be missing.
_ACCOUNT: Final = """
uid=1000
while IFS=: read -r name _ id _; do
  [ "$name" != user ] || exit 0; [ "$id" != "$uid" ] || uid=$((uid + 1000))
done < /etc/passwd
echo "user:x:$uid:$uid::/home/user:/bin/bash" >> /etc/passwd; echo "user:x:$uid:" >> /etc/group
mkdir -p /home/user && chown "$uid:$uid" /home/user
"""


class TemplateStep(Struct, frozen=True, kw_only=True, rename="camel"):
    type: str
    args: list[str] = []
    files_hash: str | None = None
    force: bool = False


class BuildRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """POST /v2/templates/{template}/builds/{build}. `force`: run this step and the following ones, or all steps,
    although an earlier build has run them."""

    from_image: str | None = None
    from_template: str | None = None
    from_image_registry: Any = None
    steps: list[TemplateStep] = []
    start_cmd: str | None = None
    ready_cmd: str | None = None
    force: bool = False


@dataclass
class TemplateBuild:
    """A build and its log."""

    id: str
    template: str
    caller: Caller
    limits: Limits
    tags: tuple[str, ...] = ()
    status: str = "waiting"
    entries: list[dict[str, Any]] = field(default_factory=list)
    reason: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None
    size: int = 0  # of the messages

    def say(self, message: str, level: str = "info", step: str | None = None) -> None:
        message = message[:4096]
        if len(self.entries) < MAX_LOG and self.size + len(message) <= MAX_LOG_TEXT:
            self.size += len(message)
            entry = {"timestamp": moment(time.time()), "message": message, "level": level}
            self.entries.append(entry | ({"step": step} if step is not None else {}))


class StepFailed(SkerryError):
    """A step of a build ended with an error."""

    code = "conflict"

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


class Builds:
    """The builds and the uploaded archives of this server. Both end with it."""

    def __init__(self, engine: Engine, templates: Templates) -> None:
        self._engine, self._templates = engine, templates
        self._builds: dict[str, TemplateBuild] = {}
        self._uploads: Counter[str] = Counter()  # under way, by their owners

    @property
    def _files(self) -> Path:
        return self._engine.settings.state_dir / "e2b-uploads"

    def clear(self) -> None:
        """Remove the archives that an earlier server left."""
        shutil.rmtree(self._files, ignore_errors=True)

    async def recover(self) -> None:
        """Delete the sandboxes of builds that ended with an earlier server."""
        known = self._builds.keys()
        for sandbox in list(self._engine.registry):
            info = sandbox.record.info()
            if BUILD in info.labels and info.labels[BUILD] not in known:
                caller = Caller(owner=info.owner, scope="use")
                with contextlib.suppress(SkerryError):
                    await self._engine.adoption.wait(caller, info.id)
                    await self._engine.sandboxes.delete(caller, info.id, force=True, purge=True)

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
        if self._uploads[caller.owner] >= MAX_UPLOADS:
            raise QuotaExceeded(f"more than {MAX_UPLOADS} uploads at once", hint="wait until one ends")
        self._uploads[caller.owner] += 1
        try:
            await self._write(path, chunks)
        finally:
            self._uploads -= Counter([caller.owner])  # drops owners without one
        await asyncio.to_thread(_drop_oldest, path)

    async def _write(self, path: Path, chunks: AsyncIterator[bytes]) -> None:
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
                    await asyncio.to_thread(self._append, file, chunk)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)

    def _append(self, file: BinaryIO, chunk: bytes) -> None:
        file.write(chunk)
        file.flush()
        disk = os.fstatvfs(file.fileno())
        free, kept = disk.f_bavail * disk.f_frsize, parse_size(self._engine.settings["storage.min_free_space"])
        if free < kept:
            raise QuotaExceeded(
                f"the server's disk is almost full: {readable_size(free)} free,"
                f" of which {readable_size(kept)} stay free",
                hint="free space on the server's disk; the setting is storage.min_free_space",
                details={"setting": "storage.min_free_space", "free": free},
            )

    # -- builds -------------------------------------------------------------------------------------------------------

    def add(self, caller: Caller, template: str, limits: Limits, tags: tuple[str, ...]) -> TemplateBuild:
        check_template(template)
        check_tags(tags)
        owned = [name for name, one in self._builds.items() if one.caller.owner == caller.owner]
        ended = [name for name in owned if self._builds[name].status != "building"]  # others are few
        for name in ended[: max(0, len(owned) + 1 - MAX_KEPT)]:
            del self._builds[name]
        build = TemplateBuild(str(uuid.uuid4()), template, caller, limits, tags)
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
        image = await self._base(build, request)
        start = await self._cached(build, request, image)
        build.say(f"Building template {build.template} from {image}")
        sandbox = await self._engine.sandboxes.create(
            build.caller,
            CreateRequest(
                image=start.image, limits=build.limits, labels={BUILD: build.id}, network=Network(allow=("*:*",)),
                lifecycle=Lifecycle(idle_timeout="never", max_lifetime=BUILD_S + 60),
            ),
        )  # fmt: skip
        work = StepRunner(self._engine, self, build, sandbox.id)
        try:
            if start.image == image:
                await work.add_user()
            for number, step in enumerate(request.steps, 1):
                if number <= start.steps:
                    work.skip(str(number), step)
                    continue
                await work.step(str(number), step)
                if step.type in CHANGING:
                    wanted = SnapshotRequest(key=start.keys[number - 1], replace=True)
                    await self._engine.snapshots.take(build.caller, sandbox.id, wanted)
            if request.start_cmd or request.ready_cmd:
                await work.start(request.start_cmd or "", request.ready_cmd or "")
            command = ("/bin/bash", "-l", "-c", request.start_cmd) if request.start_cmd else ()
            name = f"{build.template}{MARK}{time.time_ns() // 1000:x}"
            wanted = SnapshotRequest(name=name, env=work.env, user=work.user, cwd=work.cwd, cmd=command)
            made = await self._engine.snapshots.take(build.caller, sandbox.id, wanted)
            entry = TemplateEntry(build=build.id, limits=build.limits, tags=build.tags)
            await self._templates.add(build.caller, build.template, made, entry)
            build.say(f"Build finished: snapshot {made.id}")
        finally:
            with contextlib.suppress(NotFound):
                await self._engine.sandboxes.delete(build.caller, sandbox.id, force=True, purge=True)

    async def _cached(self, build: TemplateBuild, request: BuildRequest, image: str) -> BuildStart:
        """Return the point to start from: the snapshot of the last step that an earlier build with the same base and
        the same steps has run."""
        base, _ = self._engine.snapshots.image(build.caller, image)
        keys = step_keys(base.digest, request.steps)
        forced = [number for number, step in enumerate(request.steps) if step.force or request.force]
        for number in range(min(forced, default=len(keys)), 0, -1):
            if request.steps[number - 1].type in CHANGING:
                found = await self._engine.snapshots.list(build.caller, key=keys[number - 1])
                if found:
                    return BuildStart(found[0].id, number, keys)
        return BuildStart(image, 0, keys)

    async def _base(self, build: TemplateBuild, request: BuildRequest) -> str:
        """Return the image or the snapshot that a build starts from."""
        if request.from_image_registry:
            raise InvalidRequest(
                "fromImageRegistry: not supported by this server: its images are visible to all owners",
                hint="have the operator pull the image: `skerry image pull`",
            )
        if request.from_template is not None:
            return (await self._templates.resolve(build.caller, request.from_template)).image
        name = request.from_image or "base"
        known = _IMAGES.get(name.partition(":")[0])
        if known is not None:
            return (await self._templates.resolve(build.caller, known)).image
        if self._templates.has_image(build.caller, name):
            return name
        return await self._pull(build, name)

    async def _pull(self, build: TemplateBuild, name: str) -> str:
        """Pull an image for a build. A pull connects from the server to a registry that the request names, and its
        image is visible to all owners; so it needs an administrator's token, or the operator's permission."""
        reference = parse_reference(name)
        if build.caller.scope != "admin" and reference.registry not in self._engine.settings["server.wire_registries"]:
            raise NotFound(
                f"image {name[:80]!r} not found",
                hint=f"have the operator pull it, `skerry image pull {name[:80]}`, or add {reference.registry} to "
                "server.wire_registries",
            )
        build.say(f"Pulling {name}")
        shown = ""
        async for event in self._engine.images.pull(PullRequest(reference=name)):
            if isinstance(event, Progress) and event.stage != shown:
                shown = event.stage
                build.say(f"{event.stage}: {event.message}", "debug")
        return name


def _drop_oldest(newest: Path) -> None:
    """Remove archives of an owner beyond the bounds, but never the newest."""
    found = [(one, one.stat()) for one in newest.parent.glob("[!.]*")]
    found.sort(key=lambda one: one[1].st_mtime_ns, reverse=True)
    size = 0
    for number, (one, stat) in enumerate(found):
        size += stat.st_size
        if one != newest and (number >= MAX_ARCHIVES or size > MAX_STORED):
            one.unlink(missing_ok=True)


CHANGING: Final = ("RUN", "COPY")  # the steps that change files; WORKDIR does so with the next of them


@dataclass(frozen=True)
class BuildStart:
    """The image that a build starts from, the number of steps that are in it, and the keys of all steps."""

    image: str
    steps: int
    keys: list[str]


def step_keys(base: str, steps: list[TemplateStep]) -> list[str]:
    """Return a key for each step, which names its base and all steps up to it."""
    keys = []
    digest = hashlib.sha256(f"e2b {base}".encode()).hexdigest()
    for step in steps:
        words = msgspec.json.encode([digest, step.type, step.args, step.files_hash])
        digest = hashlib.sha256(words).hexdigest()
        keys.append(f"e2b{digest}")
    return keys


class StepRunner:
    """Runs the steps of one build. `user`, `cwd` and `env` apply to the next step, and to sandboxes of the template."""

    def __init__(self, engine: Engine, builds: Builds, build: TemplateBuild, sandbox: str) -> None:
        self._engine, self._builds, self._build, self._sandbox = engine, builds, build, sandbox
        self.user, self.cwd = "user", "/home/user"
        self.env: dict[str, str] = {}

    async def step(self, number: str, step: TemplateStep) -> None:
        args = step.args
        self._build.say(f"[{number}] {step.type} {' '.join(args)}", step=number)
        self._settings(step)
        if step.type == "WORKDIR" and args:
            owner = ["/bin/sh", "-c", '[ -d "$1" ] || { mkdir -p "$1" && chown "$2" "$1"; }', "sh", self.cwd, self.user]
            await self._run(number, owner, "root", "/")
        elif step.type == "RUN" and args:
            user = args[1] if len(args) > 1 and args[1] else self.user
            await self._run(number, ["/bin/bash", "-l", "-c", args[0]], user, self.cwd)
        elif step.type == "COPY" and len(args) >= 2 and step.files_hash is not None:
            await self._copy(number, args, step.files_hash)
        elif not (step.type == "ENV" and len(args) % 2 == 0) and not (step.type == "USER" and args):
            raise StepFailed(number, f"the step {step.type!r} with {len(args)} arguments is not known")

    async def add_user(self) -> None:
        await self._run("base", ["/bin/sh", "-c", _ACCOUNT], "root", "/")

    def skip(self, number: str, step: TemplateStep) -> None:
        """Apply the settings of a step that an earlier build has run."""
        self._build.say(f"[{number}] CACHED {step.type} {' '.join(step.args)}", step=number)
        self._settings(step)

    def _settings(self, step: TemplateStep) -> None:
        args = step.args
        if step.type == "ENV" and len(args) % 2 == 0:
            self.env.update(zip(args[::2], args[1::2], strict=True))
        elif step.type == "USER" and args:
            self.user = args[0]
        elif step.type == "WORKDIR" and args:
            self.cwd = self._absolute(args[0])

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
            message = error.message
            if message.startswith(f'user "{user}" not found'):  # as E2B says it
                message = f"command failed: unauthenticated: invalid username: '{user}'"
            raise StepFailed(number, f"failed to run command '{cmd[-1][:200]}': {message}") from error
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
