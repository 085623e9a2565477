"""Encode the output of a command as a stream: frames for programs, lines of JSON for people and scripts. Pure."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from skerry.codecs.frames import (
    ERROR,
    EXIT,
    MAX_PAYLOAD,
    MISSING,
    PAUSE,
    RESULT,
    STARTED,
    STDERR,
    STDOUT,
    encode,
    encode_parts,
)

_OUTPUT = {"stdout": STDOUT, "stderr": STDERR}


class FrameEncoder:
    """Encode binary frames (`skerry.codecs.frames`)."""

    def started(self, process: str, pid: int, offset: int = 0) -> bytes:
        return encode(STARTED, msgspec.json.encode({"id": process, "pid": pid, "offset": offset}))

    def missing(self, number: int) -> bytes:
        return encode(MISSING, msgspec.json.encode({"missing": number}))

    def pause(self, offset: int, more: bool) -> bytes:
        return encode(PAUSE, msgspec.json.encode({"offset": offset, "more": more}))

    def output(self, stream: str, data: bytes) -> bytes:
        kind = _OUTPUT[stream]
        return encode(kind, data) if len(data) <= MAX_PAYLOAD else b"".join(encode_parts(kind, data))

    def result(self, output: msgspec.Struct) -> bytes:
        return encode(RESULT, msgspec.json.encode(output))

    def exit(self, result: msgspec.Struct) -> bytes:
        return encode(EXIT, msgspec.json.encode(result))

    def error(self, body: bytes) -> bytes:
        return encode(ERROR, body)


class JsonLineEncoder:
    """Encode one JSON object per line. UTF-8 output is text: a character split by the pipe waits for its other half;
    other bytes are base64."""

    def __init__(self) -> None:
        self._cut = {"stdout": b"", "stderr": b""}

    def started(self, process: str, pid: int, offset: int = 0) -> bytes:
        return _line({"started": {"id": process, "pid": pid, "offset": offset}})

    def missing(self, number: int) -> bytes:
        return self._rest() + _line({"missing": number})

    def pause(self, offset: int, more: bool) -> bytes:
        return self._rest() + _line({"pause": {"offset": offset, "more": more}})

    def output(self, stream: str, data: bytes) -> bytes:
        data = self._cut[stream] + data
        whole = len(data) - _cut_tail(data)
        self._cut[stream] = data[whole:]
        return _output_line(stream, data[:whole]) if whole else b""

    def result(self, output: msgspec.Struct) -> bytes:
        return self._rest() + _line({"result": output})

    def exit(self, result: msgspec.Struct) -> bytes:
        return self._rest() + _line({"exit": result})

    def error(self, body: bytes) -> bytes:
        return self._rest() + body + b"\n"

    def _rest(self) -> bytes:
        rest = b"".join(_output_line(stream, data) for stream, data in self._cut.items() if data)
        self._cut = {"stdout": b"", "stderr": b""}
        return rest


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _output_line(stream: str, data: bytes) -> bytes:
    try:
        return _line({stream: data.decode()})
    except UnicodeDecodeError:
        return _line({f"{stream}_base64": base64.b64encode(data).decode()})


def _cut_tail(data: bytes) -> int:
    """Return the number of bytes at the end that start an incomplete UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if length > back else 0
    return 0


async def events_of(lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield lines of JSON as server-sent events: one event per line, and a comment for an empty line."""
    rest = b""
    async with contextlib.aclosing(lines):
        async for data in lines:
            *whole, rest = (rest + data).split(b"\n")
            if whole:
                yield b"".join(b"data: %b\n\n" % line if line else b":\n\n" for line in whole)
        if rest:
            yield b"data: %b\n\n" % rest
