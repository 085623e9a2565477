"""Requests about files. Pure. Arguments are in the query: the bytes of a path need not be UTF-8."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from skerry.client.transport.requests.sandboxes import JSON, NDJSON, TAR, Body, Request, sandbox_path
from skerry.codecs.frames import MEDIA_TYPE
from skerry.errors import InvalidRequest
from skerry.types import ReplaceRequest, check_path

InsidePath = str | os.PathLike[str]
Argument = str | int | bool | os.PathLike[str] | None
BYTES = "application/octet-stream"
DIFF = "text/x-diff"


def path_text(path: InsidePath, what: str = "path") -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise InvalidRequest(f"{what}: {text!r} is not a str", hint="os.fsdecode() makes one of bytes")
    check_path(what, text)
    return text


def octal(mode: int | None) -> str | None:
    if mode is not None and (isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o7777):
        raise InvalidRequest(f"mode: {mode!r} is out of range", hint="an int like 0o644")
    return None if mode is None else f"{mode:04o}"


def owner_text(owner: str | int | None) -> str | None:
    return None if owner is None else str(owner)


def _query(**values: Argument) -> tuple[tuple[str, str], ...]:
    given = ((name, value) for name, value in values.items() if value is not None)
    return tuple((name, str(value).lower() if isinstance(value, bool) else _text(name, value)) for name, value in given)


def _text(name: str, value: Argument) -> str:
    text = str(value)
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: not valid Unicode") from None
    return text


def read_file(
    ref: str, path: InsidePath, *, offset: int = 0, length: int | None = None, user: str | None = None
) -> Request:
    if offset < 0 or (length is not None and length < 0):
        raise InvalidRequest(f"offset, length: {offset}, {length} is not a valid range", hint="neither is negative")
    span = {}
    if offset or length is not None:
        span = {"range": f"bytes={offset}-" + ("" if length is None else str(offset + max(length, 1) - 1))}
    query = _query(path=path_text(path), user=user)
    return Request("GET", sandbox_path(ref, "files"), query, accept="*/*", more_headers=span)


def write_file(
    ref: str,
    path: InsidePath,
    content: Body,
    *,
    size: int | None = None,
    mode: int | None = None,
    owner: str | int | None = None,
    user: str | None = None,
    parents: bool = True,
) -> Request:
    query = _query(path=path_text(path), mode=octal(mode), owner=owner_text(owner), user=user, parents=parents)
    return Request("PUT", sandbox_path(ref, "files"), query, content, BYTES, more_headers=_sized(size))


def append_file(
    ref: str, path: InsidePath, content: Body, *, size: int | None = None, user: str | None, parents: bool
) -> Request:
    query = _query(path=path_text(path), append=True, user=user, parents=parents)
    return Request("PUT", sandbox_path(ref, "files"), query, content, BYTES, more_headers=_sized(size))


def _sized(size: int | None) -> dict[str, str]:
    """Return the header that announces the size, so that the body needs no framing."""
    return {} if size is None else {"content-length": str(size)}


def remove_file(ref: str, path: InsidePath, *, recursive: bool, user: str | None) -> Request:
    query = _query(path=path_text(path), recursive=recursive, user=user)
    return Request("DELETE", sandbox_path(ref, "files"), query, read_timeout=None)


def query_file(ref: str, verb: str, path: InsidePath, user: str | None, **more: Argument) -> Request:
    """Request stat, list, checksum …: nothing is changed."""
    query = _query(path=path_text(path), user=user, **more)
    return Request("GET", sandbox_path(ref, "files", verb), query, read_timeout=None)


def change(ref: str, verb: str, path: InsidePath, user: str | None, **more: Argument) -> Request:
    """Request mkdir, move, copy …"""
    query = _query(path=path_text(path), user=user, **more)
    return Request("POST", sandbox_path(ref, "files", verb), query, read_timeout=None)


def upload_tree(ref: str, path: InsidePath, archive: Body, user: str | None) -> Request:
    return Request("PUT", sandbox_path(ref, "files", "tree"), _query(path=path_text(path), user=user), archive, TAR)


def download_tree(ref: str, path: InsidePath, exclude: Sequence[str], user: str | None) -> Request:
    query = (*_query(path=path_text(path), user=user), *(("exclude", pattern) for pattern in exclude))
    return Request("GET", sandbox_path(ref, "files", "tree"), query, accept=MEDIA_TYPE)


@dataclass(frozen=True)
class WatchOptions:
    path: InsidePath
    recursive: bool
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    user: str | None


def watch(ref: str, options: WatchOptions, since: str | None) -> Request:
    query = _query(path=path_text(options.path), recursive=options.recursive, since=since, user=options.user)
    patterns = (*(("include", one) for one in options.include), *(("exclude", one) for one in options.exclude))
    path = sandbox_path(ref, "files", "watch")
    return Request("GET", path, (*query, *patterns), accept=NDJSON, read_timeout=None)


def replace(
    ref: str, path: InsidePath, old: str | bytes, new: str | bytes, count: int | None, user: str | None
) -> Request:
    given: dict[str, Any] = {"count": count}
    for name, value in (("old", old), ("new", new)):
        given[name if isinstance(value, str) else f"{name}_base64"] = value
    body = msgspec.json.encode(ReplaceRequest(**given))
    query = _query(path=path_text(path), user=user)
    return Request("POST", sandbox_path(ref, "files", "replace"), query, body, JSON, read_timeout=None)


def patch(ref: str, path: InsidePath, diff: str | bytes, user: str | None) -> Request:
    body = _text("diff", diff).encode("utf-8", "surrogateescape") if isinstance(diff, str) else bytes(diff)
    query = _query(path=path_text(path), user=user)
    return Request("POST", sandbox_path(ref, "files", "patch"), query, body, DIFF, read_timeout=None)
