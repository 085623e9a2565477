"""The code interpreter, on port 49999: contexts, and runs with their output and results as lines of JSON."""

from __future__ import annotations

import asyncio
import codecs
import secrets
import string
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from skerry.engine.code.run import CodeRun, Piece
from skerry.errors import Conflict, InvalidRequest, NotFound, SandboxUnavailable, SkerryError
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import JSON, StreamResponse
from skerry.server.wire.e2b.charts import chart_of
from skerry.server.wire.e2b.users import UserTable, absolute
from skerry.server.wire.e2b.values import json_response
from skerry.types import CodeEnd, CodeError, CodeOutput, CodeRequest, ContextInfo, ContextRequest

DEFAULT: Final = "e2b-"  # before the language: the name of its default context
KEEPALIVE_S: Final = 5.0
HOLD_S: Final = 0.05
MAX_HELD: Final = 8192
MAX_VALUE: Final = 1 << 20  # bytes of the text of a value
_ALIASES: Final = {"js": "javascript", "ts": "typescript", "py": "python"}
_FIELDS: Final = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/javascript": "javascript",
}  # fmt: skip
_CHART: Final = "application/vnd.skerry.chart+json"


class Execution(Struct, frozen=True, kw_only=True):
    """POST /execute."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(Struct, frozen=True, kw_only=True):
    """POST /contexts."""

    language: str | None = None
    cwd: str | None = None


class CodeRoutes:
    """Handlers of the code interpreter."""

    def __init__(self, users: UserTable) -> None:
        self._users = users

    async def execute(self, call: Call[Empty, Execution]) -> StreamResponse:
        body = call.body
        if body.context_id and body.language:
            raise InvalidRequest("Only one of context_id or language can be provided")
        context = await self._context(call, body.context_id, _language(body.language))
        language = context.language if context is not None else _language(body.language)
        code, mark = textwrap.dedent(body.code) if language == "python" else body.code, None
        if language == "r":
            code, mark = r_program(body.code)
        home = (await self._users.user(call)).home if context is None else None  # a context has its own directory
        run = await call.start_run(
            call.engine.code.run(
                call.caller,
                call.ref,
                CodeRequest(
                    code=code,
                    context=context.name if context else None,
                    language=language,
                    env=dict(body.env_vars or {}),
                    cwd=home,
                    files=False,
                ),
            )
        )
        call.log["process_id"] = run.id
        shown = run if mark is None else MarkedRun(run, mark)
        return StreamResponse(JSON, _lines(call, shown, context), close=run.aclose, endless=True)

    async def _context(self, call: Call[Any, Any], name: str | None, language: str) -> ContextInfo | None:
        """Return the context of code; None for a language without contexts, such as Java."""
        if name is not None:
            return call.engine.contexts.get(call.caller, call.ref, name)
        known, _ = call.engine.languages.find(call.engine.registry.find(call.caller, call.ref), language)
        return await self._default(call, known.name) if known.context else None

    async def _default(self, call: Call[Any, Any], language: str) -> ContextInfo:
        """Return the context of code that names none. It is created with the first code of its language."""
        try:
            return call.engine.contexts.get(call.caller, call.ref, DEFAULT + language)
        except NotFound:
            try:
                return await self._make(call, language, None, DEFAULT + language)
            except Conflict:  # another call was faster
                return call.engine.contexts.get(call.caller, call.ref, DEFAULT + language)

    async def _make(self, call: Call[Any, Any], language: str, cwd: str | None, name: str | None) -> ContextInfo:
        user = await self._users.user(call)
        request = ContextRequest(language=language, name=name, cwd=absolute(cwd or user.home, user))
        return await call.engine.contexts.open(call.caller, call.ref, request)

    async def create(self, call: Call[Empty, NewContext]) -> StreamResponse:
        context = await self._make(call, _language(call.body.language), call.body.cwd, None)
        return json_response(_shown(context))

    async def list_(self, call: Call[Empty, Empty]) -> StreamResponse:
        for language in ("python", "javascript"):  # they are there from the start
            await self._default(call, language)
        found = call.engine.contexts.list(call.caller, call.ref)
        found.sort(key=lambda context: (not context.name.startswith(DEFAULT), context.created_at))
        return json_response([_shown(context) for context in found])


def r_program(code: str) -> tuple[str, bytes]:
    """Return a program that runs R code and prints the value of each expression between marks, and the mark. R has no
    kernel here; its interpreter prints values and other output alike."""
    mark = f"\x1e{secrets.token_hex(16)}"
    if "\0" in code:
        raise InvalidRequest("code: it contains a NUL byte")
    begin, end = r_text(f"{mark}(\n"), r_text(f"{mark})\n")
    program = f"""local({{
for (one in parse(text = {r_text(code)}, keep.source = FALSE)) {{
  value <- withVisible(eval(one, globalenv()))
  if (value$visible) {{ cat({begin}); print(value$value); cat({end}) }}
}}
}})
"""
    return program, mark.encode()


def r_text(text: str) -> str:
    """Return a string of R's language, in ASCII."""
    plain = set(string.ascii_letters + string.digits + " _-+*/=.,;:()[]{}<>")
    return '"' + "".join(one if one in plain else f"\\U{{{ord(one):X}}}" for one in text) + '"'


