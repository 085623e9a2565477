"""Request paths as rules see them. A path that two servers could read differently matches no rule that allows."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_ESCAPE: Final = re.compile(r"%(?:[0-9A-Fa-f]{2})?")
_CODE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_SLASHES: Final = re.compile(r"//+")
_ENCODED_SLASH: Final = re.compile(r"%2[Ff]")
_STRIPPED_BY_SOME: Final = re.compile(r";[^/]*|[. ]+(?=/|$)")  # parts of a segment that some servers strip


def plain_path(target: str) -> str | None:
    """Return the path of a request's target, decoded once, with repeated slashes merged and without the query. An
    encoded slash stays `%2F`: some servers take it for a slash, others for a letter. Return None if the target is not a
    plain path: it begins with two slashes, after which some servers look for a host; or it has `.` or `..` in any
    spelling, a backslash, a control character, or anything encoded twice or badly."""
    path = re.split(r"[?#]", target, maxsplit=1)[0]
    if not path.startswith("/") or path.startswith("//") or any(len(escape) == 1 for escape in _ESCAPE.findall(path)):
        return None
    decoded = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("latin-1")
    if _FORBIDDEN.search(decoded) or _CODE.search(decoded):
        return None
    # `..;x` is `..` to servers that read a parameter after a semicolon
    if any(segment.partition(";")[0] in (".", "..") for segment in decoded.split("/")):
        return None
    if _ENCODED_SLASH.search(path):
        hidden = _ENCODED_SLASH.sub("%252F", path).encode("utf-8", "surrogateescape")
        decoded = unquote_to_bytes(hidden).decode("latin-1")
    return _SLASHES.sub("/", decoded)


def possible_readings(path: str) -> tuple[str, ...]:
    """Return all paths that a server could reasonably read from a plain path."""
    decoded = _SLASHES.sub("/", _ENCODED_SLASH.sub("/", path))
    return tuple(dict.fromkeys((path, decoded, _SLASHES.sub("/", _STRIPPED_BY_SOME.sub("", decoded)) or "/")))


def is_within(path: str, prefix: str) -> bool:
    """Return whether a plain path lies within a plain prefix: `/v1` contains `/v1` and `/v1/x`, not `/v12`."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")
