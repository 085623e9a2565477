"""envd's messages in both encodings of Connect: JSON and protobuf. Pure: bytes in, dictionaries out, and back.

A table of a few lines replaces a protobuf library and its generated modules: envd has some forty flat messages, and no
published SDK sends the binary form. A decoded message is a dictionary by the names of the JSON form. Enums are their
names, and a time is the seconds since 1970.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from skerry.errors import InvalidRequest

MAX_DEPTH: Final = 8
FIRST_MOMENT: Final = -62135596800.0  # of the year 1
LAST_MOMENT: Final = 253402300799.0  # of the year 9999
MAX_ITEMS: Final = 65_536  # fields of one message, with those of repeated ones
_INTEGERS: Final = {"bool": 1, "uint32": 32, "sint32": 32, "int64": 64}

# name=number kind; `*` repeats it, `%` is a map of texts, `?` is sent even if it is the default
_TABLE: Final = """
PTY: size=1 Size
Size: cols=1 uint32, rows=2 uint32
ProcessConfig: cmd=1 string, args=2 string*, envs=3 string%, cwd=4 string
ProcessInfo: config=1 ProcessConfig, pid=2 uint32, tag=3 string
ListRequest:
ListResponse: processes=1 ProcessInfo*
StartRequest: process=1 ProcessConfig, pty=2 PTY, tag=3 string, stdin=4 bool
ProcessSelector: pid=1 uint32, tag=2 string
ConnectRequest: process=1 ProcessSelector
UpdateRequest: process=1 ProcessSelector, pty=2 PTY
ProcessInput: stdin=1 bytes, pty=2 bytes
SendInputRequest: process=1 ProcessSelector, input=2 ProcessInput
SendSignalRequest: process=1 ProcessSelector, signal=2 Signal
CloseStdinRequest: process=1 ProcessSelector
InputStart: process=1 ProcessSelector
InputData: input=2 ProcessInput
StreamInputRequest: start=1 InputStart, data=2 InputData, keepalive=3 Empty
ProcessEvent: start=1 StartEvent, data=2 DataEvent, end=3 EndEvent, keepalive=4 Empty
StartEvent: pid=1 uint32
DataEvent: stdout=1 bytes, stderr=2 bytes, pty=3 bytes
EndEvent: exitCode=1 sint32?, exited=2 bool?, status=3 string?, error=4 string
EventResponse: event=1 ProcessEvent
Empty:
MoveRequest: source=1 string, destination=2 string
PathRequest: path=1 string
EntryResponse: entry=1 EntryInfo
ListDirRequest: path=1 string, depth=2 uint32
ListDirResponse: entries=1 EntryInfo*
EntryInfo: name=1 string, type=2 FileType, path=3 string, size=4 int64, mode=5 uint32, permissions=6 string,\
 owner=7 string, group=8 string, modifiedTime=9 Timestamp, symlinkTarget=10 string, metadata=11 string%,\
 isSymlink=12 bool
WatchRequest: path=1 string, recursive=2 bool, includeEntry=3 bool, allowNetworkMounts=4 bool
FilesystemEvent: name=1 string, type=2 EventType, entry=3 EntryInfo
WatchDirResponse: start=1 Empty, filesystem=2 FilesystemEvent, keepalive=3 Empty
WatcherRequest: watcherId=1 string
WatcherResponse: watcherId=1 string
WatcherEvents: events=1 FilesystemEvent*
"""
_ENUMS: Final[Mapping[str, Mapping[str, int]]] = {
    "Signal": {"SIGNAL_UNSPECIFIED": 0, "SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15},
    "FileType": {
        "FILE_TYPE_UNSPECIFIED": 0, "FILE_TYPE_FILE": 1, "FILE_TYPE_DIRECTORY": 2, "FILE_TYPE_SYMLINK": 3,
    },
    "EventType": {
        "EVENT_TYPE_UNSPECIFIED": 0, "EVENT_TYPE_CREATE": 1, "EVENT_TYPE_WRITE": 2, "EVENT_TYPE_REMOVE": 3,
        "EVENT_TYPE_RENAME": 4, "EVENT_TYPE_CHMOD": 5,
    },
}  # fmt: skip

Message = dict[str, Any]


@dataclass(frozen=True)
class Field:
    name: str
    number: int
    kind: str
    repeated: bool
    map: bool
    always: bool

    @property
    def snake(self) -> str:
        """The name in the protocol's source, which JSON may use too."""
        return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", self.name)


