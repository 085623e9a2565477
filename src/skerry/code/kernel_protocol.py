"""The messages between the server and a kernel. Pure.

A message is one byte of kind, four bytes of length (big-endian), and that many bytes of fields; a field is one byte of
length and its name (ASCII), four bytes of length and its value. No JSON: a kernel starts without a library.

To a kernel:
    K  script                                   first: the kernel itself, read by the boot line
    R  run, code, [stdin], [last], [env]        run this; `run` is a secret of this run, as are all answers without it;
       `last`: no run follows, so wait for background work where a program of that language would; `env`: variables of
       this run, NAME=VALUE or NAME (unset), each ended by NUL
From a kernel:
    H  version                                  the kernel is ready
    B  run                                      the run has started
    O  run, main ("0" or "1"), [cut], and a field for each form, named by its MIME type; `cut` names, split by blanks,
       the forms that were shortened or omitted
    E  run, name, message, traceback, [line], [properties]   the code failed; `properties` is a JSON object with
       further properties of the error
    D  run, status ("ok", "error", "interrupted")   the run has ended: all output has been written
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from skerry.types import MAX_PICTURE, MAX_TEXT, TEXTS

SCRIPT, RUN = b"K", b"R"
HELLO, BEGUN, OUTPUT, ERROR, DONE = b"H", b"B", b"O", b"E", b"D"
MAX_MESSAGE = 2 * MAX_PICTURE + (len(TEXTS) + 1) * MAX_TEXT
_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">I")
_SAID = frozenset((HELLO, BEGUN, OUTPUT, ERROR, DONE))
_MAX_FIELDS = 32  # a message of many megabytes could have millions


class Violation(Exception):
    """The data is not a valid message of a kernel."""


def encode(kind: bytes, fields: Mapping[str, bytes]) -> bytes:
    parts = []
    for name, value in fields.items():
        text = name.encode("ascii")
        parts += [bytes((len(text),)), text, _SIZE.pack(len(value)), value]
    body = b"".join(parts)
    return _HEAD.pack(kind, len(body)) + body


def encode_env(env: Mapping[str, str | None]) -> bytes:
    return b"".join((name if value is None else f"{name}={value}").encode() + b"\0" for name, value in env.items())


class KernelMessageDecoder:
    """Decode messages of a kernel from bytes as they arrive. Hold at most one unfinished message."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._held)
            if kind not in _SAID or size > MAX_MESSAGE:
                raise Violation(f"a message of kind {kind!r} and {size} bytes")
            if len(self._held) < _HEAD.size + size:
                return
            body = bytes(self._held[_HEAD.size : _HEAD.size + size])
            del self._held[: _HEAD.size + size]
            yield kind, _fields(body)


def _fields(body: bytes) -> dict[str, bytes]:
    fields: dict[str, bytes] = {}
    at = 0
    while at < len(body):
        name_end = at + 1 + body[at]
        value_at = name_end + _SIZE.size
        if value_at > len(body) or len(fields) == _MAX_FIELDS:
            raise Violation("a truncated field, or too many fields")
        try:
            name = body[at + 1 : name_end].decode("ascii")
        except UnicodeDecodeError:
            raise Violation("a field name that is not ASCII") from None
        at = value_at + _SIZE.unpack_from(body, name_end)[0]
        if at > len(body) or name in fields:
            raise Violation(f"a field {name!r} that is truncated or repeated")
        fields[name] = body[value_at:at]
    return fields