class MarkedOutput:
    """Finds the values in a standard output, each between two marks. Pure."""

    def __init__(self, mark: bytes) -> None:
        self._begin, self._finish = mark + b"(\n", mark + b")\n"
        self._held = b""
        self._inside = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._held += data
        while True:
            wanted = self._finish if self._inside else self._begin
            before, found, after = self._held.partition(wanted)
            if not found:
                break
            if self._inside:
                text = before.decode("utf-8", "replace")
                yield CodeOutput(data={"text/plain": text.rstrip("\n")}, main=True)
            elif before:
                yield "stdout", before
            self._held, self._inside = after, not self._inside
        if self._inside and len(self._held) <= MAX_VALUE:
            return
        self._inside = False  # a value that is too long is output
        at = self._held.rfind(self._begin[:1])
        kept = len(self._held) - at if at >= 0 and self._begin.startswith(self._held[at:]) else 0  # a part of a mark
        ready, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        if ready:
            yield "stdout", ready

    def end(self) -> Iterator[Piece]:
        if self._held:
            yield "stdout", self._held


class MarkedRun:
    """A run with values on its standard output."""

    def __init__(self, run: CodeRun, mark: bytes) -> None:
        self.id, self.pid, self.offset = run.id, run.pid, run.offset
        self._run, self._output = run, MarkedOutput(mark)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for piece in self._run:
            if isinstance(piece, CodeOutput) or piece[0] != "stdout":
                yield piece
                continue
            for part in self._output.feed(piece[1]):
                yield part
        self.id = self._run.id
        for part in self._output.end():
            yield part

    def end(self) -> CodeEnd:
        return self._run.end()

    async def aclose(self) -> None:
        await self._run.aclose()


async def restart(call: Call[Empty, Empty]) -> None:
    await call.engine.contexts.restart(call.caller, call.ref, call.parameters["context"])


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.contexts.delete(call.caller, call.ref, call.parameters["context"])


async def health(call: Call[Empty, Empty]) -> StreamResponse:
    return json_response("OK")


def _language(language: str | None) -> str:
    word = (language or "python").strip().lower()
    return _ALIASES.get(word, word)


def _shown(context: ContextInfo) -> dict[str, str]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd}


async def _lines(call: Call[Any, Any], run: CodeRun, context: ContextInfo | None) -> AsyncGenerator[bytes, None]:
    """Stream the run. Its errors are results, because the status line has been sent."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
    pieces = aiter(run)
    coming: asyncio.Future[Any] | None = None
    held = ("", "")  # the name of a stream, and the start of a line: programs write lines in several parts
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(pieces))
            await asyncio.wait((coming,), timeout=HOLD_S if held[1] else KEEPALIVE_S)
            if not coming.done():
                yield _text(*held) if held[1] else _line({"type": "keepalive"})
                held = ("", "")
                continue
            try:
                piece = coming.result()
            except StopAsyncIteration:
                break
            coming = None
            if held[1] and (isinstance(piece, CodeOutput) or piece[0] != held[0]):
                yield _text(*held)
                held = ("", "")
            if isinstance(piece, CodeOutput):
                yield _line(result_of(piece))
                continue
            held = piece[0], held[1] + decoders[piece[0]].decode(piece[1])
            if held[1].endswith("\n") or len(held[1]) > MAX_HELD:
                yield _text(*held)
                held = ("", "")
        if held[1]:
            yield _text(*held)
        end = run.end()
        call.record_result(exit_code=end.exit_code, id=run.id)
        if (error := _error(end)) is not None:
            yield _line({"type": "error", "name": error.name, "value": error.message, "traceback": error.traceback})
        count = call.engine.contexts.get(call.caller, call.ref, context.name).runs if context is not None else 1
        yield _line({"type": "number_of_executions", "execution_count": count})
    except SandboxUnavailable:
        raise  # a cut stream shows the SDK that the sandbox is gone
    except SkerryError as error:
        yield _line({"type": "error", "name": type(error).__name__, "value": error.message, "traceback": ""})
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait((coming,))
    yield _line({"type": "end_of_execution"})


def _error(end: CodeEnd) -> CodeError | None:
    if end.error is not None:
        return end.error
    if end.timed_out or end.oom_killed or end.signal is not None:
        return CodeError(name="ExecutionError", message=end.hint or f"the code was ended by {end.signal}")
    if end.exit_code and end.after is None:
        return CodeError(name="ExecutionError", message=f"exit code {end.exit_code}")
    return None


def _text(stream: str, text: str) -> bytes:
    return _line({"type": stream, "text": text, "timestamp": time.time_ns()})


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def result_of(output: CodeOutput) -> dict[str, Any]:
    """Return a result by E2B's names of formats. Others are in `extra`."""
    shown: dict[str, Any] = {"type": "result", "is_main_result": output.main}
    extra = {}
    for kind, value in output.data.items():
        if kind in _FIELDS:
            shown[_FIELDS[kind]] = value
        elif kind == "application/json":
            shown["json"] = _parsed(value)
        elif kind == _CHART:
            shown["chart"] = chart_of(value)
        else:
            extra[kind] = value
    if "dataframe" in shown.get("html", "") and (columns := _columns(shown.get("json"))) is not None:
        shown["data"] = columns
        del shown["json"]
    text = shown.get("text", "")
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        shown["text"] = text[1:-1]  # as E2B shows a text
    if extra:
        shown["extra"] = extra
    return shown


def _columns(rows: Any) -> dict[str, list[Any]] | None:
    """Return a table by its columns; None if these are not the rows of one."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    return {name: [row.get(name) for row in rows] for name in rows[0]}


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
