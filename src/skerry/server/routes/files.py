"""/v1/sandboxes/{ref}/files: content, entries, edits, archives and watches.

Content is streamed at the speed of the slower side. Arguments are in the query, because paths need not be UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from skerry.engine.files.service import FileReader, FileStep, SandboxFiles
from skerry.engine.records.trace.recorder import plain
from skerry.errors import InvalidRequest, SkerryError
from skerry.keeper.files import Files as KeeperFiles
from skerry.server.http.call import Call, Empty
from skerry.server.http.frames import FrameEncoder
from skerry.server.http.responses import (
    BYTES,
    FRAMES,
    NDJSON,
    TAR,
    BodyTooLarge,
    StreamResponse,
    WrongRange,
    error_body,
)
from skerry.types import (
    MAX_EDIT,
    Checksum,
    Entries,
    FileInfo,
    FileLines,
    PatchResult,
    PathText,
    ReplaceRequest,
    ReplaceResult,
    SearchRequest,
    SearchResult,
    TransferResult,
    Value,
    check_path,
    check_text,
    check_user,
    encode_path,
)

if TYPE_CHECKING:
    from skerry.engine.files.service import ArchiveReader, FileWatch

T = TypeVar("T")
_RANGES = {"Accept-Ranges": "bytes"}
_OCTAL = re.compile(r"[0-7]{3,4}")
_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_MAX_GLOB = 1024
REPLACE_LIMIT = MAX_EDIT * 2  # escaped, or in base64
MAX_PATTERNS = 100
_TOKEN = re.compile(r"[0-9a-f]{16}\.[0-9]{1,15}")
_encoder = msgspec.json.Encoder()


class PathQuery(Value, frozen=True, kw_only=True):
    """`path`: absolute, or relative to the sandbox's working directory; its bytes need not be UTF-8. `user`: act with
    the permissions of this user."""

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
        raise InvalidRequest(f"owner: {owner[:80]!r} is not an owner", hint='like "user", "user:group" or "1000:1000"')
    check_text("owner", owner)


class WriteQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal. `owner`: like user:group; only root may set it. `parents=true`: create missing parent
    directories. `append=true`: append to the file."""

    mode: str | None = None
    owner: str | None = None
    parents: bool = False
    append: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)
        check_owner(self.owner)
        if self.append and (self.mode is not None or self.owner is not None):
            raise InvalidRequest("append: not allowed with mode or owner", hint="use …/files/chmod, …/files/chown")


class ChecksumQuery(PathQuery, frozen=True, kw_only=True):
    algorithm: Literal["sha256", "sha512", "sha1", "md5"] = "sha256"


class LinesQuery(PathQuery, frozen=True, kw_only=True):
    """Lines from `start` to `end`, inclusive, starting at 1."""

    start: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] = 1
    end: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        if self.end is not None and self.end < self.start:
            raise InvalidRequest(f"end: line {self.end} is before line {self.start}")


async def inside(
    call: Call[Any, Any], work: Callable[[KeeperFiles], Coroutine[Any, Any, T]], step: FileStep | None = None
) -> T:
    """Run one file operation; cancel it when the caller disconnects. `step`: it changes files."""
    files = call.engine.files.of(call.caller, call.ref, step)
    return await call.until_disconnect(files.do(work))


def changing(call: Call[Any, Any], kind: str, **inputs: bytes) -> FileStep:
    return FileStep(kind, call.query, call.query.path, inputs)


async def read(call: Call[PathQuery, Empty]) -> StreamResponse:
    files = call.engine.files.of(call.caller, call.ref)
    path, user, media_type = call.query.path, call.query.user, call.headers.get(b"range")
    content = await (files.read(path, user=user) if media_type is None else _part(files, path, media_type, user))
    if not content.part:
        # files in /proc report size 0 and have content
        return StreamResponse(BYTES, _chunks(content), content.aclose, length=content.size or None, headers=_RANGES)
    start = content.start
    headers = {**_RANGES, "Content-Range": f"bytes {start}-{start + content.size - 1}/{content.total}"}
    return StreamResponse(BYTES, _chunks(content), content.aclose, length=content.size, status=206, headers=headers)


