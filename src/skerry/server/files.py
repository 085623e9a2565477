"""/v1/sandboxes/{ref}/files: the content of files, streamed both ways at the slower side's speed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from skerry.engine.files import Files, Reading
from skerry.errors import InvalidRequest
from skerry.keeper.files import Files as KeeperFiles
from skerry.server.answers import BYTES, Stream, WrongRange
from skerry.server.call import Call, Nothing
from skerry.types import Answer, FileInfo, Lines, PathText, Value, check_path, check_text, check_user

T = TypeVar("T")
_RANGES = {"Accept-Ranges": "bytes"}
_OCTAL = re.compile(r"[0-7]{3,4}")
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


class PathQuery(Value, frozen=True, kw_only=True):
    """`path` is absolute, or relative to the sandbox's directory of work, and its bytes need not be UTF-8; `user` is
    whose rights count."""

    path: PathText
    user: str | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_user(self.user)


def check_mode(mode: str | None) -> int | None:
    if mode is not None and not _OCTAL.fullmatch(mode):
        raise InvalidRequest(f"mode: {mode[:20]!r} is not an octal mode", hint="like 0644")
    return None if mode is None else int(mode, 8)


def check_owner(owner: str | None) -> None:
    if owner is None:
        return
    if not owner.strip(":") or len(owner) > 512:
        raise InvalidRequest(f"owner: {owner[:80]!r} is none", hint='like "user", "user:group" or "1000:1000"')
    check_text("owner", owner)


class WriteQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal; `owner` like user:group, which only root may give; `parents=true` makes the directories above
    that are missing; `append=true` adds to what is there."""

    mode: str | None = None
    owner: str | None = None
    parents: bool = False
    append: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)
        check_owner(self.owner)
        if self.append and (self.mode is not None or self.owner is not None):
            raise InvalidRequest("append: goes with no mode and no owner", hint="use …/files/chmod, …/files/chown")


class ChecksumQuery(PathQuery, frozen=True, kw_only=True):
    algorithm: Literal["sha256", "sha512", "sha1", "md5"] = "sha256"


class LinesQuery(PathQuery, frozen=True, kw_only=True):
    """From line `start` to line `end`, both included and counted from 1."""

    start: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 1
    end: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        if self.end is not None and self.end < self.start:
            raise InvalidRequest(f"end: line {self.end} is before line {self.start}")


class Checksum(Answer, frozen=True, kw_only=True):
    """Over a file's content, as hexadecimal digits."""

    checksum: str
    algorithm: str


async def inside(call: Call[Any, Any], work: Callable[[KeeperFiles], Coroutine[Any, Any, T]]) -> T:
    """One operation on the sandbox's files; it is broken off when the caller goes away."""
    files = await call.engine.files(call.caller, call.ref, writes=call.method not in ("GET", "HEAD"))
    return await call.while_here(files.do(work))


async def read(call: Call[PathQuery, Nothing]) -> Stream:
    files = await call.engine.files(call.caller, call.ref)
    path, user, wish = call.query.path, call.query.user, call.headers.get(b"range")
    content = await (files.read(path, user=user) if wish is None else _part(files, path, wish, user))
    if not content.part:
        # the files of /proc say that they are empty, and are not
        return Stream(BYTES, _chunks(content), content.aclose, length=content.size or None, headers=_RANGES)
    start = content.start
    headers = {**_RANGES, "Content-Range": f"bytes {start}-{start + content.size - 1}/{content.total}"}
    return Stream(BYTES, _chunks(content), content.aclose, length=content.size, status=206, headers=headers)


async def _part(files: Files, path: str, wish: str, user: str | None) -> Reading:
    """The part that is asked for; of a file that says that it is empty, all."""
    span = parse_range(wish)
    if span is None or span[0] is None:  # what is wrong, or counts from the end, needs the size first
        whole = await files.read(path, user=user)
        if span is None or (whole.total and not span[1]):
            await whole.aclose()
            raise WrongRange(wish, whole.total)
        if not whole.total:
            return whole
        await whole.aclose()
        span = max(0, whole.total - (span[1] or 0)), None
    content = await files.read(path, span[0], span[1], user)
    if content.beyond:
        await content.aclose()
        raise WrongRange(wish, content.total)
    return content


async def _chunks(content: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in content:
        yield chunk


def parse_range(wish: str) -> tuple[int | None, int | None] | None:
    """First and last byte of the one range that is asked for; (None, n): the last n bytes; None: it can't be read."""
    match = _RANGE.fullmatch(wish.strip())
    if match is None or (match[1] is None and match[2] is None):
        return None
    first, last = (None if text is None else int(text) for text in match.groups())
    if first is not None and last is not None and first > last:
        return None
    return first, last


async def write(call: Call[WriteQuery, Nothing]) -> FileInfo:
    files = await call.engine.files(call.caller, call.ref, writes=True)
    query, content, mode = call.query, call.chunks(), check_mode(call.query.mode)
    if query.append:
        return await files.do(lambda keeper: keeper.append(query.path, content, query.user, parents=query.parents))
    return await files.do(
        lambda keeper: keeper.write(
            query.path, content, mode, query.user, query.parents, query.owner, call.headers.body_size
        )
    )


async def lines(call: Call[LinesQuery, Nothing]) -> Lines:
    query = call.query
    return await inside(call, lambda files: files.lines(query.path, query.start, query.end, query.user))


async def checksum(call: Call[ChecksumQuery, Nothing]) -> Checksum:
    query = call.query
    found = await inside(call, lambda files: files.checksum(query.path, query.algorithm, query.user))
    return Checksum(checksum=found, algorithm=query.algorithm)
