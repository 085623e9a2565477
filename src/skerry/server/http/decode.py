"""Decode requests strictly. Pure: bytes in, values out, or an InvalidRequest that names the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from skerry.errors import InvalidRequest

T = TypeVar("T")

MAX_PARAMETERS = 256
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(.*)`)?", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`(?: - at `(.*)`)?", re.DOTALL)
_ELSEWHERE = re.compile(r"(.*) - at `(.*)`", re.DOTALL)


def decode_json(body: bytes | bytearray, kind: type[T]) -> T:
    """Decode the body as a value of `kind`. Errors name unknown fields, wrong types and invalid JSON."""
    decoder: msgspec.json.Decoder[T] = _cached(_decoder, kind)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refusal(error, "field", kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is empty" if not body.strip() else str(error)[:200]
        raise InvalidRequest(f"the body is not valid JSON: {reason}") from error


def decode_query(raw: bytes, kind: type[T]) -> T:
    """Decode the query string as a value of `kind`. Errors name unknown and repeated parameters, and text that is not
    UTF-8, except in a path."""
    many: frozenset[str] = _cached(_many, kind)
    paths: frozenset[str] = _cached(_paths, kind)
    values: dict[str, Any] = {}
    for name, value in _pairs(raw):
        if not (name in paths or (value.isprintable() and name.isprintable())) and _escaped(name + value):
            raise InvalidRequest(
                "the query string cannot be read: it is not UTF-8", hint="only paths may have other bytes"
            )
        if name in many:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest(f"{name[:80]}: given twice", details={"parameter": name[:80]})
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, "parameter", kind) from error


def refusal(error: msgspec.ValidationError, what: str, kind: type) -> InvalidRequest:
    """Rephrase an error of msgspec, with the field first. Keep the error of a value's own check."""
    if isinstance(error.__cause__, InvalidRequest):
        return error.__cause__
    message = str(error)
    for pattern, text in ((_UNKNOWN_FIELD, f"unknown {what}"), (_MISSING_FIELD, f"this {what} is required")):
        if match := pattern.fullmatch(message):
            place = _place(f"{match[2] or '$'}.{match[1]}")
            known = f"known: {', '.join(_names(kind))}" if match[2] is None and _names(kind) else None
            return InvalidRequest(f"{place}: {text}", hint=known, details={what: place})
    if match := _ELSEWHERE.fullmatch(message):
        place = _place(match[2])
        return InvalidRequest(f"{place}: {_lower(match[1])}", details={what: place})
    return InvalidRequest(f"the body: {_lower(message)}")


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    if not raw:
        return []
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="surrogateescape",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError as error:
        raise InvalidRequest(f"the query string cannot be read: {str(error)[:120]}") from error


def _place(path: str) -> str:
    return path.removeprefix("$").removeprefix(".")[:200]


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:400]


_cache: dict[tuple[Any, Any], Any] = {}


def _cached(make: Callable[[Any], Any], kind: Any) -> Any:
    found = _cache.get((make, kind))
    if found is None:
        found = _cache[make, kind] = make(kind)
    return found


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(getattr(kind, "__struct_fields__", ()))


def _escaped(text: str) -> bool:
    return any("\udc80" <= c <= "\udcff" for c in text)


def _paths(kind: Any) -> frozenset[str]:
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name in _names(kind) if _is_path(hints[name]))


def _is_path(hint: Any) -> bool:
    metadata = getattr(hint, "__metadata__", ()) or [m for a in get_args(hint) for m in getattr(a, "__metadata__", ())]
    return any((getattr(one, "extra", None) or {}).get("path") for one in metadata)


def _many(kind: Any) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name in _names(kind) if getattr(hints[name], "__origin__", None) is tuple)
