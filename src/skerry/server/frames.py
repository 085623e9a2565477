"""A command's output as a stream: frames for programs, lines of JSON for people and scripts. Pure.

A frame is 1 byte of type, 4 bytes of length (big-endian), then the payload; the same as between keeper and server.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec

STDOUT, STDERR, EXIT, STARTED, ERROR, MISSING, PAUSE, RESULT = 1, 2, 3, 4, 5, 6, 7, 8
FRAME_LIMIT = 1 << 20
_HEADER = struct.Struct(">BI")
_OUTPUT = {"stdout": STDOUT, "stderr": STDERR}


class Frames:
    """Binary frames."""

    def started(self, process: str, pid: int, offset: int = 0) -> bytes:
        return _frame(STARTED, msgspec.json.encode({"id": process, "pid": pid, "offset": offset}))

    def missing(self, number: int) -> bytes:
        return _frame(MISSING, msgspec.json.encode({"missing": number}))

    def pause(self, offset: int, more: bool) -> bytes:
        return _frame(PAUSE, msgspec.json.encode({"offset": offset, "more": more}))

    def output(self, stream: str, data: bytes) -> bytes:
        kind = _OUTPUT[stream]
        if len(data) <= FRAME_LIMIT:
            return _frame(kind, data)
        return b"".join(_frame(kind, data[at : at + FRAME_LIMIT]) for at in range(0, len(data), FRAME_LIMIT))

    def result(self, output: msgspec.Struct) -> bytes:
        return _frame(RESULT, msgspec.json.encode(output))

    def exit(self, result: msgspec.Struct) -> bytes:
        return _frame(EXIT, msgspec.json.encode(result))

    def error(self, body: bytes) -> bytes:
        return _frame(ERROR, body)


class Lines:
    """One JSON object a line. Output is text wherever it is UTF-8: a character cut in two by the pipe waits for its
    other half; bytes that are no text come as base64."""

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


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _output_line(stream: str, data: bytes) -> bytes:
    try:
        return _line({stream: data.decode()})
    except UnicodeDecodeError:
        return _line({f"{stream}_base64": base64.b64encode(data).decode()})


def _cut_tail(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character whose rest is not there yet."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if length > back else 0
    return 0
