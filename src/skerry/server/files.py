"""/v1/sandboxes/{ref}/files: what lies inside, streamed both ways at the slower side's speed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable

from skerry.errors import InvalidRequest
from skerry.server.answers import BYTES, Stream, WrongRange
from skerry.server.call import Call, Nothing
from skerry.types import Answer, FileInfo, Value, check_path, check_user

_RANGES = {"Accept-Ranges": "bytes"}
_OCTAL = re.compile(r"[0-7]{3,4}")
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


class PathQuery(Value, frozen=True, kw_only=True):
    """`path` is absolute, or relative to the sandbox's directory of work; `user` is whose rights count."""

    path: str
    user: str | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_user(self.user)


class WriteQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal; `parents=true` makes the directories above that are missing."""

    mode: str | None = None
    parents: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        if self.mode is not None and not _OCTAL.fullmatch(self.mode):
            raise InvalidRequest(f"mode: {self.mode[:20]!r} is not an octal mode", hint="like 0644")


class RemoveQuery(PathQuery, frozen=True, kw_only=True):
    """`recursive=true` takes a directory with all that is in it."""

    recursive: bool = False


class DirectoryRequest(Value, frozen=True, kw_only=True):
    """A new directory. `mode` is a number; 0755 is 493. `parents`: also those above, and no error if it is there."""

    path: str
    parents: bool = False
    mode: int | None = None
    user: str | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_user(self.user)
        if self.mode is not None and not 0 <= self.mode <= 0o7777:
            raise InvalidRequest(f"mode: {self.mode} is out of range", hint="between 0 and 4095 (07777)")


class Entries(Answer, frozen=True, kw_only=True):
    """A directory's entries; `more`: there are others beyond the bound."""

    entries: list[FileInfo]
    more: bool


async def read(call: Call[PathQuery, Nothing]) -> Stream:
    files = await call.engine.files(call.caller, call.ref)
    path, user, wish = call.query.path, call.query.user, call.headers.get(b"range")
    content = await files.read(path, None, None, user)
    if wish is None:
        # the files of /proc say that they are empty, and are not
        return Stream(BYTES, _chunks(content), content.aclose, length=content.size or None, headers=_RANGES)
    await content.aclose()  # opened for its size only: a link's own size would be another
    start, end = parse_range(wish, content.total)
    content = await files.read(path, start, end, user)
    span = f"bytes {start}-{start + content.size - 1}/{content.total}"
    headers = {**_RANGES, "Content-Range": span}
    return Stream(BYTES, _chunks(content), content.aclose, length=content.size, status=206, headers=headers)


async def _chunks(content: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in content:
        yield chunk


def parse_range(wish: str, total: int) -> tuple[int, int]:
    """First and last byte of the one range that is asked for."""
    match = _RANGE.fullmatch(wish.strip())
    if match is None or (match[1] is None and match[2] is None):
        raise WrongRange(wish, total)
    if match[1] is None:
        start, end = max(0, total - int(match[2])), total - 1
    else:
        start, end = int(match[1]), min(int(match[2] or total), total - 1)
    if start > end:
        raise WrongRange(wish, total)
    return start, end


async def write(call: Call[WriteQuery, Nothing]) -> FileInfo:
    files = await call.engine.files(call.caller, call.ref)
    query = call.query
    mode = int(query.mode, 8) if query.mode is not None else None
    return await files.write(query.path, call.chunks(), mode, query.user, query.parents)


async def remove(call: Call[RemoveQuery, Nothing]) -> None:
    files = await call.engine.files(call.caller, call.ref)
    await files.remove(call.query.path, call.query.recursive, call.query.user)


async def stat(call: Call[PathQuery, Nothing]) -> FileInfo:
    files = await call.engine.files(call.caller, call.ref)
    return await files.stat(call.query.path, call.query.user)


async def list_(call: Call[PathQuery, Nothing]) -> Entries:
    files = await call.engine.files(call.caller, call.ref)
    entries, more = await files.list(call.query.path, call.query.user)
    return Entries(entries=entries, more=more)


async def mkdir(call: Call[Nothing, DirectoryRequest]) -> FileInfo:
    files = await call.engine.files(call.caller, call.ref)
    return await files.mkdir(call.body.path, call.body.parents, call.body.mode, call.body.user)
