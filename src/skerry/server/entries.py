"""/v1/sandboxes/{ref}/files/…: what lies where. Arguments are in the query, because paths need not be UTF-8."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.server.call import Call, Nothing
from skerry.server.files import PathQuery, check_mode, check_owner, inside
from skerry.types import Entries, FileInfo, Matches, PathText, SearchRequest, Value, check_path, check_user

_GLOB_MOST = 1024


class StatQuery(PathQuery, frozen=True, kw_only=True):
    """`follow=true` tells of what a link leads to."""

    follow: bool = False


class ListQuery(PathQuery, frozen=True, kw_only=True):
    """`depth` is how many levels; `hidden=false` leaves out names that begin with a dot, and what is below them."""

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
        if len(self.pattern) > _GLOB_MOST:
            raise InvalidRequest(f"pattern: longer than {_GLOB_MOST} characters")


class RemoveQuery(PathQuery, frozen=True, kw_only=True):
    """`recursive=true` takes a directory with all that is in it."""

    recursive: bool = False


class DirectoryQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal; `parents=true`: also those above, and no error if it is there."""

    mode: str | None = None
    parents: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)


class MoveQuery(PathQuery, frozen=True, kw_only=True):
    """`to` is the new path itself, not a directory to put it into. `overwrite=true` replaces a file that is there;
    `parents=true` makes the directories above that are missing."""

    to: PathText
    overwrite: bool = False
    parents: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_path("to", self.to)


class CopyQuery(MoveQuery, frozen=True, kw_only=True):
    """As for a move. `recursive=true` copies a directory with all that is in it, to a place where nothing is."""

    recursive: bool = False


class ModeQuery(PathQuery, frozen=True, kw_only=True):
    """`mode` in octal; `recursive=true`: also of all below, but of no link."""

    mode: str
    recursive: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_mode(self.mode)


class OwnerQuery(PathQuery, frozen=True, kw_only=True):
    """`owner` is user, user:group or :group, names or numbers; `recursive=true`: also of all below."""

    owner: str
    recursive: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_owner(self.owner)


class LinkQuery(PathQuery, frozen=True, kw_only=True):
    """A link at `path` that says `target`; `hard=true`: another name of the file that is there."""

    target: PathText
    hard: bool = False

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        check_path("target", self.target)


async def stat(call: Call[StatQuery, Nothing]) -> FileInfo:
    query = call.query
    return await inside(call, lambda files: files.stat(query.path, query.user, follow=query.follow))


async def list_(call: Call[ListQuery, Nothing]) -> Entries:
    query = call.query
    return await inside(call, lambda files: files.list(query.path, query.user, depth=query.depth, hidden=query.hidden))


async def glob(call: Call[GlobQuery, Nothing]) -> Entries:
    query = call.query
    return await inside(
        call, lambda files: files.glob(query.pattern, query.path, query.user, hidden=query.hidden, limit=query.limit)
    )


async def search(call: Call[SearchRequest, Nothing]) -> Matches:
    return await inside(call, lambda files: files.search(call.query))


async def mkdir(call: Call[DirectoryQuery, Nothing]) -> FileInfo:
    query, mode = call.query, check_mode(call.query.mode)
    return await inside(call, lambda files: files.mkdir(query.path, query.parents, mode, query.user))


async def remove(call: Call[RemoveQuery, Nothing]) -> None:
    query = call.query
    await inside(call, lambda files: files.remove(query.path, query.recursive, query.user))


async def move(call: Call[MoveQuery, Nothing]) -> FileInfo:
    query = call.query
    options = {"overwrite": query.overwrite, "parents": query.parents}
    return await inside(call, lambda files: files.move(query.path, query.to, query.user, **options))


async def copy(call: Call[CopyQuery, Nothing]) -> FileInfo:
    query = call.query
    options = {"recursive": query.recursive, "overwrite": query.overwrite, "parents": query.parents}
    return await inside(call, lambda files: files.copy(query.path, query.to, query.user, **options))


async def chmod(call: Call[ModeQuery, Nothing]) -> None:
    query, mode = call.query, int(call.query.mode, 8)
    await inside(call, lambda files: files.chmod(query.path, mode, query.user, recursive=query.recursive))


async def chown(call: Call[OwnerQuery, Nothing]) -> None:
    query = call.query
    await inside(call, lambda files: files.chown(query.path, query.owner, query.user, recursive=query.recursive))


async def link(call: Call[LinkQuery, Nothing]) -> FileInfo:
    query = call.query
    return await inside(call, lambda files: files.link(query.target, query.path, query.user, hard=query.hard))
