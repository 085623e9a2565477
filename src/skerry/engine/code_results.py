"""What a kernel says in one run, as far as it is believed. Pure.

A kernel shares its process with the code that it runs: whatever it says, the code may have said. So it decides about
results and words of errors only, within bounds, and of nothing but the forms that there are."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from skerry.code import wire
from skerry.types import (
    OUTPUT_MOST,
    PICTURE_MOST,
    PICTURES,
    RESULTS_BYTES_MOST,
    RESULTS_MOST,
    TEXT_MOST,
    TEXTS,
    CodeError,
    CodeOutput,
)
from skerry.types.code import chart_json

MESSAGES_MOST: Final = 10_000  # of one run
LARGE: Final = 64 << 10  # bytes of a result above which a look at it takes its time
_BEFORE_MOST: Final = 64 << 10
_DEPTH_MOST: Final = 200
_NAME_MOST, _WORDS_MOST, _TRACEBACK_MOST = 256, 16 << 10, 64 << 10  # characters
_MAGIC: Final = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_NAMES_MOST: Final = 1 << 10  # bytes: all forms that there are, and more
_CHART_MOST: Final = ((b"{", 10_000), (b"[", 40_000))  # a chart is looked at as a whole, and nobody else runs meanwhile
_JSON: Final = frozenset(("application/json", "application/vnd.skerry.chart+json"))
_VERSION: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}")


class Listener:
    """Bytes of a kernel's channel in, results of the run out. What comes before it says that it has begun this very
    run is left over from another one, perhaps from the middle of a message, and counts for nothing.

    `dropped`: results beyond the bounds. `status`: how the run went, once it is over."""

    def __init__(self, run: str) -> None:
        self._run = run.encode()
        self._mark = wire.encode(wire.BEGUN, {"run": self._run})
        self._before = bytearray()
        self._decoder = wire.Decoder()
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
            if fields.pop("run", None) != self._run or self._messages > MESSAGES_MOST:
                raise wire.Violation("a message that is not of this run, or one too many")
            if kind == wire.OUTPUT:
                if self._fits(fields):
                    yield fields
            elif kind == wire.ERROR and self.error is None:
                self.error = error_of(fields)
            elif kind == wire.DONE and fields.get("status") in (b"ok", b"error", b"interrupted"):
                self.status = fields["status"].decode()
                return
            else:
                raise wire.Violation(f"a message of kind {kind!r} out of turn")

    def _begin(self, data: bytes) -> bytes:
        """What follows the mark; nothing while it has not come."""
        before = self._before
        before += data
        at = before.find(self._mark)
        if at < 0:
            if len(before) > _BEFORE_MOST:
                del before[: 1 - len(self._mark)]
            return b""
        self.begun, self.version = True, _version(bytes(before[:at]))
        return bytes(before[at + len(self._mark) :])

    def _fits(self, fields: Mapping[str, bytes]) -> bool:
        self._results += 1
        self._size += sum(map(len, fields.values()))
        fits = self._results <= RESULTS_MOST and self._size <= RESULTS_BYTES_MOST
        self.dropped += not fits
        return fits


def _version(said: bytes) -> str | None:
    """What a new kernel says first of all."""
    try:
        kind, fields = next(wire.Decoder().feed(said), (b"", {}))
    except wire.Violation:
        return None
    version = fields.get("version", b"") if kind == wire.HELLO else b""
    return version.decode() if _VERSION.fullmatch(version) else None


def is_large(fields: Mapping[str, bytes]) -> bool:
    return sum(map(len, fields.values())) > LARGE


def output_of(fields: Mapping[str, bytes]) -> CodeOutput:
    """A result in the forms that it may have; those that it has not, or not whole, are named in `cut`."""
    named = set(fields.get("cut", b"")[:_NAMES_MOST].decode("ascii", "replace").split()) & {*TEXTS, *PICTURES}
    data: dict[str, str] = {}
    for form in (*TEXTS, *PICTURES):
        if form in fields:
            value, whole = _picture(form, fields[form]) if form in PICTURES else _text(form, fields[form])
            if value is not None:
                data[form] = value
            if not whole:
                named.add(form)
    sizes = {form: len(msgspec.json.encode(value)) for form, value in data.items()}
    while sum(sizes.values()) > OUTPUT_MOST:
        largest = max(sizes, key=sizes.__getitem__)
        named.add(largest)
        del data[largest], sizes[largest]
    return CodeOutput(data=data, main=fields.get("main") == b"1", cut=tuple(sorted(named)))


def _picture(form: str, raw: bytes) -> tuple[str | None, bool]:
    if len(raw) > PICTURE_MOST or not raw.startswith(_MAGIC[form]):
        return None, False
    return base64.b64encode(raw).decode(), True


def _text(form: str, raw: bytes) -> tuple[str | None, bool]:
    """Half a JSON is none."""
    if form in _JSON:
        return (raw.decode(), True) if len(raw) <= TEXT_MOST and _is_json(form, raw) else (None, False)
    return raw[:TEXT_MOST].decode("utf-8", "replace"), len(raw) <= TEXT_MOST


def _is_json(form: str, raw: bytes) -> bool:
    try:
        raw.decode()
        if form == "application/json":
            msgspec.json.decode(raw, type=msgspec.Raw)
        elif any(raw.count(part) > most for part, most in _CHART_MOST):
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
        name=_words(fields.get("name", b""), _NAME_MOST) or "Error",
        message=_words(fields.get("message", b""), _WORDS_MOST),
        traceback=_words(fields.get("traceback", b""), _TRACEBACK_MOST),
        line=int(line) if line.isdigit() and len(line) < 10 else None,
        properties=_properties(fields.get("properties", b"")),
    )


def _properties(raw: bytes) -> dict[str, Any]:
    if not raw or len(raw) > _WORDS_MOST or raw.count(b"[") + raw.count(b"{") > _DEPTH_MOST:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _words(raw: bytes, most: int) -> str:
    """The end of a long one says more than its middle."""
    if len(raw) <= most:
        return raw.decode("utf-8", "replace")
    half = most // 2
    left_out = f"\n[skerry: {len(raw) - 2 * half} bytes left out here]\n"
    return raw[:half].decode("utf-8", "replace") + left_out + raw[-half:].decode("utf-8", "replace")