async def _part(files: SandboxFiles, path: str, media_type: str, user: str | None) -> FileReader:
    """Return the requested range, or everything for a file that reports size 0."""
    span = parse_range(media_type)
    if span is None or span[0] is None:  # an invalid range, or one from the end, needs the size first
        whole = await files.read(path, user=user)
        if span is None or (whole.total and not span[1]):
            await whole.aclose()
            raise WrongRange(media_type, whole.total)
        if not whole.total:
            return whole
        await whole.aclose()
        span = max(0, whole.total - (span[1] or 0)), None
    content = await files.read(path, span[0], span[1], user)
    if content.beyond:
        await content.aclose()
        raise WrongRange(media_type, content.total)
    return content


async def _chunks(content: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    async for chunk in content:
        yield chunk


def parse_range(media_type: str) -> tuple[int | None, int | None] | None:
    """Return the first and last byte of the range; (None, n): the last n bytes; None: the header is invalid."""
    match = _RANGE.fullmatch(media_type.strip())
    if match is None or (match[1] is None and match[2] is None):
        return None
    first, last = (None if text is None else int(text) for text in match.groups())
    if first is not None and last is not None and first > last:
        return None
    return first, last


async def write(call: Call[WriteQuery, Empty]) -> FileInfo:
    step = changing(call, "file.write")
    files = call.engine.files.of(call.caller, call.ref, step)
    query, content, mode = call.query, step.tee(call.chunks()), check_mode(call.query.mode)
    if query.append:
        return await files.do(lambda keeper: keeper.append(query.path, content, query.user, parents=query.parents))
    return await files.do(
        lambda keeper: keeper.write(
            query.path, content, mode, query.user, query.parents, query.owner, call.headers.body_size
        )
    )


async def lines(call: Call[LinesQuery, Empty]) -> FileLines:
    query = call.query
    return await inside(call, lambda files: files.lines(query.path, query.start, query.end, query.user))


async def checksum(call: Call[ChecksumQuery, Empty]) -> Checksum:
    query = call.query
    found = await inside(call, lambda files: files.checksum(query.path, query.algorithm, query.user))
    return Checksum(checksum=found, algorithm=query.algorithm)


class StatQuery(PathQuery, frozen=True, kw_only=True):
    """`follow=true`: return the target of a link."""

    follow: bool = False


class ListQuery(PathQuery, frozen=True, kw_only=True):
    """`depth`: the number of levels. `hidden=false`: skip names that begin with a dot, and everything below them."""

    depth: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    hidden: bool = True


class GlobQuery(Value, frozen=True, kw_only=True):
    """`pattern` is relative to `path`, or absolute: * ? [a-z] {a,b}, and ** for any number of directories. Names that
    begin with a dot are matched by a pattern that does so too, or with `hidden=true`."""

    pattern: PathText
    path: PathText = "."
    hidden: bool = False
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    user: str | None = None

    def __post_init__(self) -> None:
        check_path("pattern", self.pattern)
        check_path("path", self.path)
        check_user(self.user)
        if len(self.pattern) > _MAX_GLOB:
            raise InvalidRequest(f"pattern: longer than {_MAX_GLOB} characters")


class RemoveQuery(PathQuery, frozen=True, kw_only=True):
    """`recursive=true`: remove a directory and its contents."""

    recursive: bool = False


class DirectoryQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal. `parents=true`: also create parent directories, and accept an existing directory."""

    mode: str | None = None
    parents: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)


class MoveQuery(PathQuery, frozen=True, kw_only=True):
    """`to` is the new path, not a target directory. `overwrite=true`: replace an existing file. `parents=true`: create
    missing parent directories."""

    to: PathText
    overwrite: bool = False
    parents: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_path("to", self.to)


class CopyQuery(MoveQuery, frozen=True, kw_only=True):
    """As for a move. `recursive=true`: copy a directory and its contents to a path that does not exist."""

    recursive: bool = False


class ModeQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal. `recursive=true`: also change everything below, except links."""

    mode: str
    recursive: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)


