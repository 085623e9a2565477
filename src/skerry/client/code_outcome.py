"""What came of code: its values in all their forms, its output within bounds, how it ended. Pure.

All of it comes from a server that may be hostile, and of that the values from code that may be: counts and sizes are
bounded, and a form that is not what it says it is is an error of its own, when it is looked at.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from skerry.client.outcome import Gathered, StreamName, hint_for, how_it_ended
from skerry.errors import CommandFailed, CommandTimeout, SkerryError
from skerry.types import (
    RESULTS_BYTES_MOST,
    RESULTS_MOST,
    Chart,
    CodeEnd,
    CodeError,
    CodeOutput,
    FileInfo,
    MadeFile,
    Result,
    Value,
)

CHART = "application/vnd.skerry.chart+json"
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
_QUOTED = 2000
_SLACK = 2  # pictures are there as base64
_FORMS_MOST = 32  # of a value: more than there are

Mark = tuple[str, int, float]
Brought = frozenset[Mark]
"""Files as they were when they were brought in. The clock of files goes in steps of milliseconds: what was written just
before code began looks as if the code had made it."""


class CodeValue(CodeOutput, frozen=True, kw_only=True):
    """A value that code gave, or a picture that it drew, in each form that it has; one that it has not is None.

    `main`: the last expression's value. `cut`: the forms that were shortened, or left out for their size. `data` has
    them all by MIME type, texts as texts and pictures as base64."""

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
    def png(self) -> bytes | None:
        return self.picture("image/png")

    @property
    def jpeg(self) -> bytes | None:
        return self.picture("image/jpeg")

    @property
    def json(self) -> Any:
        """As Python's own values."""
        return self._parsed("application/json")

    @property
    def chart(self) -> Chart | None:
        """What a figure shows, as data: its axes, and the series that were drawn in them."""
        told = self._parsed(CHART)
        if told is None:
            return None
        try:
            return msgspec.convert(told, Chart)
        except (msgspec.ValidationError, RecursionError) as error:
            raise SkerryError(f"a result's chart can't be read: {error}") from error

    def picture(self, form: str) -> bytes | None:
        """By its MIME type."""
        told = self.data.get(form)
        if told is None:
            return None
        try:
            return base64.b64decode(told, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SkerryError(f"a result's {form} can't be read: {error}") from error

    def _parsed(self, form: str) -> Any:
        told = self.data.get(form)
        if told is None:
            return None
        try:
            return json.loads(told)
        except (ValueError, RecursionError) as error:
            raise SkerryError(f"a result's {form} can't be read: {error}") from error


class CodeOutcome(Result, frozen=True, kw_only=True):
    """How code ended, and what came of it. `ok`: without an error, in time. `results`: its values, in order. `context`:
    whose memory it had; `lost`: why that began anew; `after`: whether it is still there, or was replaced. `files`: what
    it made or changed below its directory; `files_cut`: and more than these."""

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
        """The last expression's value as text; None if there was none."""
        return next((value.text for value in reversed(self.results) if value.main), None)


class Happening(Value, frozen=True, kw_only=True):
    """Something of a run of code as it comes. `stdout`, `stderr`: `data`, which ends between two characters, and the
    same as `text`. `result`: `result`. `error`: `error`. `end`, the last one: `end`, with all of it together."""

    type: Literal["stdout", "stderr", "result", "error", "end"]
    data: bytes = b""
    result: CodeValue | None = None
    error: CodeError | None = None

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Between:
    """A stream's pieces, cut between characters: one that came in half waits for the other half."""

    def __init__(self) -> None:
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        data = self._held + data if self._held else data
        cut = len(data) - _half_of_one(data)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _half_of_one(data: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 that is not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 4 if byte & 0xF8 == 0xF0 else 3 if byte & 0xF0 == 0xE0 else 2 if byte & 0xE0 == 0xC0 else 1
            return back if needs > back else 0
    return 0


class GatheredCode:
    """One run's output and values, within bounds, and what its end makes of them."""

    def __init__(self) -> None:
        self._output = Gathered()
        self._values: list[CodeValue] = []
        self._size = 0

    def add(self, stream: StreamName, data: bytes) -> None:
        self._output.add(stream, data)

    def add_value(self, value: CodeValue) -> None:
        self._size += sum(map(len, (*value.data, *value.data.values(), *value.cut)))
        too_many = len(self._values) >= RESULTS_MOST or max(len(value.data), len(value.cut)) > _FORMS_MOST
        if too_many or self._size > _SLACK * RESULTS_BYTES_MOST:
            raise SkerryError(
                "the server sent more results than a run can have",
                hint="is the server of the same version? `skerry server status` shows it",
            )
        self._values.append(value)

    def fields(self, end: CodeEnd) -> dict[str, Any]:
        """The fields of a result, but for its files."""
        told = self._output.result(end)
        return {
            **{name: getattr(told, name) for name in told.__struct_fields__},
            "language": end.language,
            "version": end.version,
            "context": end.context,
            "lost": end.lost,
            "after": end.after,
            "error": end.error,
            "results": tuple(self._values),
            "files_cut": end.files_cut,
        }


def pictures(result: CodeOutcome) -> Iterator[tuple[str, bytes]]:
    """Each with a name to save it under: by the number of the result that it is a form of."""
    for number, value in enumerate(result.results, 1):
        for form, suffix in _SUFFIXES.items():
            if form in value.data:
                picture = value.data[form].encode() if form == "image/svg+xml" else value.picture(form)
                yield f"result-{number}.{suffix}", picture or b""


def mark_of(file: FileInfo) -> Mark:
    return file.path, file.size, file.mtime


def hint_alone(result: CodeOutcome) -> str | None:
    """The hint where nobody comes back to the context: what became of its memory is of no use."""
    return result.hint if result.after is None else hint_for(result)


def place_of(path: str, cwd: str) -> str:
    """Where a file from inside belongs below a directory of this host: as it lies below its own, else by all of it."""
    below = path.removeprefix(cwd.rstrip("/") + "/")
    return below.lstrip("/")


def fields_of(file: MadeFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in file.__struct_fields__}


def checked_code(result: CodeOutcome) -> None:
    """Raise what `check=True` asked for, unless the code ended well."""
    if result.ok:
        return
    error: CommandTimeout | CommandFailed
    if result.timed_out:
        error = CommandTimeout(f"the code ran out of time after {result.duration_s:.1f} s", hint=result.hint)
    else:
        error = CommandFailed(f"the code {_how(result)}", hint=result.hint)
    error.result = result
    raise error


def _how(result: CodeOutcome) -> str:
    if result.error is not None:
        said = f"{result.error.name}: {result.error.message}" if result.error.message else result.error.name
        return f"failed: {said[:_QUOTED]}" + (f"\n{t}" if (t := result.error.traceback[-_QUOTED:].strip()) else "")
    said = result.stderr[-_QUOTED:].strip()
    return how_it_ended(result) + (f"\n{said}" if said else "")
