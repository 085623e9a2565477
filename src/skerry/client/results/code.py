"""Results of code: its values in all their forms, its bounded output, and its end. Pure.

All of it comes from a server that may be hostile, and the values from code that may be: counts and sizes are bounded,
and a form with invalid content raises its own error when it is accessed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from skerry.client.results.command import OutputCollector, StreamName, describe_end, failure_class, hint_for
from skerry.errors import CommandFailed, CommandTimeout, SkerryError
from skerry.types import (
    MAX_RESULTS,
    MAX_RESULTS_BYTES,
    Chart,
    CodeEnd,
    CodeError,
    CodeOutput,
    FileInfo,
    OutputFile,
    Result,
    Value,
)

CHART = "application/vnd.skerry.chart+json"
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
_QUOTED = 2000
_SLACK = 2  # pictures are base64
_MAX_FORMS = 32  # of one value: more than exist

FileMark = tuple[str, int, float]
UploadedFiles = frozenset[FileMark]
"""Files as they were when they were brought in. The clock of files goes in steps of milliseconds: what was written just
before code began looks as if the code had made it."""


class CodeValue(CodeOutput, frozen=True, kw_only=True):
    """A value of the code, or a picture that it drew, in each of its forms; a missing form is None.

    `main`: it is the last expression's value. `cut`: forms that were shortened, or omitted for their size. `data`: all
    forms by MIME type, texts as text and pictures as base64.
    """

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        return self.data.get("text/latex")

    @property
    def svg(self) -> str | None:
        return self.data.get("image/svg+xml")

    @property
    def javascript(self) -> str | None:
        return self.data.get("application/javascript")

    @property
    def png(self) -> bytes | None:
        return self.picture("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self.picture("image/jpeg")

    @property
    def json(self) -> Any:
        """The value as Python objects."""
        return self._parsed("application/json")

    @property
    def chart(self) -> Chart | None:
        """The content of a figure as data: its axes and their series."""
        value = self._parsed(CHART)
        if value is None:
            return None
        try:
            return msgspec.convert(value, Chart)
        except (msgspec.ValidationError, RecursionError) as error:
            raise SkerryError(f"a result's chart cannot be read: {error}") from error

    def picture(self, form: str) -> bytes | None:
        """Return a picture by its MIME type."""
        value = self.data.get(form)
        if value is None:
            return None
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SkerryError(f"a result's {form} cannot be read: {error}") from error

    def _parsed(self, form: str) -> Any:
        value = self.data.get(form)
        if value is None:
            return None
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SkerryError(f"a result's {form} cannot be read: {error}") from error


class CodeResultBase(Result, frozen=True, kw_only=True):
    """The end of code and its results. `ok`: it ended without an error and in time. `results`: its values, in order.
    `context`: the name of its context; `lost`: why the context was restarted; `after`: whether it still exists, or was
    replaced. `files`: files that it created or changed below its directory; `files_cut`: there are more."""

    language: str
    version: str | None = None
    context: str | None = None
    lost: str | None = None
    after: Literal["kept", "replaced"] | None = None
    error: CodeError | None = None
    results: tuple[CodeValue, ...] = ()
    files_cut: bool = False

    @property
    def text(self) -> str | None:
        """The last expression's value as text; None if it has none."""
        return next((value.text for value in reversed(self.results) if value.main), None)


class CodeEventBase(Value, frozen=True, kw_only=True):
    """An event of a run of code. `stdout`, `stderr`: `data`, which ends between two characters, and the same as `text`.
    `result`: `result`. `error`: `error`. `end`, the last event: `end`, with the whole result."""

    type: Literal["stdout", "stderr", "result", "error", "end"]
    data: bytes = b""
    result: CodeValue | None = None
    error: CodeError | None = None

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class CharacterJoiner:
    """The pieces of a stream, cut between characters: an incomplete character waits for its rest."""

    def __init__(self) -> None:
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        data = self._held + data if self._held else data
        cut = len(data) - _incomplete_bytes(data)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _incomplete_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 4 if byte & 0xF8 == 0xF0 else 3 if byte & 0xF0 == 0xE0 else 2 if byte & 0xE0 == 0xC0 else 1
            return back if needs > back else 0
    return 0


class CodeCollector:
    """The bounded output and values of one run, combined with its end."""

    def __init__(self) -> None:
        self._output = OutputCollector()
        self._values: list[CodeValue] = []
        self._size = 0

    def add(self, stream: StreamName, data: bytes) -> None:
        self._output.add(stream, data)

    def add_value(self, value: CodeValue) -> None:
        self._size += sum(map(len, (*value.data, *value.data.values(), *value.cut)))
        too_many = len(self._values) >= MAX_RESULTS or max(len(value.data), len(value.cut)) > _MAX_FORMS
        if too_many or self._size > _SLACK * MAX_RESULTS_BYTES:
            raise SkerryError(
                "the server sent more results than a run may have",
                hint="is the server of the same version? `skerry server status` shows it",
            )
        self._values.append(value)

    def fields(self, end: CodeEnd) -> dict[str, Any]:
        """Return the fields of a result, except for its files."""
        result = self._output.result(end)
        return {
            **{name: getattr(result, name) for name in result.__struct_fields__},
            "language": end.language,
            "version": end.version,
            "context": end.context,
            "lost": end.lost,
            "after": end.after,
            "error": end.error,
            "results": tuple(self._values),
            "files_cut": end.files_cut,
        }


def pictures(result: CodeResultBase) -> Iterator[tuple[str, bytes]]:
    """Yield each picture with a file name: the number of its result."""
    for number, value in enumerate(result.results, 1):
        for form, suffix in _SUFFIXES.items():
            if form in value.data:
                picture = value.data[form].encode() if form == "image/svg+xml" else value.picture(form)
                yield f"result-{number}.{suffix}", picture or b""


def file_mark(file: FileInfo) -> FileMark:
    return file.path, file.size, file.mtime


def hint_without_context(result: CodeResultBase) -> str | None:
    """Return the hint for a context that is not used again: the state of its memory is irrelevant."""
    return result.hint if result.after is None else hint_for(result)


def relative_place(path: str, cwd: str) -> str:
    """Return the relative path for a file from inside: relative to its directory, otherwise the whole path."""
    below = path.removeprefix(cwd.rstrip("/") + "/")
    return below.lstrip("/")


def fields_of(file: OutputFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


def check_code(result: CodeResultBase) -> None:
    """Raise the error of `check=True`, unless the code succeeded."""
    if result.ok:
        return
    error: CommandTimeout | CommandFailed
    if result.timed_out:
        error = CommandTimeout(f"the code timed out after {result.duration_s:.1f} s", hint=result.hint)
    else:
        error = failure_class(result)(f"the code {_how(result)}", hint=result.hint)
    error.result = result
    raise error


def _how(result: CodeResultBase) -> str:
    if result.error is not None:
        said = f"{result.error.name}: {result.error.message}" if result.error.message else result.error.name
        return f"failed: {said[:_QUOTED]}" + (f"\n{t}" if (t := result.error.traceback[-_QUOTED:].strip()) else "")
    said = result.stderr[-_QUOTED:].strip()
    return describe_end(result) + (f"\n{said}" if said else "")