class OwnerQuery(PathQuery, frozen=True, kw_only=True):
    """`owner`: user, user:group or :group, as names or numbers. `recursive=true`: also change everything below."""

    owner: str
    recursive: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_owner(self.owner)


class LinkQuery(PathQuery, frozen=True, kw_only=True):
    """Create a symbolic link at `path` to `target`. `hard=true`: create a hard link."""

    target: PathText
    hard: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_path("target", self.target)


async def stat(call: Call[StatQuery, Empty]) -> FileInfo:
    query = call.query
    return await inside(call, lambda files: files.stat(query.path, query.user, follow=query.follow))


async def list_(call: Call[ListQuery, Empty]) -> Entries:
    query = call.query
    return await inside(call, lambda files: files.list(query.path, query.user, depth=query.depth, hidden=query.hidden))


async def glob(call: Call[GlobQuery, Empty]) -> Entries:
    query = call.query
    return await inside(
        call, lambda files: files.glob(query.pattern, query.path, query.user, hidden=query.hidden, limit=query.limit)
    )


async def search(call: Call[SearchRequest, Empty]) -> SearchResult:
    return await inside(call, lambda files: files.search(call.query))


async def mkdir(call: Call[DirectoryQuery, Empty]) -> FileInfo:
    query, mode = call.query, check_mode(call.query.mode)
    return await inside(
        call, lambda files: files.mkdir(query.path, query.parents, mode, query.user), changing(call, "file.mkdir")
    )


async def remove(call: Call[RemoveQuery, Empty]) -> None:
    query = call.query
    await inside(
        call, lambda files: files.remove(query.path, query.recursive, query.user), changing(call, "file.remove")
    )


async def move(call: Call[MoveQuery, Empty]) -> FileInfo:
    query = call.query
    options = {"overwrite": query.overwrite, "parents": query.parents}
    return await inside(
        call, lambda files: files.move(query.path, query.to, query.user, **options), changing(call, "file.move")
    )


async def copy(call: Call[CopyQuery, Empty]) -> FileInfo:
    query = call.query
    options = {"recursive": query.recursive, "overwrite": query.overwrite, "parents": query.parents}
    return await inside(
        call, lambda files: files.copy(query.path, query.to, query.user, **options), changing(call, "file.copy")
    )


async def chmod(call: Call[ModeQuery, Empty]) -> None:
    query, mode = call.query, int(call.query.mode, 8)
    await inside(
        call,
        lambda files: files.chmod(query.path, mode, query.user, recursive=query.recursive),
        changing(call, "file.chmod"),
    )


async def chown(call: Call[OwnerQuery, Empty]) -> None:
    query = call.query
    await inside(
        call,
        lambda files: files.chown(query.path, query.owner, query.user, recursive=query.recursive),
        changing(call, "file.chown"),
    )


async def link(call: Call[LinkQuery, Empty]) -> FileInfo:
    query = call.query
    return await inside(
        call,
        lambda files: files.link(query.target, query.path, query.user, hard=query.hard),
        changing(call, "file.link"),
    )


async def replace(call: Call[PathQuery, ReplaceRequest]) -> ReplaceResult:
    query, old, new, count = call.query, call.body.before, call.body.after, call.body.count
    if len(old) + len(new) > MAX_EDIT:
        raise _edit_too_large("old, new")
    step = FileStep("file.replace", {**plain(query), "count": count}, query.path, {"old": old, "new": new})
    return await inside(call, lambda files: files.replace(query.path, old, new, count, query.user), step)


