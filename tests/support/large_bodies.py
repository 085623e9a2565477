"""The largest JSON bodies for a type: each of its fields filled up to a size and a number of values."""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec import inspect

ESCAPED = b'\\"'


def bodies(kind: type, size: int, values: int) -> Iterator[bytes]:
    """Yield bodies of at most `size` bytes and `values` values, each with another field filled. Only one has a long
    text: their cost does not depend on the field."""
    seen = False
    for body in _filled(inspect.type_info(kind), size, values):
        is_text = ESCAPED * 2 in body
        if not (is_text and seen):
            yield body
        seen = seen or is_text


def _smallest(info: inspect.Type) -> bytes:
    match info:
        case inspect.StrType():
            return b'"a"'
        case inspect.BytesType():
            return b'"aaaa"'
        case inspect.BoolType():
            return b"true"
        case inspect.IntType() | inspect.FloatType():
            return b"1"
        case inspect.LiteralType():
            return json.dumps(info.values[0]).encode()
        case inspect.UnionType():
            return _smallest(info.types[0])
        case inspect.TupleType():
            return b"[" + b",".join(map(_smallest, info.item_types)) + b"]"
        case inspect.ListType() | inspect.VarTupleType():
            return b"[]"
        case inspect.DictType():
            return b"{}"
        case inspect.StructType():
            return _object(_required(info))
    return b"null"


def _filled(info: inspect.Type, size: int, values: int) -> Iterator[bytes]:
    match info:
        case inspect.StrType():
            yield b'"' + ESCAPED * (size // 2 - 1) + b'"'
        case inspect.BytesType():
            yield b'"' + b"a" * ((size - 2) // 4 * 4) + b'"'
        case inspect.UnionType():
            for one in info.types:
                yield from _filled(one, size, values)
        case inspect.ListType() | inspect.VarTupleType():
            element = b'"w%d"' if isinstance(info.item_type, inspect.StrType) else _smallest(info.item_type)
            yield b"[" + b",".join(_repeated(element, size, values)) + b"]"
            for one in _filled(info.item_type, size - 2, values):
                yield b"[" + one + b"]"
        case inspect.TupleType():
            for index, item in enumerate(info.item_types):
                for one in _filled(item, size - 100, values):
                    others = list(map(_smallest, info.item_types))
                    others[index] = one
                    yield b"[" + b",".join(others) + b"]"
        case inspect.DictType():
            yield b"{" + b",".join(_repeated(b'"k%d":' + _smallest(info.value_type), size, values)) + b"}"
        case inspect.StructType():
            for field in info.fields:
                for one in _filled(field.type, size - 200, values):
                    yield _object({**_required(info), field.encode_name: one})


def _repeated(element: bytes, size: int, values: int) -> Iterator[bytes]:
    weight = 1 + element.count(b"[") + element.count(b"{") + element.count(b",")
    for number in range(min(size // (len(element) + 6), values // weight - 10)):
        yield element.replace(b"%d", b"%d" % number)


def _required(info: inspect.StructType) -> dict[str, bytes]:
    return {field.encode_name: _smallest(field.type) for field in info.fields if field.required}


def _object(fields: dict[str, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields.items()) + b"}"
