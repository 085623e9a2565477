"""/v1/snapshots and /v1/sandboxes/{ref}/snapshots: sandboxes' files as they were at one moment; forks and rollback."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from skerry.engine.comparing import compare
from skerry.errors import InvalidRequest, NotFound
from skerry.server.call import Call, Nothing
from skerry.server.sandboxes import key_of
from skerry.storage.changes import MOST
from skerry.types import (
    NAME,
    Answer,
    Changes,
    ForkRequest,
    RollbackRequest,
    SandboxInfo,
    SnapshotInfo,
    SnapshotRequest,
    Value,
    check_text,
)


class SnapshotQuery(Value, frozen=True, kw_only=True):
    """Without `kind`: those that were kept by hand. `key`: the step of a build that has it, if there is one."""

    kind: Literal["kept", "auto", "build"] | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and self.key is not None:
            raise InvalidRequest("kind: not together with key")


class ChangesQuery(Value, frozen=True, kw_only=True):
    """`to`: a snapshot, a sandbox (as it is now) or an image; without it, the sandbox that the snapshot was taken of.
    `limit`: the most changes to tell."""

    to: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST)] = MOST

    def __post_init__(self) -> None:
        if self.to is not None:
            check_text("to", self.to)


class SnapshotList(Answer, frozen=True, kw_only=True):
    snapshots: list[SnapshotInfo]


class Forked(Answer, frozen=True, kw_only=True):
    sandboxes: list[SandboxInfo]


async def take(call: Call[Nothing, SnapshotRequest]) -> SnapshotInfo:
    return await call.engine.snapshots.take(call.caller, call.ref, call.body, key_of(call))


async def fork(call: Call[Nothing, ForkRequest]) -> Forked:
    made = await call.engine.forks.fork(call.caller, call.ref, call.body, key_of(call))
    return Forked(sandboxes=made)


async def rollback(call: Call[Nothing, RollbackRequest]) -> SandboxInfo:
    return await call.engine.rollbacks.rollback(call.caller, call.ref, call.body)


async def of_one(call: Call[Nothing, Nothing]) -> SnapshotList:
    return SnapshotList(snapshots=call.engine.snapshots.of(call.caller, call.ref))


async def list_(call: Call[SnapshotQuery, Nothing]) -> SnapshotList:
    return SnapshotList(snapshots=await call.engine.snapshots.list(call.caller, call.query.kind, call.query.key))


async def get(call: Call[Nothing, Nothing]) -> SnapshotInfo:
    return await call.engine.snapshots.get(call.caller, ref_of(call))


async def changes(call: Call[ChangesQuery, Nothing]) -> Changes:
    work = compare(call.engine.snapshots, call.caller, ref_of(call), call.query.to, call.query.limit)
    return await call.while_here(work)


async def remove(call: Call[Nothing, Nothing]) -> None:
    await call.engine.snapshots.delete(call.caller, ref_of(call))


def ref_of(call: Call[Any, Any]) -> str:
    """The snapshot in the path: an id or a name; what is neither can't be found."""
    ref = call.parameters["snapshot"]
    if not NAME.fullmatch(ref):
        raise NotFound(f"there is no snapshot {ref[:80]!r}")
    return ref
