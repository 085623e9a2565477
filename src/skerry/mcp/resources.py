"""Resources: a sandbox's files, what changed in it, what a process of it printed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.mcpserver.resources import ResourceSecurity
from pydantic_core import to_json

from skerry.errors import FileMissing, InvalidRequest, NotFound, SkerryError
from skerry.mcp.call import apart, room_of
from skerry.mcp.failures import in_words
from skerry.mcp.files import text_or_bytes
from skerry.mcp.review import part_of_diff
from skerry.mcp.text import bounded
from skerry.mcp.tool import Connect

T = TypeVar("T")
FILE_MOST = 4 << 20
_INSIDE = ResourceSecurity(exempt_params={"path"})  # of the sandbox's own tree: there is nothing to escape from
TEXT_MOST = 256 << 10
_IN_PARTS = "read_file gives lines of it; of a binary one, `split -b 500K` makes parts that get_file brings back"


def add(server: MCPServer, connect: Connect) -> None:
    async def read_file(ctx: Context[Any, Any], sandbox: str, path: str) -> str | bytes:
        place = await (await connect(ctx)).sandbox(sandbox)
        data = await place.files.read_bytes(path, length=FILE_MOST + 1)
        given = text_or_bytes(data)
        if len(data) > FILE_MOST or _size(given) > room_of(ctx):
            raise InvalidRequest("the file is too large for one answer", hint=_IN_PARTS)
        return given

    @server.resource(
        "skerry://sandboxes/{sandbox}/files/{+path}",
        name="file", title="A file of a sandbox", mime_type="application/octet-stream", security=_INSIDE,
        description="A file by its absolute path inside the sandbox, up to 4 MiB; over HTTP some 700 KiB.",
    )  # fmt: skip
    async def file(sandbox: str, path: str, ctx: Context[Any, Any]) -> str | bytes:
        return await _told(read_file(ctx, sandbox, f"/{path}"))

    @server.resource(
        "skerry://sandboxes/{sandbox}/workspace/{+path}",
        name="workspace_file", title="A file of the workspace", mime_type="application/octet-stream", security=_INSIDE,
        description="A file by its path from the sandbox's working directory (/workspace) on, as large as above.",
    )  # fmt: skip
    async def workspace_file(sandbox: str, path: str, ctx: Context[Any, Any]) -> str | bytes:
        return await _told(read_file(ctx, sandbox, path))

    @server.resource(
        "skerry://sandboxes/{sandbox}/diff",
        name="diff", title="What changed in a sandbox", mime_type="text/x-diff",
        description="The unified diff of the workspace against what the person has: the first 256 KiB of it.",
    )  # fmt: skip
    async def diff(sandbox: str, ctx: Context[Any, Any]) -> str:
        async def read() -> str:
            place = await (await connect(ctx)).sandbox(sandbox)
            return (await part_of_diff(place, (), 0, TEXT_MOST))[0].decode("utf-8", "replace")

        return bounded(await _told(read()), TEXT_MOST)[0]

    @server.resource(
        "skerry://sandboxes/{sandbox}/processes/{process}/output",
        name="output", title="What a process printed",
        description="The last 256 KiB of what a process printed, both streams as they came.",
    )  # fmt: skip
    async def output(sandbox: str, process: str, ctx: Context[Any, Any]) -> str:
        async def read() -> str:
            place = await (await connect(ctx)).sandbox(sandbox)
            one = await place.processes.get(process)
            return (await one.output(max(0, one.known.offset - TEXT_MOST), limit=TEXT_MOST)).text

        return bounded(await _told(read()), TEXT_MOST)[0]


def _size(given: str | bytes) -> int:
    """As it is sent."""
    return len(to_json(given)) if isinstance(given, str) else len(given) * 4 // 3


async def _told(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await apart(work)
    except (NotFound, FileMissing) as error:
        raise ResourceNotFoundError(in_words(error)) from error
    except SkerryError as error:
        raise ResourceError(in_words(error)) from error
