"""Paths of requests as rules see them. A path that two servers could read differently matches nothing that allows."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_ESCAPE: Final = re.compile(r"%(?:[0-9A-Fa-f]{2})?")
_CODE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_BAD: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_SLASHES: Final = re.compile(r"//+")


def plain_path(target: str) -> str | None:
    """The path of a request's target, decoded once, slashes taken together, without the query. None if it is no path or
    not a plain one: `.` or `..` in any spelling, a backslash, a control character, something encoded twice or badly."""
    path = re.split(r"[?#]", target, maxsplit=1)[0]
    if not path.startswith("/") or any(len(escape) == 1 for escape in _ESCAPE.findall(path)):
        return None
    decoded = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("latin-1")
    if _BAD.search(decoded) or _CODE.search(decoded):
        return None
    # `..;x` is `..` to servers that take what follows a semicolon for a parameter
    if any(segment.partition(";")[0] in (".", "..") for segment in decoded.split("/")):
        return None
    return _SLASHES.sub("/", decoded)


def is_within(path: str, prefix: str) -> bool:
    """Both plain. `/v1` has `/v1` and `/v1/x` within, not `/v12`."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else prefix + "/")
