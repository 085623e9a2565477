"""Code of languages without contexts: written to a file, compiled if need be, run, and removed.

Its files are in a directory of the run's own, which is its user's and nobody else's inside. It goes with the run,
however that ends; one that a stopped sandbox or a killed server left behind goes when such code is run there again."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from skerry.code import failures
from skerry.code.failures import COMPILE_ERROR
from skerry.code.table import Language
from skerry.engine.code_runs import code_end
from skerry.engine.contexts import Asked
from skerry.engine.languages import Languages, missing
from skerry.engine.live import Live
from skerry.engine.made import made
from skerry.engine.processes import Processes
from skerry.engine.runs import Kept, Run, Stream
from skerry.errors import SandboxUnavailable, SetupFailed, SkerryError
from skerry.keeper import Keeper
from skerry.types import CodeEnd, CodeError, MadeFile, RunRequest, RunResult

ROOT: Final = "/tmp"  # noqa: S108 -- of the sandbox
_PLACE: Final = re.compile(r"skerry-code-[0-9a-f]{16}")
_SUPERUSER: Final = "0"
_GONE_WITHIN: Final = 10.0
_SWEPT_MOST: Final = 256
_LEAST_S: Final = 0.001


class CodeFiles:
    """`spawn` does work beside."""

    def __init__(
        self, processes: Processes, languages: Languages, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._processes = processes
        self._languages = languages
        self._spawn = spawn
        self._places: WeakKeyDictionary[Keeper, set[str]] = WeakKeyDictionary()  # of runs that are under way

    async def run(self, asked: Asked) -> FileRun:
        """Returns once its first program runs. Raises SetupFailed if there is no such program."""
        known = self._places.get(asked.keeper)
        place = f"{ROOT}/skerry-code-{secrets.token_hex(8)}"
        places = self._places.setdefault(asked.keeper, set())
        places.add(place)
        try:
            if known is None:
                await _sweep(asked.keeper, places)
            version = asked.version or await self._languages.version(
                asked.live, asked.keeper, asked.language, asked.request.user
            )
            run = FileRun(asked, version, place, await _write(asked, place), self)
            await run.begin()
        except BaseException:
            self.clear(asked, place, None)
            raise
        return run

    async def start(self, asked: Asked, request: RunRequest, again: bool) -> Run:
        show = f"{asked.language.name}: {first_line(asked.request.code)}"
        return await self._processes.run(asked.caller, asked.live.row.id, request, show=show, again=again)

    def clear(self, asked: Asked, place: str, run: Run | None) -> None:
        """Beside: nobody who has left is waited for."""
        self._spawn(self.cleared(asked, place, run))

    async def cleared(self, asked: Asked, place: str, run: Run | None) -> None:
        """A run that is cut off is killed; what it still writes until then has to go too."""
        if run is not None and not run.ended:
            await _gone(asked.live, asked.keeper, run.id)
        with contextlib.suppress(SkerryError):
            await asked.keeper.files.remove(place, recursive=True, user=_SUPERUSER)
        self._places.get(asked.keeper, set()).discard(place)


class FileRun:
    """Iterate for what comes; then `end()`. `id`: the program that runs now, or ran last. What a compiler says is
    stderr; how long it takes is taken from the time that the code has, and all else that is measured is the code's."""

    def __init__(self, asked: Asked, version: str | None, place: str, since: int, files: CodeFiles) -> None:
        """`since`: nanoseconds of the sandbox's clock, before anything of it ran."""
        self._since = since
        self.id, self.pid, self.offset = "", 0, 0
        self._asked, self._language, self._request = asked, asked.language, asked.request
        self._version, self._place, self._files = version, place, files
        self._began = time.monotonic()
        self._said = Kept(2 * failures.READ_MOST)
        self._run: Run | None = None
        self._end: CodeEnd | None = None
        self._open = True

    @property
    def _running(self) -> Run:
        if self._run is None:
            raise SandboxUnavailable("it has not begun")
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
            self._said = Kept(2 * failures.READ_MOST)
            await self._step(self._program(), again=True)
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
        """Idempotent. What is unfinished is killed."""
        if self._open:
            self._open = False
            if self._run is not None:
                await self._run.aclose()
            if self._end is None:
                self._files.clear(self._asked, self._place, self._run)

    # -- its steps ----------------------------------------------------------------------------------------------------

    @property
    def _env(self) -> dict[str, str | None]:
        return {**self._language.environment(self._place), **self._request.env}

    def _program(self) -> RunRequest:
        request = self._request
        return RunRequest(
            cmd=self._language.filled(self._language.run, self._place, near=False), env=self._env, user=request.user,
            cwd=request.cwd or self._asked.live.row.spec.cwd, stdin_base64=request.input,
        )  # fmt: skip

    async def _step(self, request: RunRequest, again: bool = False) -> None:
        """A program that could not be executed has no pid: then it is not one that the code is to blame for."""
        if self._request.timeout is not None:
            left = self._request.timeout - (time.monotonic() - self._began)
            request = replace(request, timeout=max(left, _LEAST_S))
        self._run = await self._files.start(self._asked, request, again)
        self.id, self.pid = self._run.id, self._run.pid
        if self._run.pid == 0 and isinstance(request.cmd, list) and not request.cmd[0].startswith(self._place):
            raise await _not_there(self._language, request.cmd[0], self._run)

    def _not_compiled(self, result: RunResult) -> CodeError | None:
        if result.timed_out or result.signal is not None:
            return failures.of_program(self._language, result, self._printed, self._place)
        return failures.of_compiler(self._language, self._printed, self._place)

    @property
    def _printed(self) -> str:
        return self._said.value().decode("utf-8", "replace")

    async def _finish(self, result: RunResult, error: CodeError | None) -> None:
        await self._running.aclose()
        await self._files.cleared(self._asked, self._place, self._run)
        puzzling = error is not None and not result.timed_out and (error.name == COMPILE_ERROR or error.line is None)
        note = self._language.note if puzzling else None
        hint = "; ".join(text for text in (result.hint, note) if text)
        files, more = await self._made()
        self._end = code_end(
            replace(result, hint=hint or None), language=self._language.name, version=self._version, error=error,
            files=files, files_cut=more,
        )  # fmt: skip

    async def _made(self) -> tuple[tuple[MadeFile, ...], bool]:
        request = self._request
        if not request.files:
            return (), False
        spec = self._asked.live.row.spec
        return await made(self._asked.keeper, request.cwd or spec.cwd, self._since, request.user or spec.user)


