"""/v1/sandboxes/{ref}/files/watch: changes below a directory as lines of JSON, without end."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.answers import NDJSON, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.trees import MOST_PATTERNS, TreeQuery
from skerry.types import check_text, told_path

if TYPE_CHECKING:
    from skerry.engine.watches import Watching

_TOKEN = re.compile(r"[0-9a-f]{16}\.[0-9]{1,15}")
_encoder = msgspec.json.Encoder()


class WatchQuery(TreeQuery, frozen=True, kw_only=True):
    """`include` and `exclude`, which may come often, are patterns of what is told; `recursive=false`: only what lies in
    the directory itself. `since` is the token of an event: what came after it is told first."""

    recursive: bool = True
    include: tuple[str, ...] = ()
    since: str | None = None

    def __post_init__(self) -> None:
        TreeQuery.__post_init__(self)
        if len(self.include) > MOST_PATTERNS:
            raise InvalidRequest(f"include: more than {MOST_PATTERNS} patterns")
        check_text("include", *self.include)
        if self.since is not None and not _TOKEN.fullmatch(self.since):
            raise InvalidRequest(f"since: {self.since[:60]!r} is not a token", hint="an event's `token`")


async def watch(call: Call[WatchQuery, Nothing]) -> Stream:
    call.accepts(NDJSON)
    query = call.query
    files = await call.engine.files(call.caller, call.ref)
    watching = await files.watch(
        query.path, recursive=query.recursive, include=query.include, exclude=query.exclude, since=query.since,
        user=query.user,
    )  # fmt: skip
    return Stream(NDJSON, _lines(watching, query.path), watching.aclose, endless=True)


async def _lines(watching: Watching, path: str) -> AsyncGenerator[bytes, None]:
    """First that the watch stands; what fails later is told in the stream itself."""
    yield _encoder.encode({"type": "ready", "path": told_path(path)[0], "token": watching.token}) + b"\n"
    try:
        async for event in watching:
            yield _encoder.encode(event) + b"\n"
    except SkerryError as error:
        yield error_body(error) + b"\n"