def _parse(table: str) -> dict[str, tuple[Field, ...]]:
    messages = {}
    for line in table.strip().splitlines():
        name, _, fields = line.partition(":")
        messages[name] = tuple(_field(text.strip()) for text in fields.split(",") if text.strip())
    return messages


def _field(text: str) -> Field:
    name, number, kind = re.split("[= ]", text)
    plain = kind.rstrip("*%?")
    return Field(name, int(number), plain, kind.endswith("*"), kind.endswith("%"), kind.endswith("?"))


MESSAGES: Final = _parse(_TABLE)


def decode(kind: str, data: bytes, form: str) -> Message:
    """Decode a message of this kind; `form` is json or proto. Fields of newer versions are ignored."""
    if form == "proto":
        return _from_binary(kind, data, 0)
    try:
        value = msgspec.json.decode(data) if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the message is not valid JSON: {str(error)[:200]}") from error
    return _from_json(kind, value, kind)


def encode(kind: str, value: Message, form: str) -> bytes:
    return bytes(_to_binary(kind, value)) if form == "proto" else msgspec.json.encode(_to_json(kind, value))


# -- JSON -------------------------------------------------------------------------------------------------------------


def _from_json(kind: str, value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: not an object")
    message: Message = {}
    for field in MESSAGES[kind]:
        given = value.get(field.name, value.get(field.snake))
        place = f"{where}.{field.name}"
        if given is None:
            continue
        if field.repeated:
            if not isinstance(given, list) or len(given) > MAX_ITEMS:
                raise InvalidRequest(f"{place}: not a list, or too long")
            message[field.name] = [_scalar_from_json(field.kind, item, place) for item in given]
        elif field.map:
            if not isinstance(given, dict) or not all(isinstance(item, str) for item in given.values()):
                raise InvalidRequest(f"{place}: not an object of texts")
            message[field.name] = given
        else:
            message[field.name] = _scalar_from_json(field.kind, given, place)
    return message


def _scalar_from_json(kind: str, value: Any, where: str) -> Any:
    if kind in MESSAGES:
        return _from_json(kind, value, where)
    if kind in _ENUMS:
        return _enum_from_json(kind, value, where)
    if kind == "bytes" and isinstance(value, str):
        try:
            return base64.b64decode(value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"{where}: not base64") from error
    if (kind == "string" and isinstance(value, str)) or (kind == "bool" and isinstance(value, bool)):
        return value
    if kind in ("uint32", "sint32", "int64"):
        return _integer(kind, value, where)
    raise InvalidRequest(f"{where}: not of type {kind}")


def _enum_from_json(kind: str, value: Any, where: str) -> str:
    for name, number in _ENUMS[kind].items():
        if value == name or (value == number and not isinstance(value, bool)):
            return name
    raise InvalidRequest(f"{where}: {str(value)[:40]!r} is not a {kind}")


def _integer(kind: str, value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    low, high = (0, 1 << 32) if kind == "uint32" else (-(1 << (_INTEGERS[kind] - 1)), 1 << (_INTEGERS[kind] - 1))
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise InvalidRequest(f"{where}: not of type {kind}")
    return value


def _to_json(kind: str, value: Message) -> Message:
    shown: Message = {}
    for field, item in _present(kind, value):
        if field.repeated:
            shown[field.name] = [_scalar_to_json(field.kind, one) for one in item]
        else:
            shown[field.name] = item if field.map else _scalar_to_json(field.kind, item)
    return shown


def representable(seconds: float) -> float:
    """Return a time of a file, which its owner may set to any number, within the years 1 to 9999."""
    return min(max(seconds, FIRST_MOMENT), LAST_MOMENT)


def _scalar_to_json(kind: str, value: Any) -> Any:
    if kind == "Timestamp":
        value = representable(value)
        moment = datetime.fromtimestamp(math.floor(value), UTC).isoformat().partition("+")[0]
        return f"{moment}.{_nanoseconds(value):09d}Z"
    if kind in MESSAGES:
        return _to_json(kind, value)
    if kind == "bytes":
        return base64.b64encode(value).decode()
    return str(value) if kind == "int64" else value


_WITHOUT_DEFAULT: Final = frozenset((*MESSAGES, "Timestamp"))


def _present(kind: str, value: Message) -> Iterator[tuple[Field, Any]]:
    """Yield the fields that are sent: not those that have their default, unless it has a meaning."""
    for field in MESSAGES[kind]:
        item = value.get(field.name)
        if item is not None and (field.always or field.kind in _WITHOUT_DEFAULT or item not in (0, "", False, [], {})):
            yield field, item


def _nanoseconds(seconds: float) -> int:
    return min(round((seconds - math.floor(seconds)) * 1e9), 999_999_999)


# -- protobuf ---------------------------------------------------------------------------------------------------------


def _from_binary(kind: str, data: bytes, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise InvalidRequest("the message is nested too deeply")
    known = {field.number: field for field in MESSAGES[kind]}
    message: Message = {}
    for count, (number, wire, value) in enumerate(_fields(data)):
        if count >= MAX_ITEMS:
            raise InvalidRequest("the message has too many fields")
        field = known.get(number)
        if field is None:
            continue
        decoded = _scalar_from_binary(field, wire, value, depth)
        if field.repeated:
            message.setdefault(field.name, []).append(decoded)
        elif field.map:
            message.setdefault(field.name, {}).update(decoded)
        else:
            message[field.name] = decoded
    return message


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, the wire type and the value of each field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise InvalidRequest("the message has a field without a number")
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or at + size > len(data):
            raise InvalidRequest("the message is cut off or malformed")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise InvalidRequest("the message is cut off or malformed")


def _scalar_from_binary(field: Field, wire: int, value: Any, depth: int) -> Any:
    kind, where = field.kind, field.name
    if wire != (0 if kind in _INTEGERS or kind in _ENUMS else 2):
        raise InvalidRequest(f"{where}: wrong wire type")
    if field.map:
        pair = {number: part for number, part_wire, part in _fields(value) if part_wire == 2}
        return {_text(pair.get(1, b""), where): _text(pair.get(2, b""), where)}
    if kind in MESSAGES:
        return _from_binary(kind, value, depth + 1)
    if kind == "Timestamp":
        parts = {number: part for number, part_wire, part in _fields(value) if part_wire == 0}
        return parts.get(1, 0) + parts.get(2, 0) / 1e9
    if kind in _ENUMS:
        return _enum_from_json(kind, value, where)
    if kind == "bool":
        return bool(value)
    if kind == "sint32":
        return (value >> 1) ^ -(value & 1)
    if kind == "int64":
        return value - (1 << 64) if value >> 63 else value
    if kind == "uint32":
        return value & 0xFFFF_FFFF
    return value if kind == "bytes" else _text(value, where)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where}: not UTF-8") from error


def _to_binary(kind: str, value: Message) -> bytearray:
    out = bytearray()
    for field, item in _present(kind, value):
        if field.map:
            for key, text in item.items():
                pair = _block(1, key.encode()) + _block(2, text.encode())
                out += _block(field.number, pair)
            continue
        for one in item if field.repeated else (item,):
            out += _scalar_to_binary(field, one)
    return out


def _scalar_to_binary(field: Field, value: Any) -> bytes:
    kind = field.kind
    if kind in _ENUMS:
        value = _ENUMS[kind][value]
    elif kind == "sint32":
        value = (value << 1) ^ (value >> 31)
    elif kind == "Timestamp":
        value = representable(value)
        seconds = math.floor(value)
        return _block(field.number, _key(1, 0) + _number(seconds) + _key(2, 0) + _number(_nanoseconds(value)))
    elif kind in MESSAGES:
        return _block(field.number, bytes(_to_binary(kind, value)))
    elif kind in ("string", "bytes"):
        return _block(field.number, value.encode("utf-8", "replace") if isinstance(value, str) else value)
    return _key(field.number, 0) + _number(int(value))


def _block(number: int, data: bytes) -> bytes:
    return _key(number, 2) + _number(len(data)) + data


def _key(number: int, wire: int) -> bytes:
    return _number(number << 3 | wire)


def _number(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- envelopes of streams ---------------------------------------------------------------------------------------------

COMPRESSED: Final = 1
END: Final = 2
_HEAD: Final = struct.Struct(">BI")


def envelope(data: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(flags, len(data)) + data


class EnvelopeReader:
    """Split a stream into envelopes of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the flags and the content of each complete envelope."""
        self._rest += chunk
        while len(self._rest) >= _HEAD.size:
            flags, size = _HEAD.unpack_from(self._rest)
            if size > self._limit:
                raise InvalidRequest(f"a message of {size} bytes is larger than {self._limit >> 20} MiB")
            if len(self._rest) < _HEAD.size + size:
                return
            data = bytes(self._rest[_HEAD.size : _HEAD.size + size])
            del self._rest[: _HEAD.size + size]
            yield flags, data

    @property
    def is_complete(self) -> bool:
        return not self._rest
