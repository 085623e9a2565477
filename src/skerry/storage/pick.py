"""Which driver this host gets: the first that works of btrfs, loop, plain; or the one that holds sandboxes already."""

from __future__ import annotations

import os
from pathlib import Path

from skerry.errors import HostUnsupported, InvalidRequest
from skerry.storage.btrfs import BtrfsDriver
from skerry.storage.driver import DEFAULT_HEADROOM, DEFAULT_POOL, DEFAULT_RESERVE, Driver
from skerry.storage.loop import LoopDriver
from skerry.storage.plain import PlainDriver
from skerry.types import Check, format_size

_Kind = type[BtrfsDriver] | type[LoopDriver] | type[PlainDriver]
_KINDS: dict[str, _Kind] = {"btrfs": BtrfsDriver, "loop": LoopDriver, "plain": PlainDriver}
_COSTS = {
    "btrfs": "a quota for each sandbox in one pool; a sandbox's disk takes about 0.1 ms,"
    " a snapshot or fork a few ms and no space, however large",
    "loop": "a small disk for each sandbox; it takes about 20 ms and a few MB, a snapshot or fork is a whole copy",
    "plain": "plain directories, which hold no sandbox to its disk limit; a snapshot or fork is a whole copy",
}


def pick_driver(
    state_dir: Path,
    wish: str | None = None,
    *,
    pool_size: int = DEFAULT_POOL,
    reserve: int = DEFAULT_RESERVE,
    headroom: int = DEFAULT_HEADROOM,
) -> Driver:
    """`plain` comes out, unasked, only where nothing else works; look at `enforces_limit`."""
    name = _choose(state_dir, wish)
    if name == "btrfs":
        return BtrfsDriver(state_dir, reserve, pool_size, headroom)
    if name == "loop":
        return LoopDriver(state_dir, reserve)
    return PlainDriver(state_dir, reserve)


def checks(
    state_dir: Path, wish: str | None = None, *, pool_size: int = DEFAULT_POOL, reserve: int = DEFAULT_RESERVE
) -> list[Check]:
    """The doctor's lines about storage. Nothing is changed."""
    return [*_driver_checks(state_dir, wish), *_pool_checks(state_dir, pool_size), _room_check(state_dir, reserve)]


def _choose(state_dir: Path, wish: str | None) -> str:
    if wish is not None and wish not in _KINDS:
        raise InvalidRequest(f"there is no storage driver {wish!r}", hint=f"one of {', '.join(_KINDS)}")
    bound = wish or next((name for name, kind in _KINDS.items() if kind.used(state_dir)), None)
    if bound is None:
        return next(name for name, kind in _KINDS.items() if kind.lack() is None)
    if lack := _KINDS[bound].lack():
        why = "asked for" if wish else f"what holds the sandboxes in {state_dir}"
        raise HostUnsupported(f"the storage driver {bound} is {why}, but {lack.reason}", hint=lack.fix)
    return bound


def _driver_checks(state_dir: Path, wish: str | None) -> list[Check]:
    try:
        chosen = _choose(state_dir, wish)
    except (HostUnsupported, InvalidRequest) as error:
        return [Check("storage", False, error.message, error.hint)]
    rows = [Check("storage", chosen != "plain", f"{chosen}: {_COSTS[chosen]}")]
    for name, kind in _KINDS.items():
        if name == chosen:
            break
        if lack := kind.lack():
            rows.append(Check(f"storage: {name}", None, lack.reason, lack.fix))
    return rows


def _pool_checks(state_dir: Path, most: int) -> list[Check]:
    try:
        found = os.stat(state_dir / "pool.img")
    except OSError:
        return []
    taken, size = found.st_blocks * 512, found.st_size
    sizes = f"{format_size(taken >> 20 << 20)} of at most {format_size(most)} taken on the host's disk"
    if taken >= size:
        return [Check("storage pool", True, f"{sizes}, every byte backed by a block")]
    why = "its file is sparse: if others fill the host's disk, writes in sandboxes fail with I/O errors"
    fix = f"restart the server; where that does not help, put {state_dir} on ext4 or xfs"
    return [Check("storage pool", None, f"{sizes}; {why}", fix)]


def _room_check(state_dir: Path, reserve: int) -> Check:
    there = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    detail = f"{format_size(free >> 20 << 20)} free, {format_size(reserve)} of it kept in reserve"
    return Check("disk space", free >= reserve, detail, None if free >= reserve else f"free space on {there}")
