"""Paths of requests as rules see them. A path that two servers could read differently matches nothing that allows."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_ESCAPE: Final = re.compile(r"%(?:[0-9A-Fa-f]{2})?")
_CODE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_BAD: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_SLASHES: Final = re.compile(r"//+")
_HIDDEN: Final = re.compile(r"%2[Ff]")
_DRESS: Final = re.compile(r";[^/]*|[. ]+(?=/|$)")  # what some servers take off a segment


def plain_path(target: str) -> str | None:
    """The path of a request's target, decoded once, slashes taken together, without the query. A slash that was encoded
    stays so, as `%2F`: to some servers it is one, to others a letter. None if it is no path or not a plain one: two
    slashes before all, after which some look for a host; `.` or `..` in any spelling, a backslash, a control character,
    something encoded twice or badly."""
    path = re.split(r"[?#]", target, maxsplit=1)[0]
    if not path.startswith("/") or path.startswith("//") or any(len(escape) == 1 for escape in _ESCAPE.findall(path)):
        return None
    decoded = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("latin-1")
    if _BAD.search(decoded) or _CODE.search(decoded):
        return None
    # `..;x` is `..` to servers that take what follows a semicolon for a parameter
    if any(segment.partition(";")[0] in (".", "..") for segment in decoded.split("/")):
        return None
    if _HIDDEN.search(path):
        hidden = _HIDDEN.sub("%252F", path).encode("utf-8", "surrogateescape")
        decoded = unquote_to_bytes(hidden).decode("latin-1")
    return _SLASHES.sub("/", decoded)


def readings(path: str) -> tuple[str, ...]:
    """All that servers could take a plain path for that only means well."""
    decoded = _SLASHES.sub("/", _HIDDEN.sub("/", path))
    return tuple(dict.fromkeys((path, decoded, _SLASHES.sub("/", _DRESS.sub("", decoded)) or "/")))


def is_within(path: str, prefix: str) -> bool:
    """Both plain. `/v1` has `/v1` and `/v1/x` within, not `/v12`."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")
