# Generated from client/_async/code.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.code`: code in, values out; contexts whose variables, imports and functions last."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from skerry.client import backend_sync as backend
from skerry.client import code_requests as requests
from skerry.client.code_outcome import Between, CodeOutcome, CodeValue, GatheredCode, Happening, checked_code, fields_of
from skerry.client.code_requests import Input, code_request, own
from skerry.client.frames import ERROR, EXIT, OUTPUT, RESULT, STDOUT, FrameDecoder
from skerry.client.listing import real
from skerry.client.outcome import Output, StreamName
from skerry.client.responses import ContextList, LanguageList, decode, error_frame
from skerry.errors import SandboxUnavailable
from skerry.types import CodeEnd, CodeRequest, ContextInfo, ContextRequest, LanguageInfo, MadeFile

if TYPE_CHECKING:
    from skerry.client._sync.files import Files
    from skerry.client._sync.sandbox import Sandbox


class CodeFile(MadeFile, frozen=True, kw_only=True, dict=True):
    """A file that code made or changed, to be read as long as it and its sandbox are there."""

    @classmethod
    def _of(cls, sandbox: Sandbox, file: MadeFile) -> CodeFile:
        made = cls(**fields_of(file))
        made.__dict__["_sandbox"] = sandbox  # no field: it is neither shown nor compared
        return made

    @property
    def _files(self) -> Files:
        sandbox: Sandbox = self.__dict__["_sandbox"]
        return sandbox.files

    def read_bytes(self, *, offset: int = 0, length: int | None = None) -> bytes:
        """Its content, or the part of it from `offset` on, at most `length` bytes."""
        return self._files.read_bytes(self.path, offset=offset, length=length)

    def read_text(self, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._files.read_text(self.path, encoding=encoding, errors=errors)

    def stream(self) -> Iterator[bytes]:
        """Its bytes piece by piece: for what does not fit into memory."""
        return self._files.stream(self.path)

    def download(self, to: str | os.PathLike[str]) -> None:
        """Bring it to a path of this host; what is there is replaced."""
        self._files.download(self.path, to)


class CodeResult(CodeOutcome, frozen=True, kw_only=True):
    """What came of code: `text results error stdout stderr files …`, and all that a command's result has.

    result = sandbox.code.run("import math; math.pi")
    result.text  # "3.141592653589793"
    """

    files: tuple[CodeFile, ...] = ()


class CodeEvent(Happening, frozen=True, kw_only=True):
    __doc__ = Happening.__doc__
    end: CodeResult | None = None


class Code:
    """Code, run for what it prints, gives, draws and makes.

    Without `context` it runs in the default one of its language, so that variables, imports and functions last between
    calls; with `fresh` in a memory of its own, which is gone afterwards. A language that has no contexts is compiled
    and run. `cwd`, `env` and `user` go with `fresh` and with such a language: a context has its own.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(
        self,
        code: str,
        language: str | None = None,
        *,
        context: str | Context | None = None,
        fresh: bool = False,
        stdin: Input | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> CodeResult:
        """Run code to its end; python, unless another `language` is named. `stdin` is what it can read; without one
        `input()` fails at once.

        An error of the code or a time-out is a result, not an error, unless `check`. `on_output` gets each piece of
        output as it comes. An interrupt or cancellation of this call interrupts the code too."""
        wish = _wish(code, language, context, stdin, timeout, fresh=fresh, **own(cwd, env, user))
        return run_code(self._sandbox, wish, check, on_output)

    def stream(
        self,
        code: str,
        language: str | None = None,
        *,
        context: str | Context | None = None,
        fresh: bool = False,
        stdin: Input | None = None,
        timeout: float | None = 300,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> Iterator[CodeEvent]:
        """The same as it comes: events of type `stdout`, `stderr`, `result`, `error`, and at last `end`, with the
        whole result in `event.end`. Leaving early interrupts the code."""
        wish = _wish(code, language, context, stdin, timeout, fresh=fresh, **own(cwd, env, user))
        return events(self._sandbox, wish)

    def context(
        self,
        language: str = "python",
        name: str | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] = {},
        user: str | None = None,
    ) -> Context:
        """A new context, apart from all others. A name that is taken is a Conflict; without one, one is made up."""
        wish = ContextRequest(language=language, name=name, **own(cwd, env, user))
        sandbox = self._sandbox
        info = sandbox.client.value(requests.open_context(sandbox.id, wish), ContextInfo)
        return Context(sandbox, info)

    def get(self, name: str) -> Context:
        """A context that is there. The default one of a language has the language's name."""
        sandbox = self._sandbox
        return Context(sandbox, sandbox.client.value(requests.context(sandbox.id, name), ContextInfo))

    def contexts(self) -> builtins.list[Context]:
        """Those that are there, the default ones too."""
        sandbox = self._sandbox
        answer = sandbox.client.value(requests.contexts(sandbox.id), ContextList)
        return [Context(sandbox, info) for info in answer.contexts]

    def languages(self) -> builtins.list[LanguageInfo]:
        """Those that the server knows, with the version that was found in this sandbox."""
        sandbox = self._sandbox
        return (sandbox.client.value(requests.languages(sandbox.id), LanguageList)).languages


class Context:
    """A memory for one language: `sandbox.code.context("python")`. Its runs come one after another.

        context.run("x = 6")
        (context.run("x * 7")).text  # "42"

    If it dies (a crash, out of memory, a time-out that could not be interrupted), the result says so, the next run
    begins with an empty memory, and says that too.
    """

    def __init__(self, sandbox: Sandbox, info: ContextInfo) -> None:
        self._sandbox = sandbox
        self._info = info

    def __repr__(self) -> str:
        return f"<Context {self.name} of {self.language}>"

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def language(self) -> str:
        return self._info.language

    @property
    def known(self) -> ContextInfo:
        """All that was last seen of it; `.info()` asks again."""
        return self._info

    def info(self) -> ContextInfo:
        """All that the server says of it, fresh."""
        sandbox = self._sandbox
        self._info = sandbox.client.value(requests.context(sandbox.id, self.name), ContextInfo)
        return self._info

    def run(
        self,
        code: str,
        *,
        stdin: Input | None = None,
        timeout: float | None = 300,
        check: bool = False,
        on_output: backend.Callback[Output] | None = None,
    ) -> CodeResult:
        """Run code in it, as `sandbox.code.run` does; if other code of this context runs, after that."""
        wish = code_request(code, None, stdin, timeout, context=self.name)
        return run_code(self._sandbox, wish, check, on_output)

    def stream(
        self, code: str, *, stdin: Input | None = None, timeout: float | None = 300
    ) -> Iterator[CodeEvent]:
        """The same as it comes; see `sandbox.code.stream`."""
        return events(self._sandbox, code_request(code, None, stdin, timeout, context=self.name))

    def interrupt(self) -> None:
        """End what it runs now, as Ctrl-C does; it keeps what it remembers."""
        self._act("interrupt")

    def restart(self) -> None:
        """Begin anew, with an empty memory."""
        self._act("restart")

    def delete(self) -> None:
        """End it, and what it runs, and forget it."""
        self._sandbox.client.done(requests.context(self._sandbox.id, self.name, "DELETE"))

    def _act(self, verb: str) -> None:
        self._sandbox.client.done(requests.act(self._sandbox.id, self.name, verb))


def _wish(
    code: str,
    language: str | None,
    context: str | Context | None,
    stdin: Input | None,
    timeout: float | None,
    **more: Any,
) -> CodeRequest:
    """A context has its language; what has neither is python."""
    name = context.name if isinstance(context, Context) else context
    if name is None and language is None:
        language = "python"
    return code_request(code, language, stdin, timeout, context=name, **more)


def run_code(
    sandbox: Sandbox, wish: CodeRequest, check: bool, on_output: backend.Callback[Output] | None
) -> CodeResult:
    running, decoder, offset = CodeRunning(sandbox), FrameDecoder(), 0
    with sandbox.client.stream(requests.run(sandbox.id, wish)) as chunks:
        for chunk in chunks:
            for kind, payload in decoder.feed(chunk):
                running.take(kind, payload)
                if kind in OUTPUT and on_output is not None:
                    offset += len(payload)
                    backend.deliver(on_output, Output(stream=_stream(kind), data=payload, offset=offset))
    result = running.result()
    if check:
        checked_code(result)
    return result


def events(sandbox: Sandbox, wish: CodeRequest) -> Iterator[CodeEvent]:
    running, decoder = CodeRunning(sandbox), FrameDecoder()
    between: dict[StreamName, Between] = {"stdout": Between(), "stderr": Between()}
    with sandbox.client.stream(requests.run(sandbox.id, wish)) as chunks:
        for chunk in chunks:
            for kind, payload in decoder.feed(chunk):
                value = running.take(kind, payload)
                if value is not None:
                    yield CodeEvent(type="result", result=value)
                elif kind in OUTPUT and (whole := between[_stream(kind)].whole(payload)):
                    yield CodeEvent(type=_stream(kind), data=whole)
    for stream, pieces in between.items():
        if rest := pieces.rest():
            yield CodeEvent(type=stream, data=rest)
    result = running.result()
    if result.error is not None:
        yield CodeEvent(type="error", error=result.error)
    yield CodeEvent(type="end", end=result)


def _stream(kind: int) -> StreamName:
    return "stdout" if kind == STDOUT else "stderr"


class CodeRunning:
    """Code between its start and its end. Whoever leaves it early hangs up, and the server interrupts the code."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._gathered = GatheredCode()
        self._end: CodeEnd | None = None

    def take(self, kind: int, payload: bytes) -> CodeValue | None:
        """Keep what came; a value is given too."""
        if kind in OUTPUT:
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

    def result(self) -> CodeResult:
        if self._end is None:
            raise SandboxUnavailable("the output ended before the code did", hint="`skerry show` tells its state")
        made = (real(file) for file in self._end.files)
        files = tuple(CodeFile._of(self._sandbox, file) for file in made if isinstance(file, MadeFile))
        return CodeResult(**self._gathered.fields(self._end) | {"files": files})
