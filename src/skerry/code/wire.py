"""What a server and a kernel say to each other. Pure.

A message is one byte of kind, four bytes of length (big-endian), and that many bytes of fields; a field is one byte of
length and its name (ASCII), four bytes of length and its value. No JSON: a kernel starts without a library.

To a kernel:
    K  script                                   first of all: the kernel itself, read by the line that starts it
    R  run, code, [stdin], [last]               run this; `run` is a secret of this run, as are all answers without it;
       `last`: none will follow, so what goes on by itself is waited for, where a program of that language would
From a kernel:
    H  version                                  it is there
    B  run                                      it has begun that run
    O  run, main ("0" or "1"), [cut], and a field for each form, named by its MIME type; `cut` names, split by blanks,
       the forms that were shortened or left out
    E  run, name, message, traceback, [line], [properties]   the code failed; `properties` is a JSON object: what else
       the error holds
    D  run, status ("ok", "error", "interrupted")   the run is over: all that was printed has been written
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from skerry.types import PICTURE_MOST, TEXT_MOST, TEXTS

SCRIPT, RUN = b"K", b"R"
HELLO, BEGUN, OUTPUT, ERROR, DONE = b"H", b"B", b"O", b"E", b"D"
MESSAGE_MOST = 2 * PICTURE_MOST + (len(TEXTS) + 1) * TEXT_MOST
_HEAD = struct.Struct(">cI")
_SIZE = struct.Struct(">I")
_SAID = frozenset((HELLO, BEGUN, OUTPUT, ERROR, DONE))
_FIELDS_MOST = 32  # a message of many megabytes could have millions


class Violation(Exception):
    """What came is no message of a kernel's."""


def encode(kind: bytes, fields: Mapping[str, bytes]) -> bytes:
    parts = []
    for name, value in fields.items():
        text = name.encode("ascii")
        parts += [bytes((len(text),)), text, _SIZE.pack(len(value)), value]
    body = b"".join(parts)
    return _HEAD.pack(kind, len(body)) + body


class Decoder:
    """Bytes in as they come, messages of a kernel out. Holds at most one unfinished message."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._held)
            if kind not in _SAID or size > MESSAGE_MOST:
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
        if value_at > len(body) or len(fields) == _FIELDS_MOST:
            raise Violation("a field that is cut short, or one too many")
        try:
            name = body[at + 1 : name_end].decode("ascii")
        except UnicodeDecodeError:
            raise Violation("a field whose name is not ASCII") from None
        at = value_at + _SIZE.unpack_from(body, name_end)[0]
        if at > len(body) or name in fields:
            raise Violation(f"a field {name!r} that is cut short, or there twice")
        fields[name] = body[value_at:at]
    return fields
