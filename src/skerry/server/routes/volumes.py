"""/v1/volumes: directories that outlive sandboxes."""

from __future__ import annotations

from typing import Any

from skerry.errors import NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.http.responses import FRAMES, TAR, StreamResponse
from skerry.server.routes.archives import stream
from skerry.types import (
    NAME,
    ImportedVolume,
    Value,
    VolumeInfo,
    VolumeList,
    VolumeRequest,
    VolumeSnapshotRequest,
)


class ImportVolumeQuery(Value, frozen=True, kw_only=True):
    """`name` and `size` of the new volume."""

    name: str
    size: str | None = None


async def create(call: Call[Empty, VolumeRequest]) -> VolumeInfo:
    return await call.engine.volumes.create(call.caller, call.body)


async def list_(call: Call[Empty, Empty]) -> VolumeList:
    return VolumeList(volumes=await call.engine.volumes.list(call.caller))


async def get(call: Call[Empty, Empty]) -> VolumeInfo:
    return await call.engine.volumes.get(call.caller, _ref(call))


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.volumes.delete(call.caller, _ref(call))


async def snapshot(call: Call[Empty, VolumeSnapshotRequest]) -> VolumeInfo:
    return await call.engine.volumes.snapshot(call.caller, _ref(call), call.body.name)


async def clone(call: Call[Empty, VolumeRequest]) -> VolumeInfo:
    return await call.engine.volumes.clone(call.caller, _ref(call), call.body)


async def export(call: Call[Empty, Empty]) -> StreamResponse:
    media_type = call.accepts(TAR, FRAMES)
    return stream(media_type, await call.engine.volumes.export(call.caller, _ref(call)))


async def import_(call: Call[ImportVolumeQuery, Empty]) -> ImportedVolume:
    request = VolumeRequest(name=call.query.name, size=call.query.size)
    return await call.stream_body(lambda body: call.engine.volumes.import_(call.caller, request, body))


def _ref(call: Call[Any, Any]) -> str:
    """Return the volume's ID or name from the path; an invalid one is not found."""
    ref = call.parameters["volume"]
    if not NAME.fullmatch(ref):
        raise NotFound(f"volume {ref[:80]!r} not found")
    return ref
