"""/v1/snapshots and /v1/sandboxes/{ref}/snapshots: snapshots of sandboxes' files; forks and rollback."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from skerry.engine.files.service import FileStep
from skerry.engine.snapshots.service import compare
from skerry.errors import InvalidRequest, NotFound
from skerry.server.http.call import Call, Empty
from skerry.server.routes.files import PathQuery
from skerry.server.routes.sandboxes import key_of
from skerry.storage.changes import MAX_CHANGES
from skerry.types import (
    NAME,
    ForkRequest,
    PathText,
    RollbackRequest,
    SandboxInfo,
    SandboxList,
    SnapshotDiff,
    SnapshotInfo,
    SnapshotList,
    SnapshotRequest,
    TransferResult,
    Value,
    check_path,
    check_text,
    check_user,
)


class SnapshotQuery(Value, frozen=True, kw_only=True):
    """`kind`: default is snapshots taken by hand. `key`: the build step with this key, if it exists."""

    kind: Literal["kept", "auto", "build"] | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.key is not None:
            raise InvalidRequest("kind: not together with key")


class ChangesQuery(Value, frozen=True, kw_only=True):
    """`to`: a snapshot, a sandbox in its current state, or an image. Default: the sandbox that the snapshot was taken
    of. `limit`: the maximum number of changes."""

    to: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGES)] = MAX_CHANGES

    def __post_init__(self) -> None:
        if self.to is not None:
            check_text("to", self.to)


async def take(call: Call[Empty, SnapshotRequest]) -> SnapshotInfo:
    if call.body.path is not None:
        sandbox = call.engine.registry.find(call.caller, call.ref)
        return await call.engine.archives.take_directory(call.caller, sandbox, call.body, key_of(call))
    return await call.engine.snapshots.take(call.caller, call.ref, call.body, key_of(call))


async def fork(call: Call[Empty, ForkRequest]) -> SandboxList:
    made = await call.engine.forks.fork(call.caller, call.ref, call.body, key_of(call))
    return SandboxList(sandboxes=made)


class RestoreQuery(Value, frozen=True, kw_only=True):
    """`snapshot`: of a directory, by ID or name. `path`: the target; default: the path of that directory. `user`: the
    owner of the files."""

    snapshot: str
    path: PathText = ""
    user: str | None = None

    def __post_init__(self) -> None:
        if self.path:
            check_path("path", self.path)
        check_user(self.user)


async def restore(call: Call[RestoreQuery, Empty]) -> TransferResult:
    ref = call.query.snapshot
    if not NAME.fullmatch(ref):
        raise NotFound(f"snapshot {ref[:80]!r} not found")
    path, export = await call.engine.archives.directory(call.caller, ref)
    try:
        target = PathQuery(path=call.query.path or path, user=call.query.user)
        step = FileStep("file.upload", target, target.path)
        files = call.engine.files.of(call.caller, call.ref, step)
        return await call.until_disconnect(files.unpack(target.path, step.tee(aiter(export)), target.user))
    finally:
        await export.aclose()


async def rollback(call: Call[Empty, RollbackRequest]) -> SandboxInfo:
    return await call.engine.rollbacks.rollback(call.caller, call.ref, call.body)


async def of_one(call: Call[Empty, Empty]) -> SnapshotList:
    return SnapshotList(snapshots=call.engine.snapshots.of(call.caller, call.ref))


async def list_(call: Call[SnapshotQuery, Empty]) -> SnapshotList:
    return SnapshotList(snapshots=await call.engine.snapshots.list(call.caller, call.query.kind, call.query.key))


async def get(call: Call[Empty, Empty]) -> SnapshotInfo:
    return await call.engine.snapshots.get(call.caller, ref_of(call))


async def changes(call: Call[ChangesQuery, Empty]) -> SnapshotDiff:
    work = compare(call.engine.snapshots, call.caller, ref_of(call), call.query.to, call.query.limit)
    return await call.until_disconnect(work)


async def remove(call: Call[Empty, Empty]) -> None:
    await call.engine.snapshots.delete(call.caller, ref_of(call))


def ref_of(call: Call[Any, Any]) -> str:
    """Return the snapshot's ID or name from the path; an invalid one is not found."""
    ref = call.parameters["snapshot"]
    if not NAME.fullmatch(ref):
        raise NotFound(f"snapshot {ref[:80]!r} not found")
    return ref
