"""`sandbox.code`: run code and get values; contexts keep variables, imports and functions."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from skerry.client.create_options import texts
from skerry.client.results.code import (
    CharacterJoiner,
    CodeCollector,
    CodeEventBase,
    CodeResultBase,
    CodeValue,
    check_code,
    fields_of,
)
from skerry.client.results.command import Output, StreamName
from skerry.client.results.file_info import with_decoded_path
from skerry.client.transport import backend_async as backend
from skerry.client.transport.requests import code as requests
from skerry.client.transport.requests import sandboxes
from skerry.client.transport.requests.code import Input, code_request, context_settings
from skerry.client.transport.responses import StartedFrame, decode, error_frame
from skerry.codecs.frames import ERROR, EXIT, OUTPUT, RESULT, STARTED, STDOUT, FrameDecoder
from skerry.errors import Conflict, SandboxUnavailable
from skerry.types import (
    CodeEnd,
    CodeRequest,
    ContextInfo,
    ContextList,
    ContextRequest,
    LanguageInfo,
    LanguageList,
    OutputFile,
)

if TYPE_CHECKING:
    from skerry.client._async.files import AsyncFiles
    from skerry.client._async.sandbox import AsyncSandbox


class AsyncReadableFile(OutputFile, frozen=True, kw_only=True, dict=True):
    """A file that code created or changed. It can be read while it and its sandbox exist."""

    @classmethod
    def _of(cls, sandbox: AsyncSandbox, file: OutputFile) -> AsyncReadableFile:
        made = cls(**fields_of(file))
        made.__dict__["_sandbox"] = sandbox  # not a field: neither shown nor compared
        return made

    @property
    def _files(self) -> AsyncFiles:
        sandbox: AsyncSandbox = self.__dict__["_sandbox"]
        return sandbox.files

    async def read_bytes(self, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return its content, or the part from `offset` on, at most `length` bytes."""
        return await self._files.read_bytes(self.path, offset=offset, length=length)

    async def read_text(self, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        return await self._files.read_text(self.path, encoding=encoding, errors=errors)

    def stream(self) -> AsyncIterator[bytes]:
        """Yield its bytes in pieces, for files larger than memory."""
        return self._files.stream(self.path)

    async def download(self, to: str | os.PathLike[str]) -> None:
        """Download it to a path of this host; an existing file is replaced."""
        await self._files.download(self.path, to)


class AsyncCodeResult(CodeResultBase, frozen=True, kw_only=True):
    """The result of code: `text results error stdout stderr files …`, and the fields of a command's result.

    result = await sandbox.code.run("import math; math.pi")
    result.text  # "3.141592653589793"
    """

    files: tuple[AsyncReadableFile, ...] = ()


class AsyncCodeEvent(CodeEventBase, frozen=True, kw_only=True):
    __doc__ = CodeEventBase.__doc__
    end: AsyncCodeResult | None = None


class AsyncCode:
    """Runs code and returns its output, values, pictures and files.

    Without `context` it runs in the default context of its language, so that variables, imports and functions last
    between calls; with `fresh` in a new memory that is discarded. A language without contexts is compiled and run.
    `cwd`, `env` and `user` apply to `fresh` and to such a language: a context has its own.
    """

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run(
        self,
        code: str,
        language: str | None = None,
        *,
        context: str | AsyncContext | None = None,
        fresh: bool = False,
        stdin: Input | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        on_start: backend.Callback[AsyncCodeRun] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> AsyncCodeResult:
        """Run code to its end; the default language is python. `stdin` is its whole input; without it `input()` fails
        at once.

        An error of the code or a timeout is a result, not an exception, unless `check` is set. `on_output` is called
        for each piece of output, `on_start` once the code runs, with its `id` and a method `signal()` that any thread
        or task may call. `env`: variables of this run (None unsets); `cwd` and `user` only with `fresh`.
        Interrupting or cancelling this call interrupts the code too.
        """
        payload = _code_request(
            code, language, context, stdin, timeout, fresh=fresh, **context_settings(cwd, env, user)
        )
        return await run_code(self._sandbox, payload, check, on_output, on_start)

    def stream(
        self,
        code: str,
        language: str | None = None,
        *,
        context: str | AsyncContext | None = None,
        fresh: bool = False,
        stdin: Input | None = None,
        timeout: float | None = 300,
        on_start: backend.Callback[AsyncCodeRun] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> AsyncIterator[AsyncCodeEvent]:
        """Run code and yield events of type `stdout`, `stderr`, `result`, `error`, and finally `end` with the whole
        result in `event.end`. Leaving early interrupts the code. `on_start` is as in `run`."""
        payload = _code_request(
            code, language, context, stdin, timeout, fresh=fresh, **context_settings(cwd, env, user)
        )
        return events(self._sandbox, payload, on_start)

    async def context(
        self,
        language: str = "python",
        name: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> AsyncContext:
        """Create a context. Raise Conflict if the name is taken; the default name is generated."""
        payload = ContextRequest(language=language, name=name, **context_settings(cwd, env, user))
        sandbox = self._sandbox
        info = await sandbox.client.request_json(requests.open_context(sandbox.id, payload), ContextInfo)
        return AsyncContext(sandbox, info)

    async def get(self, name: str) -> AsyncContext:
        """Return an existing context. The default context of a language has the language's name."""
        sandbox = self._sandbox
        return AsyncContext(sandbox, await sandbox.client.request_json(requests.context(sandbox.id, name), ContextInfo))

    async def contexts(self) -> builtins.list[AsyncContext]:
        """Return all contexts, the default ones included."""
        sandbox = self._sandbox
        answer = await sandbox.client.request_json(requests.contexts(sandbox.id), ContextList)
        return [AsyncContext(sandbox, info) for info in answer.contexts]

    async def languages(self) -> builtins.list[LanguageInfo]:
        """Return the languages that the server knows, with the versions found in this sandbox."""
        sandbox = self._sandbox
        return (await sandbox.client.request_json(requests.languages(sandbox.id), LanguageList)).languages


class AsyncContext:
    """A memory for one language: `sandbox.code.context("python")`. Its runs are sequential.

        await context.run("x = 6")
        (await context.run("x * 7")).text  # "42"

    If it dies (a crash, out of memory, a timeout that could not be interrupted), the result reports it; the next run
    starts with an empty memory and reports that too.
    """

    def __init__(self, sandbox: AsyncSandbox, info: ContextInfo) -> None:
        self._sandbox = sandbox
        self._info = info

    def __repr__(self) -> str:
        return f"<AsyncContext {self.name} of {self.language}>"

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def language(self) -> str:
        return self._info.language

    @property
    def cached_info(self) -> ContextInfo:
        """The last known information; `.info()` requests it again."""
        return self._info

    async def info(self) -> ContextInfo:
        """Request the current information from the server."""
        sandbox = self._sandbox
        self._info = await sandbox.client.request_json(requests.context(sandbox.id, self.name), ContextInfo)
        return self._info

    async def run(
        self,
        code: str,
        *,
        stdin: Input | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        env: Mapping[str, str | None] = {},
    ) -> AsyncCodeResult:
        """Run code in it, like `sandbox.code.run`, after other code of this context. `env`: variables of this run."""
        payload = code_request(code, None, stdin, timeout, context=self.name, env=texts(env, "env"))
        return await run_code(self._sandbox, payload, check, on_output)

    def stream(
        self, code: str, *, stdin: Input | None = None, timeout: float | None = 300
    ) -> AsyncIterator[AsyncCodeEvent]:
        """Run code in it and yield events; see `sandbox.code.stream`."""
        return events(self._sandbox, code_request(code, None, stdin, timeout, context=self.name))

    async def interrupt(self) -> None:
        """Interrupt the running code, like Ctrl-C; the memory stays."""
        await self._act("interrupt")

    async def restart(self) -> None:
        """Restart with an empty memory."""
        await self._act("restart")

    async def delete(self) -> None:
        """Delete the context and end its running code."""
        await self._sandbox.client.request(requests.context(self._sandbox.id, self.name, "DELETE"))

    async def _act(self, verb: str) -> None:
        await self._sandbox.client.request(requests.act(self._sandbox.id, self.name, verb))


def _code_request(
    code: str,
    language: str | None,
    context: str | AsyncContext | None,
    stdin: Input | None,
    timeout: float | None,
    **more: Any,
) -> CodeRequest:
    """Return the request; without a context and a language it is python."""
    name = context.name if isinstance(context, AsyncContext) else context
    if name is None and language is None:
        language = "python"
    return code_request(code, language, stdin, timeout, context=name, **more)


async def run_code(
    sandbox: AsyncSandbox,
    request: CodeRequest,
    check: bool,
    on_output: backend.Callback[Output] | None,
    on_start: backend.Callback[AsyncCodeRun] | None = None,
) -> AsyncCodeResult:
    running, decoder, offset = AsyncCodeRun(sandbox, on_start), FrameDecoder(), 0
    async with sandbox.client.stream(requests.run(sandbox.id, request)) as chunks:
        async for chunk in chunks:
            for kind, payload in decoder.feed(chunk):
                await running.take(kind, payload)
                if kind in OUTPUT and on_output is not None:
                    offset += len(payload)
                    await backend.deliver(on_output, Output(stream=_stream(kind), data=payload, offset=offset))
    result = running.result()
    if check:
        check_code(result)
    return result


async def events(
    sandbox: AsyncSandbox, request: CodeRequest, on_start: backend.Callback[AsyncCodeRun] | None = None
) -> AsyncIterator[AsyncCodeEvent]:
    running, decoder = AsyncCodeRun(sandbox, on_start), FrameDecoder()
    between: dict[StreamName, CharacterJoiner] = {"stdout": CharacterJoiner(), "stderr": CharacterJoiner()}
    async with sandbox.client.stream(requests.run(sandbox.id, request)) as chunks:
        async for chunk in chunks:
            for kind, payload in decoder.feed(chunk):
                value = await running.take(kind, payload)
                if value is not None:
                    yield AsyncCodeEvent(type="result", result=value)
                elif kind in OUTPUT and (whole := between[_stream(kind)].whole(payload)):
                    yield AsyncCodeEvent(type=_stream(kind), data=whole)
    for stream, pieces in between.items():
        if rest := pieces.rest():
            yield AsyncCodeEvent(type=stream, data=rest)
    result = running.result()
    if result.error is not None:
        yield AsyncCodeEvent(type="error", error=result.error)
    yield AsyncCodeEvent(type="end", end=result)


def _stream(kind: int) -> StreamName:
    return "stdout" if kind == STDOUT else "stderr"


class AsyncCodeRun:
    """A run of code. Leaving it early closes the connection, and the server interrupts the code."""

    def __init__(self, sandbox: AsyncSandbox, on_start: backend.Callback[AsyncCodeRun] | None) -> None:
        self._sandbox = sandbox
        self._on_start = on_start
        self._gathered = CodeCollector()
        self._process: str | None = None
        self._end: CodeEnd | None = None

    @property
    def id(self) -> str:
        """The process ID: of the context, or of the current program (first the compiler, then the code)."""
        if self._process is None:
            raise Conflict("the code has not started")
        return self._process

    async def signal(self, name: str) -> None:
        """Send a signal, like "INT", to the code, from another thread or task. KILL ends a context with its variables.
        Raise Conflict if the process has ended."""
        sandbox = self._sandbox
        await sandbox.client.request(sandboxes.signal(sandbox.id, self.id, name))

    async def take(self, kind: int, payload: bytes) -> CodeValue | None:
        """Store a frame; return a value that it contains."""
        if kind == STARTED:
            self._process = decode(payload, StartedFrame).id
            on_start, self._on_start = self._on_start, None
            if on_start is not None:
                await backend.deliver(on_start, self)
        elif kind in OUTPUT:
            self._gathered.add(_stream(kind), payload)
        elif kind == RESULT:
            value = decode(payload, CodeValue)
            self._gathered.add_value(value)
            return value
        elif kind == EXIT:
            self._end = decode(payload, CodeEnd)
        elif kind == ERROR:
            raise error_frame(payload)
        return None

    def result(self) -> AsyncCodeResult:
        if self._end is None:
            raise SandboxUnavailable("the output ended before the code did", hint="`skerry show` shows its state")
        made = (with_decoded_path(file) for file in self._end.files)
        files = tuple(AsyncReadableFile._of(self._sandbox, file) for file in made if isinstance(file, OutputFile))
        return AsyncCodeResult(**self._gathered.fields(self._end) | {"files": files})
