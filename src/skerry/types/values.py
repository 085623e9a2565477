"""Base classes of all values, sizes, time spans, and checks that requests share."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from skerry.errors import InvalidRequest

MAX_PATH = 4096  # bytes, as in the kernel
MAX_ENV = 128 << 10  # bytes of the variables of a sandbox or command; Linux permits no more in a single one
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
SANDBOX_ID = re.compile(r"sb-[a-z2-7]{10}")
VOLUME_ID = re.compile(r"vl-[a-z2-7]{10}")
_HTTP_PATH = re.compile(r"/[!-~]{0,1023}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_CLOCK = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A strict, immutable value."""


class Answer(Value, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=False):
    """A value that the server returns: every field is present, also an empty one. A client accepts further fields, so
    that it works with a newer server."""


class ErrorBody(Answer, frozen=True, kw_only=True):
    """The error of a request. `code` is stable; `hint` names the remedy."""

    code: str
    message: str
    hint: str | None = None
    details: dict[str, Any] | None = {}


class ErrorResponse(Answer, frozen=True, kw_only=True):
    """The body of every response that is not a success."""

    error: ErrorBody


def parse_size(value: str | int, what: str = "size") -> int:
    """Return bytes from 1048576, "512M", "2G", "1.5GiB"; units are powers of 1024."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidRequest(f"{what}: {value!r} is not a size", hint='write it like "512M" or "2G"')
    if isinstance(value, int):
        number = value
    else:
        match = _SIZE.fullmatch(value.strip()) if len(value) < 40 else None
        if match is None:
            raise InvalidRequest(f"{what}: {value[:60]!r} is not a size", hint='write it like "512M" or "2G"')
        number = int(float(match[1]) * _SIZE_UNITS[match[2].upper()])
    if not 0 < number < 1 << 53:
        raise InvalidRequest(f"{what}: {value!r} is out of range", hint='write it like "512M" or "2G"')
    return number


def parse_span(value: str | int | float, what: str = "time") -> float:
    """Return seconds from 90, "90", "15m", "24h", "500ms"."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidRequest(f"{what}: {value!r} is not a time", hint='write it like "90s", "15m" or "24h"')
    if isinstance(value, str):
        match = _SPAN.fullmatch(value.strip()) if len(value) < 40 else None
        if match is None:
            raise InvalidRequest(f"{what}: {value[:60]!r} is not a time", hint='write it like "90s", "15m" or "24h"')
        seconds = float(match[1]) * _SPAN_UNITS[(match[2] or "s").lower()]
    else:
        seconds = float(value) if abs(value) < 1e9 else math.inf  # an int may be too large for a float
    if not (math.isfinite(seconds) and 0 < seconds < 1e9):
        raise InvalidRequest(f"{what}: {value!r} is out of range", hint='write it like "90s", "15m" or "24h"')
    return seconds


def parse_lifetime(value: str | int | float, what: str = "time") -> float:
    """Return seconds as `parse_span` does; "never" is infinite."""
    return math.inf if value == "never" else parse_span(value, what)


def parse_clock(value: str, what: str = "options.clock") -> int:
    """Return the Unix time of a moment in UTC: "2026-01-01T00:00:00Z"."""
    hint = 'write it like "2026-01-01T00:00:00Z"'
    try:
        if not _CLOCK.fullmatch(value):
            raise ValueError
        moment = datetime.fromisoformat(value.removesuffix("Z")).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest(f"{what}: {value[:60]!r} is not a time", hint=hint) from None
    if not 1980 <= moment.year < 2100:  # archive formats begin in 1980
        raise InvalidRequest(f"{what}: {value} is out of range", hint="between 1980 and 2099")
    return int(moment.timestamp())


def format_size(number: int) -> str:
    """Return the shortest form that `parse_size` reads back exactly: 2147483648 → "2G"."""
    for unit in ("T", "G", "M", "K"):
        if number >= _SIZE_UNITS[unit] and number % _SIZE_UNITS[unit] == 0:
            return f"{number // _SIZE_UNITS[unit]}{unit}"
    return str(number)