async def patch(call: Call[PathQuery, Empty]) -> PatchResult:
    query, diff = call.query, bytearray()
    async for chunk in call.chunks():
        diff += chunk
        if len(diff) > MAX_EDIT:
            raise _edit_too_large("the diff")
    if not diff:
        raise InvalidRequest("the diff is empty")
    return await inside(
        call,
        lambda files: files.patch(query.path, bytes(diff), query.user),
        changing(call, "file.patch", body=bytes(diff)),
    )


def _edit_too_large(what: str) -> BodyTooLarge:
    return BodyTooLarge(f"{what}: more than {MAX_EDIT >> 20} MiB", hint="write the whole file instead")


class TreeQuery(PathQuery, frozen=True, kw_only=True):
    """`exclude` (repeatable): patterns of paths to skip, like `*.pyc`, `node_modules` or `build/*.o`."""

    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        if len(self.exclude) > MAX_PATTERNS:
            raise InvalidRequest(f"exclude: more than {MAX_PATTERNS} patterns")
        check_text("exclude", *self.exclude)


async def download(call: Call[TreeQuery, Empty]) -> StreamResponse:
    media_type = call.accepts(TAR, FRAMES)
    files = call.engine.files.of(call.caller, call.ref)
    packing = await files.pack(call.query.path, call.query.exclude, call.query.user)
    return StreamResponse(
        media_type, _archive_frames(packing) if media_type == FRAMES else _archive_pieces(packing), packing.aclose
    )


async def _archive_pieces(packing: ArchiveReader) -> AsyncGenerator[bytes, None]:
    async for piece in packing:
        yield piece


async def _archive_frames(packing: ArchiveReader) -> AsyncGenerator[bytes, None]:
    """Send the archive, then a frame with the totals or the error that ended it."""
    form = FrameEncoder()
    try:
        async for piece in packing:
            yield form.output("stdout", piece)
        yield form.exit(packing.moved)
    except SkerryError as error:
        yield form.error(error_body(error))


async def upload(call: Call[PathQuery, Empty]) -> TransferResult:
    step = changing(call, "file.upload")
    files = call.engine.files.of(call.caller, call.ref, step)
    return await files.unpack(call.query.path, step.tee(call.chunks()), call.query.user)


class WatchQuery(TreeQuery, frozen=True, kw_only=True):
    """`include`, `exclude` (repeatable): patterns of paths to report. `recursive=false`: only entries of the directory
    itself. `since`: the token of an event; later events are sent first."""

    recursive: bool = True
    include: tuple[str, ...] = ()
    since: str | None = None

    def __post_init__(self) -> None:
        TreeQuery.__post_init__(self)
        if len(self.include) > MAX_PATTERNS:
            raise InvalidRequest(f"include: more than {MAX_PATTERNS} patterns")
        check_text("include", *self.include)
        if self.since is not None and not _TOKEN.fullmatch(self.since):
            raise InvalidRequest(f"since: {self.since[:60]!r} is not a token", hint="an event's `token`")


async def watch(call: Call[WatchQuery, Empty]) -> StreamResponse:
    call.accepts(NDJSON)
    query = call.query
    files = call.engine.files.of(call.caller, call.ref)
    watching = await files.watch(
        query.path, recursive=query.recursive, include=query.include, exclude=query.exclude, since=query.since,
        user=query.user,
    )  # fmt: skip
    return StreamResponse(NDJSON, _event_lines(watching, query.path), watching.aclose, endless=True)


async def _event_lines(watching: FileWatch, path: str) -> AsyncGenerator[bytes, None]:
    """Send `ready` first; report later errors in the stream."""
    yield _encoder.encode({"type": "ready", "path": encode_path(path)[0], "token": watching.token}) + b"\n"
    try:
        async for event in watching:
            yield _encoder.encode(event) + b"\n"
    except SkerryError as error:
        yield error_body(error) + b"\n"
