"""The messages of a kernel in one run, checked. Pure.

A kernel shares its process with the code that it runs: the code may have written any message. So messages decide only
about results and error texts, within bounds and in known forms."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from skerry.code import kernel_protocol
from skerry.codecs.output import HeadAndTail
from skerry.types import (
    MAX_OUTPUT,
    MAX_PICTURE,
    MAX_RESULTS,
    MAX_RESULTS_BYTES,
    MAX_TEXT,
    PICTURES,
    TEXTS,
    CodeError,
    CodeOutput,
)
from skerry.types.code import chart_json

MAX_MESSAGES: Final = 10_000  # of one run
LARGE: Final = 64 << 10  # bytes of a result above which parsing takes noticeable time
_MAX_BEFORE: Final = 64 << 10
_MAX_DEPTH: Final = 200
_MAX_NAME, _MAX_WORDS, _MAX_TRACEBACK = 256, 16 << 10, 64 << 10  # characters
_MAGIC: Final = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_MAX_NAMES: Final = 1 << 10  # bytes: all forms that there are, and more
_MAX_CHART: Final = ((b"{", 10_000), (b"[", 40_000))  # a chart is checked as a whole, which blocks the event loop
_JSON: Final = frozenset(("application/json", "application/vnd.skerry.chart+json"))
_VERSION: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}")


class ResultParser:
    """Parses a kernel's channel into the results of the run. Bytes before the message that this run has begun are left
    over from an earlier one, perhaps from the middle of a message, and are ignored.

    `dropped`: results beyond the bounds. `status`: the outcome, once the run is over."""

    def __init__(self, run: str) -> None:
        self._run = run.encode()
        self._mark = kernel_protocol.encode(kernel_protocol.BEGUN, {"run": self._run})
        self._before = bytearray()
        self._decoder = kernel_protocol.KernelMessageDecoder()
        self._messages = self._results = self._size = 0
        self.begun = False
        self.version: str | None = None
        self.error: CodeError | None = None
        self.status: str | None = None
        self.dropped = 0

    def feed(self, data: bytes) -> Iterator[dict[str, bytes]]:
        """The fields of each result. Raises `wire.Violation`."""
        if not self.begun:
            data = self._begin(data)
        for kind, fields in self._decoder.feed(data) if self.begun else ():
            self._messages += 1
            if fields.pop("run", None) != self._run or self._messages > MAX_MESSAGES:
                raise kernel_protocol.Violation("a message that is not of this run, or one too many")
            if kind == kernel_protocol.OUTPUT:
                if self._fits(fields):
                    yield fields
            elif kind == kernel_protocol.ERROR and self.error is None:
                self.error = error_of(fields)
            elif kind == kernel_protocol.DONE and fields.get("status") in (b"ok", b"error", b"interrupted"):
                self.status = fields["status"].decode()
                return
            else:
                raise kernel_protocol.Violation(f"a message of kind {kind!r} out of turn")

    def _begin(self, data: bytes) -> bytes:
        """Return the bytes after the start message; nothing before it has come."""
        before = self._before
        before += data
        at = before.find(self._mark)
        if at < 0:
            if len(before) > _MAX_BEFORE:
                del before[: 1 - len(self._mark)]
            return b""
        self.begun, self.version = True, _version(bytes(before[:at]))
        return bytes(before[at + len(self._mark) :])

    def _fits(self, fields: Mapping[str, bytes]) -> bool:
        self._results += 1
        self._size += sum(map(len, fields.values()))
        fits = self._results <= MAX_RESULTS and self._size <= MAX_RESULTS_BYTES
        self.dropped += not fits
        return fits


def _version(said: bytes) -> str | None:
    """Return the version that a new kernel reports first."""
    try:
        kind, fields = next(kernel_protocol.KernelMessageDecoder().feed(said), (b"", {}))
    except kernel_protocol.Violation:
        return None
    version = fields.get("version", b"") if kind == kernel_protocol.HELLO else b""
    return version.decode() if _VERSION.fullmatch(version) else None


def is_large(fields: Mapping[str, bytes]) -> bool:
    return sum(map(len, fields.values())) > LARGE


def output_of(fields: Mapping[str, bytes]) -> CodeOutput:
    """Return a result with its valid forms; missing or incomplete ones are named in `cut`."""
    named = set(fields.get("cut", b"")[:_MAX_NAMES].decode("ascii", "replace").split()) & {*TEXTS, *PICTURES}
    data: dict[str, str] = {}
    for form in (*TEXTS, *PICTURES):
        if form in fields:
            value, whole = _picture(form, fields[form]) if form in PICTURES else _text(form, fields[form])
            if value is not None:
                data[form] = value
            if not whole:
                named.add(form)
    sizes = {form: len(msgspec.json.encode(value)) for form, value in data.items()}
    while sum(sizes.values()) > MAX_OUTPUT:
        largest = max(sizes, key=sizes.__getitem__)
        named.add(largest)
        del data[largest], sizes[largest]
    return CodeOutput(data=data, main=fields.get("main") == b"1", cut=tuple(sorted(named)))


def _picture(form: str, raw: bytes) -> tuple[str | None, bool]:
    if len(raw) > MAX_PICTURE or not raw.startswith(_MAGIC[form]):
        return None, False
    return base64.b64encode(raw).decode(), True


def _text(form: str, raw: bytes) -> tuple[str | None, bool]:
    """Return text within bounds. Truncated JSON is useless, so it is dropped."""
    if form in _JSON:
        return (raw.decode(), True) if len(raw) <= MAX_TEXT and _is_json(form, raw) else (None, False)
    return raw[:MAX_TEXT].decode("utf-8", "replace"), len(raw) <= MAX_TEXT


def _is_json(form: str, raw: bytes) -> bool:
    try:
        raw.decode()
        if form == "application/json":
            msgspec.json.decode(raw, type=msgspec.Raw)
        elif any(raw.count(part) > most for part, most in _MAX_CHART):
            return False
        else:
            chart_json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def error_of(fields: Mapping[str, bytes]) -> CodeError:
    """How the code failed, in words that are bounded."""
    line = fields.get("line", b"")
    return CodeError(
        name=_words(fields.get("name", b""), _MAX_NAME) or "Error",
        message=_words(fields.get("message", b""), _MAX_WORDS),
        traceback=_words(fields.get("traceback", b""), _MAX_TRACEBACK),
        line=int(line) if line.isdigit() and len(line) < 10 else None,
        properties=_properties(fields.get("properties", b"")),
    )


def _properties(raw: bytes) -> dict[str, Any]:
    if not raw or len(raw) > _MAX_WORDS or raw.count(b"[") + raw.count(b"{") > _MAX_DEPTH:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _words(raw: bytes, most: int) -> str:
    """Keep the end of a long text: it says more than the middle."""
    kept = HeadAndTail(most)
    kept.add(raw)
    return kept.value().decode("utf-8", "replace")
