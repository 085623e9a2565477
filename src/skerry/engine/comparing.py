"""What changed between two points: snapshots, images, sandboxes as they are now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.engine.live import Live
from skerry.engine.snapshots import Snapshots
from skerry.errors import Conflict, InvalidRequest, NotFound, SkerryError
from skerry.storage.changes import changes
from skerry.types import NAME, Caller, Changes, SnapshotInfo


@dataclass(frozen=True)
class Point:
    """A stack of layers, top first; of which unit the topmost is, and as of when."""

    layers: tuple[str, ...]
    unit: str | None
    at: float


async def compare(snapshots: Snapshots, caller: Caller, ref: str, to: str | None, most: int) -> Changes:
    """From a snapshot to another point; without one, to its own sandbox as it is now."""
    info = snapshots.find(caller, ref)
    start = Point(info.layers, info.unit, info.created_at)
    with snapshots.slots.taken(caller.owner), snapshots.pinned(*start.layers):
        async with _other(snapshots, caller, info, to) as end:
            one, other = ([snapshots.host.layers.check(layer) for layer in point.layers] for point in (start, end))
            # Of one unit only: two that were written at once may have files that look alike in all but content.
            settled = min(start.at, end.at) if start.unit is not None and start.unit == end.unit else None
            try:
                return await snapshots.slots.stoppable(
                    lambda check: changes(one, other, settled=settled, most=most, check=check)
                )
            except OSError as error:
                hint = "`skerry image verify` finds damaged layers"
                raise SkerryError(f"the files can't be compared: {error.strerror}", hint=hint) from error


@asynccontextmanager
async def _other(snapshots: Snapshots, caller: Caller, info: SnapshotInfo, to: str | None) -> AsyncIterator[Point]:
    if to is None:
        async with _now(snapshots, _own(snapshots, caller, info)) as point:
            yield point
        return
    found = snapshots.table.find(caller, to) if NAME.fullmatch(to) else None
    if found is not None:
        with snapshots.pinned(*found.layers):
            yield Point(found.layers, found.unit, found.created_at)
        return
    live = snapshots.sandbox(caller, to) if NAME.fullmatch(to) else None
    if live is not None:
        async with _now(snapshots, live) as point:
            yield point
        return
    try:
        image = snapshots.image(caller, to)[0]
    except (NotFound, InvalidRequest):
        raise NotFound(f"to: there is no snapshot, sandbox or image {to[:80]!r}") from None
    with snapshots.pinned(*image.layers):
        yield Point(image.layers, None, image.created_at)


def _own(snapshots: Snapshots, caller: Caller, info: SnapshotInfo) -> Live:
    live = snapshots.sandbox(caller, info.sandbox) if info.sandbox is not None else None
    if live is None:
        raise Conflict(
            f"snapshot {info.name or info.id} has no sandbox any more to be compared with",
            hint="name another snapshot, a sandbox or an image",
        )
    return live


@asynccontextmanager
async def _now(snapshots: Snapshots, live: Live) -> AsyncIterator[Point]:
    """A sandbox as it is at this moment: through a snapshot that nobody names and that goes again."""
    async with snapshots.passing(live) as (captured, row):
        yield Point((captured.layer, *row.spec.layers), row.unit, captured.at)
