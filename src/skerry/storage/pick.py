"""Choose the storage driver: the driver that already holds sandboxes, or the first that works of btrfs, loop, plain."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.errors import HostUnsupported, InvalidRequest
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import DEFAULT_MIN_FREE, DEFAULT_POOL, DEFAULT_PREALLOCATE, Driver, PlainDriver
from skerry.storage.loop import LoopDriver
from skerry.types import Check, readable_size

_Kind = type[BtrfsDriver] | type[LoopDriver] | type[PlainDriver]
_KINDS: dict[str, _Kind] = {"btrfs": BtrfsDriver, "loop": LoopDriver, "plain": PlainDriver}
_COSTS = {
    "btrfs": "a quota for each sandbox in one pool; a sandbox's disk takes about 0.1 ms,"
    " a snapshot or fork a few ms and no space, regardless of size",
    "loop": "a small disk for each sandbox; it takes about 20 ms and a few MB, a snapshot or fork is a whole copy",
    "plain": "plain directories without a disk limit; a snapshot or fork is a whole copy",
}


def pick_driver(
    state_dir: Path,
    requested: str | None = None,
    *,
    pool_size: int = DEFAULT_POOL,
    min_free: int = DEFAULT_MIN_FREE,
    preallocate: int = DEFAULT_PREALLOCATE,
) -> Driver:
    """Return a driver. Without a request, `plain` is chosen only if nothing else works; check `enforces_limit`."""
    name = _choose(state_dir, requested)
    if name == "btrfs":
        return BtrfsDriver(state_dir, min_free, pool_size, preallocate)
    if name == "loop":
        return LoopDriver(state_dir, min_free)
    return PlainDriver(state_dir, min_free)


def checks(
    state_dir: Path, requested: str | None = None, *, pool_size: int = DEFAULT_POOL, min_free: int = DEFAULT_MIN_FREE
) -> list[Check]:
    """Return the storage checks of `skerry doctor`. Changes nothing."""
    return [
        *_driver_checks(state_dir, requested),
        *_pool_checks(state_dir, pool_size),
        _room_check(state_dir, min_free),
    ]


def _choose(state_dir: Path, requested: str | None) -> str:
    if requested is not None and requested not in _KINDS:
        raise InvalidRequest(f"unknown storage driver {requested!r}", hint=f"one of {', '.join(_KINDS)}")
    bound = requested or next((name for name, kind in _KINDS.items() if kind.used(state_dir)), None)
    if bound is None:
        return next(name for name, kind in _KINDS.items() if kind.missing_feature() is None)
    if missing_feature := _KINDS[bound].missing_feature():
        why = "requested" if requested else f"in use by the sandboxes in {state_dir}"
        raise HostUnsupported(
            f"the storage driver {bound} is {why}, but {missing_feature.reason}", hint=missing_feature.fix
        )
    return bound


def _driver_checks(state_dir: Path, requested: str | None) -> list[Check]:
    try:
        chosen = _choose(state_dir, requested)
    except (HostUnsupported, InvalidRequest) as error:
        return [Check("storage", False, error.message, error.hint)]
    rows = [Check("storage", chosen != "plain", f"{chosen}: {_COSTS[chosen]}")]
    for name, kind in _KINDS.items():
        if name == chosen:
            break
        if missing_feature := kind.missing_feature():
            rows.append(Check(f"storage: {name}", None, missing_feature.reason, missing_feature.fix))
    return rows


def _pool_checks(state_dir: Path, most: int) -> list[Check]:
    try:
        found = os.stat(state_dir / "pool.img")
    except OSError:
        return []
    taken, size = found.st_blocks * 512, found.st_size
    sizes = f"{readable_size(taken)} of at most {readable_size(most)} taken on the host's disk"
    if taken >= size:
        return [Check("storage pool", True, f"{sizes}, every byte backed by a block")]
    why = "its file is sparse: if others fill the host's disk, writes in sandboxes fail with I/O errors"
    fix = f"restart the server; where that does not help, put {state_dir} on ext4 or xfs"
    return [Check("storage pool", None, f"{sizes}; {why}", fix)]


def _room_check(state_dir: Path, min_free: int) -> Check:
    there = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    detail = f"{readable_size(free)} free, of which {readable_size(min_free)} stay free"
    return Check("disk space", free >= min_free, detail, None if free >= min_free else f"free space on {there}")
