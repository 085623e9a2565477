"""/v1/sandboxes/{ref}/files/tree: a directory as one tar archive, both ways, never whole in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from skerry.errors import InvalidRequest, SkerryError
from skerry.server.answers import FRAMES, TAR, Stream, error_body
from skerry.server.call import Call, Nothing
from skerry.server.files import PathQuery
from skerry.server.frames import Frames
from skerry.types import Transfer, check_text

if TYPE_CHECKING:
    from skerry.engine.trees import Packing

MOST_PATTERNS = 100


class TreeQuery(PathQuery, frozen=True, kw_only=True):
    """`exclude`, which may come often: patterns of what is left out, like `*.pyc`, `node_modules` or `build/*.o`."""

    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        PathQuery.__post_init__(self)
        if len(self.exclude) > MOST_PATTERNS:
            raise InvalidRequest(f"exclude: more than {MOST_PATTERNS} patterns")
        check_text("exclude", *self.exclude)


async def download(call: Call[TreeQuery, Nothing]) -> Stream:
    wish = call.accepts(TAR, FRAMES)
    files = await call.engine.files(call.caller, call.ref)
    packing = await files.pack(call.query.path, call.query.exclude, call.query.user)
    return Stream(wish, _frames(packing) if wish == FRAMES else _pieces(packing), packing.aclose)


async def _pieces(packing: Packing) -> AsyncGenerator[bytes, None]:
    async for piece in packing:
        yield piece


async def _frames(packing: Packing) -> AsyncGenerator[bytes, None]:
    """The archive with its end told: what was in it, or what cut it short."""
    form = Frames()
    try:
        async for piece in packing:
            yield form.output("stdout", piece)
        yield form.exit(packing.moved)
    except SkerryError as error:
        yield form.error(error_body(error))


async def upload(call: Call[PathQuery, Nothing]) -> Transfer:
    files = await call.engine.files(call.caller, call.ref, writes=True)
    return await files.unpack(call.query.path, call.chunks(), call.query.user)
