"""/v1/sandboxes/{ref}/files/{replace,patch}: files edited where they are."""

from __future__ import annotations

from skerry.errors import InvalidRequest
from skerry.server.answers import BodyTooLarge
from skerry.server.call import Call, Nothing
from skerry.server.files import PathQuery, inside
from skerry.types import EDIT_MOST, Patched, Replaced, ReplaceRequest

REPLACE_LIMIT = EDIT_MOST * 2  # escaped, or in base64


async def replace(call: Call[PathQuery, ReplaceRequest]) -> Replaced:
    query, old, new, count = call.query, call.body.before, call.body.after, call.body.count
    if len(old) + len(new) > EDIT_MOST:
        raise _too_large("old, new")
    return await inside(call, lambda files: files.replace(query.path, old, new, count, query.user))


async def patch(call: Call[PathQuery, Nothing]) -> Patched:
    query, diff = call.query, bytearray()
    async for chunk in call.chunks():
        diff += chunk
        if len(diff) > EDIT_MOST:
            raise _too_large("the diff")
    if not diff:
        raise InvalidRequest("the diff is empty")
    return await inside(call, lambda files: files.patch(query.path, bytes(diff), query.user))


def _too_large(what: str) -> BodyTooLarge:
    return BodyTooLarge(f"{what}: more than {EDIT_MOST >> 20} MiB", hint="write the whole file instead")