def first_line(code: str) -> str:
    """What a list shows of code."""
    line = next((line.strip() for line in code.splitlines() if line.strip()), "")
    return line if len(line) <= 200 else f"{line[:199]}…"


async def _write(asked: Asked, place: str) -> int:
    """The directory and the code in it; the sandbox's time then, for what is younger than it."""
    user, code = asked.request.user, asked.request.code.encode()
    await asked.keeper.files.mkdir(place, mode=0o700, user=user)
    written = await asked.keeper.files.write(f"{place}/{asked.language.file}", code, mode=0o600, user=user)
    return int((written.mtime - 1e-6) * 1e9)  # a float holds no nanoseconds


async def _not_there(language: Language, program: str, run: Run) -> SetupFailed:
    said = Kept(4 << 10)
    async for _, data in run:
        said.add(data)
    await run.aclose()
    if run.result().exit_code == 127:
        return missing(language, program)
    why = said.value().decode("utf-8", "replace").strip()[:500]
    return SetupFailed(
        f"{program} can't be executed in this sandbox: {why}", hint=f"{language.name} comes with {language.needs}"
    )


async def _gone(live: Live, keeper: Keeper, process: str) -> None:
    end = live.work.end_of(process)
    try:
        if (await keeper.process(process)).state == "running":
            await asyncio.wait((end,), timeout=_GONE_WITHIN)
    except SkerryError:
        pass
    finally:
        end.cancel()


async def _sweep(keeper: Keeper, places: set[str]) -> None:
    """What runs left behind that nobody could clear up after."""
    with contextlib.suppress(SkerryError):
        found = (await keeper.files.list(ROOT, user=_SUPERUSER)).entries
        old = [entry.name for entry in found if entry.type == "directory" and _PLACE.fullmatch(entry.name)]
        for place in (f"{ROOT}/{name}" for name in old[:_SWEPT_MOST]):
            if place not in places:
                await keeper.files.remove(place, recursive=True, user=_SUPERUSER)
