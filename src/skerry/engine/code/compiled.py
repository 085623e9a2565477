"""Code of languages without contexts: written to a file, compiled if need be, run, and removed.

The files are in a directory of the run, which only its user can read. It is removed with the run, however that ends; a
directory that a stopped sandbox or a killed server left behind is removed when such code runs there again."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator
from typing import Final
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from skerry.code import failures
from skerry.code.failures import COMPILE_ERROR
from skerry.code.languages import Language
from skerry.codecs.output import HeadAndTail
from skerry.engine.code.changed_files import changed_files
from skerry.engine.code.contexts import CodeJob
from skerry.engine.code.languages import LanguageService, toolchain_missing
from skerry.engine.code.run import code_end
from skerry.engine.processes.run import Run, Stream
from skerry.engine.processes.service import ProcessService
from skerry.engine.sandboxes.sandbox import Sandbox
from skerry.engine.tasks import Tasks
from skerry.errors import SandboxUnavailable, SkerryError, ToolchainMissing
from skerry.keeper import Keeper
from skerry.types import CodeEnd, CodeError, OutputFile, RunRequest, RunResult

ROOT: Final = "/tmp"  # noqa: S108 -- of the sandbox
_PLACE: Final = re.compile(r"skerry-code-[0-9a-f]{16}")
_SUPERUSER: Final = "0"
_EXIT_TIMEOUT_S: Final = 10.0
_MAX_SWEPT: Final = 256
_MIN_TIMEOUT_S: Final = 0.001


class FileRunner:
    def __init__(self, processes: ProcessService, languages: LanguageService, tasks: Tasks) -> None:
        self._processes, self._languages, self._tasks = processes, languages, tasks
        self._places: WeakKeyDictionary[Keeper, set[str]] = WeakKeyDictionary()  # of runs that are under way

    async def run(self, job: CodeJob) -> FileRun:
        """Start the code. Return once its first program runs; raise ToolchainMissing if the program does not exist."""
        known = self._places.get(job.keeper)
        place = f"{ROOT}/skerry-code-{secrets.token_hex(8)}"
        places = self._places.setdefault(job.keeper, set())
        places.add(place)
        try:
            if known is None:
                await _sweep(job.keeper, places)
            version = job.version or await self._languages.version(
                job.sandbox, job.keeper, job.language, job.request.user
            )
            run = FileRun(job, version, place, await _write(job, place), self)
            await run.begin()
        except BaseException:
            self.clear(job, place, None)
            raise
        return run

    async def start(self, job: CodeJob, request: RunRequest, again: bool) -> Run:
        show = f"{job.language.name}: {first_line(job.request.code)}"
        return await self._processes.start(job.caller, job.sandbox.record.id, request, show=show, again=again)

    def clear(self, job: CodeJob, place: str, run: Run | None) -> None:
        """Remove the files in the background, so that a cancelled caller is not delayed."""
        self._tasks.spawn(self.cleared(job, place, run))

    async def cleared(self, job: CodeJob, place: str, run: Run | None) -> None:
        """Remove the files. An interrupted run is killed; files that it still writes until then are removed too."""
        if run is not None and not run.ended:
            await _wait_exit(job.sandbox, job.keeper, run.id)
        with contextlib.suppress(SkerryError):
            await job.keeper.files.remove(place, recursive=True, user=_SUPERUSER)
        self._places.get(job.keeper, set()).discard(place)


class FileRun:
    """Iterate for the output; then `end()`. `id`: the current or last program. Output of the compiler is stderr; its
    time counts towards the timeout, and all other measurements are those of the program."""

    def __init__(self, job: CodeJob, version: str | None, place: str, since: int, files: FileRunner) -> None:
        """`since`: nanoseconds of the sandbox's clock, before anything of it ran."""
        self._since = since
        self.id, self.pid, self.offset = "", 0, 0
        self._job, self._language, self._request = job, job.language, job.request
        self._version, self._place, self._files = version, place, files
        self._began = time.monotonic()
        self._said = HeadAndTail(2 * failures.MAX_TEXT)
        self._run: Run | None = None
        self._end: CodeEnd | None = None
        self._open = True

    @property
    def _running(self) -> Run:
        if self._run is None:
            raise SandboxUnavailable("the run has not started")
        return self._run

    async def begin(self) -> None:
        if self._language.compile:
            words = self._language.filled(self._language.compile, self._place)
            await self._step(RunRequest(cmd=words, cwd=self._place, env=self._env, user=self._request.user))
        else:
            await self._step(self._program())

    async def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        before: RunResult | None = None
        if self._language.compile:
            async for _, data in self._running:
                self._said.add(data)
                yield "stderr", data
            before = self._running.result()
            if before.exit_code != 0 or before.timed_out:
                await self._finish(before, self._not_compiled(before))
                return
            await self._running.aclose()
            self._said = HeadAndTail(2 * failures.MAX_TEXT)
            await self._step(self._program(), again=True)
            yield "stdout", b""  # a reader that forwards signals gets the new `id` before any output
        async for name, data in self._running:
            if name == "stderr":
                self._said.add(data)
            yield name, data
        result = self._running.result()
        if before is not None:
            result = replace(result, denied=(*before.denied, *result.denied))
        await self._finish(result, failures.of_program(self._language, result, self._printed, self._place))

    def end(self) -> CodeEnd:
        if self._end is None:
            raise SandboxUnavailable("the run's end is not known")
        return self._end

    async def aclose(self) -> None:
        """Idempotent. An unfinished program is killed."""
        if self._open:
            self._open = False
            if self._run is not None:
                await self._run.aclose()
            if self._end is None:
                self._files.clear(self._job, self._place, self._run)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def _env(self) -> dict[str, str | None]:
        return {**self._language.environment(self._place), **self._request.env}

    def _program(self) -> RunRequest:
        request = self._request
        return RunRequest(
            cmd=self._language.filled(self._language.run, self._place, near=False), env=self._env, user=request.user,
            cwd=self._job.sandbox.record.spec.directory(request.cwd), stdin_base64=request.input,
        )  # fmt: skip

    async def _step(self, request: RunRequest, again: bool = False) -> None:
        """Start one program. A program that could not be executed has no pid; that is not an error in the code."""
        if self._request.timeout is not None:
            left = self._request.timeout - (time.monotonic() - self._began)
            request = replace(request, timeout=max(left, _MIN_TIMEOUT_S))
        self._run = await self._files.start(self._job, request, again)
        self.id, self.pid = self._run.id, self._run.pid
        if self._run.pid == 0 and isinstance(request.cmd, list) and not request.cmd[0].startswith(self._place):
            raise await _toolchain_error(self._language, request.cmd[0], self._run)

    def _not_compiled(self, result: RunResult) -> CodeError | None:
        if result.timed_out or result.signal is not None:
            return failures.of_program(self._language, result, self._printed, self._place)
        return failures.of_compiler(self._language, self._printed, self._place)

    @property
    def _printed(self) -> str:
        return self._said.value().decode("utf-8", "replace")

    async def _finish(self, result: RunResult, error: CodeError | None) -> None:
        await self._running.aclose()
        await self._files.cleared(self._job, self._place, self._run)
        puzzling = error is not None and not result.timed_out and (error.name == COMPILE_ERROR or error.line is None)
        note = self._language.note if puzzling else None
        hint = "; ".join(text for text in (result.hint, note) if text)
        files, more = await self._made()
        self._end = code_end(
            replace(result, hint=hint or None), language=self._language.name, version=self._version, error=error,
            files=files, files_cut=more,
        )  # fmt: skip

    async def _made(self) -> tuple[tuple[OutputFile, ...], bool]:
        request = self._request
        if not request.files:
            return (), False
        spec = self._job.sandbox.record.spec
        place = spec.directory(request.cwd)
        return await changed_files(self._job.keeper, place, self._since, request.user or spec.user)