def readable_size(number: int, *, up: bool = False) -> str:
    """Return a size for messages: exact if that is short ("1025M"), else with at most one decimal: 5368713216 → "5G",
    1610612737 → "1.5G". It is rounded down, so that a maximum is not exceeded, or `up`."""
    if len(exact := format_size(number)) <= 5 and not exact.isdigit():
        return exact
    for name in ("T", "G", "M", "K"):
        if number >= (unit := _SIZE_UNITS[name]):
            parts = 10 if number < 100 * unit else 1
            count = -(-number * parts // unit) if up else number * parts // unit
            return f"{count / parts:g}{name}"
    return str(number)


def is_text(data: bytes) -> bool:
    """Return whether the data is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_text(what: str, *values: str) -> None:
    for value in values:
        if "\0" in value:
            raise InvalidRequest(f"{what}: a NUL byte is not allowed")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{what}: not valid Unicode") from None


def check_line(what: str, value: str) -> None:
    """Check a display name: one line, not empty, not long."""
    check_text(what, value)
    if not value.strip() or len(value) > 256 or not value.isprintable():
        raise InvalidRequest(f"{what}: {value[:80]!r} is not allowed", hint="up to 256 characters on one line")


PathText = Annotated[str, msgspec.Meta(extra={"path": True})]
"""A path inside a sandbox: bytes that need not be UTF-8, as Python writes them (`os.fsdecode`)."""


def check_path(what: str, path: str) -> None:
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what}: not valid Unicode") from None
    if not path or size > MAX_PATH:
        raise InvalidRequest(f"{what}: {'longer than 4,096 bytes' if path else 'empty'}")
    if "\0" in path:
        raise InvalidRequest(f"{what}: a NUL byte is not allowed")


def encode_path(path: str) -> tuple[str, bytes | None]:
    """Return a path as JSON can carry it, and its bytes if they differ."""
    raw = path.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    return text, None if text == path else raw


def decode_path(text: str, raw: bytes | None) -> str:
    """Return the path from its JSON form and its bytes."""
    return text if raw is None else raw.decode("utf-8", "surrogateescape")


def check_user(user: str | None) -> None:
    if user is None:
        return
    if not user or len(user) > 256:
        problem = "longer than 256 characters" if user else "empty"
        raise InvalidRequest(f"user: {problem}", hint="leave it out for the image's user")
    check_text("user", user)


def check_name(name: str | None, what: str = "name") -> None:
    if name is None:
        return
    if not NAME.fullmatch(name) or SANDBOX_ID.fullmatch(name) or VOLUME_ID.fullmatch(name):
        raise InvalidRequest(
            f"{what}: {name[:80]!r} is not allowed",
            hint="1 to 63 characters of a-z, 0-9, '.', '_', '-'; the first and last a letter or digit; not like an id",
        )


def check_env(env: dict[str, str] | dict[str, str | None]) -> None:
    size = 0
    for name, value in env.items():
        shown = name[:80]
        if not name or "=" in name or "\0" in name:
            raise InvalidRequest(f"env: {shown!r} is not a variable's name", hint="no '=', no NUL, not empty")
        check_text(f"env.{shown}", name, value or "")
        size += len(name.encode()) + len((value or "").encode()) + 2
        if size > MAX_ENV:
            raise InvalidRequest(f"env: more than {MAX_ENV >> 10} KiB", hint="put large values into a file")


def check_port(port: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise InvalidRequest(f"port: {port!r} is not a port", hint="a number from 1 to 65535, without quotes")


def check_http_path(path: str | None) -> None:
    if path is not None and not _HTTP_PATH.fullmatch(path):
        raise InvalidRequest(f"http_path: {path[:80]!r} is not a path", hint="like /health; no spaces, at most 1,024")


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise InvalidRequest("labels: more than 64")
    for key, value in labels.items():
        if not key or "=" in key or len(key) > 128 or len(value) > 1024:
            raise InvalidRequest(f"labels: {key[:140]!r} is not allowed", hint="keys to 128, no '='; values to 1,024")
        check_text("labels", key, value)