def first_line(code: str) -> str:
    """Return the line of code that lists show."""
    line = next((line.strip() for line in code.splitlines() if line.strip()), "")
    return line if len(line) <= 200 else f"{line[:199]}…"


async def _write(job: CodeJob, place: str) -> int:
    """Create the directory and write the code. Return the sandbox's time, to find files that are younger."""
    user, code = job.request.user, job.request.code.encode()
    await job.keeper.files.mkdir(place, mode=0o700, user=user)
    written = await job.keeper.files.write(f"{place}/{job.language.file}", code, mode=0o600, user=user)
    return int((written.mtime - 1e-6) * 1e9)  # a float holds no nanoseconds


async def _toolchain_error(language: Language, program: str, run: Run) -> ToolchainMissing:
    said = HeadAndTail(4 << 10)
    async for _, data in run:
        said.add(data)
    await run.aclose()
    if run.result().exit_code == 127:
        return toolchain_missing(language, program)
    why = said.value().decode("utf-8", "replace").strip()[:500]
    return ToolchainMissing(
        f"{program} can't be executed in this sandbox: {why}", hint=f"{language.name} comes with {language.needs}"
    )


async def _wait_exit(sandbox: Sandbox, keeper: Keeper, process: str) -> None:
    end = sandbox.activity.end_of(process)
    try:
        if (await keeper.process(process)).state == "running":
            await asyncio.wait((end,), timeout=_EXIT_TIMEOUT_S)
    except SkerryError:
        pass
    finally:
        end.cancel()


async def _sweep(keeper: Keeper, places: set[str]) -> None:
    """Remove directories of runs that could not be cleaned up."""
    with contextlib.suppress(SkerryError):
        found = (await keeper.files.list(ROOT, user=_SUPERUSER)).entries
        old = [entry.name for entry in found if entry.type == "directory" and _PLACE.fullmatch(entry.name)]
        for place in (f"{ROOT}/{name}" for name in old[:_MAX_SWEPT]):
            if place not in places:
                await keeper.files.remove(place, recursive=True, user=_SUPERUSER)
