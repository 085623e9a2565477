"""A host-wide register of uid ranges, because two instances on a host must never share one.

A range is 65,536 IDs from 0x70000000 on. Its entry, /run/skerry/ranges/<n>, is created with O_EXCL and names the
holder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from skerry.errors import QuotaExceeded
from skerry.runtimes.runtime import RANGE_SIZE

FIRST: Final = 0x70000000
COUNT: Final = 4094
REGISTER: Final = Path("/run/skerry/ranges")
_SUBORDINATE: Final = (Path("/etc/subuid"), Path("/etc/subgid"))


def take(instance: str, sandbox: str, register: Path = REGISTER) -> int:
    """Register the lowest free range for this sandbox; return its first ID."""
    os.makedirs(register.parent, 0o711, exist_ok=True)
    os.makedirs(register, 0o700, exist_ok=True)
    taken = set(os.listdir(register))
    foreign = list(_delegated())
    for number in range(COUNT):
        if str(number) in taken or _overlaps(number, foreign):
            continue
        if _enter(register / str(number), f"{instance} {sandbox}\n"):
            return FIRST + number * RANGE_SIZE
    raise QuotaExceeded(f"all {COUNT} uid ranges of this host are in use", hint="stop or delete some sandboxes")


def give_back(base: int, register: Path = REGISTER) -> None:
    """Release a range. Idempotent."""
    number, rest = divmod(base - FIRST, RANGE_SIZE)
    if rest or not 0 <= number < COUNT:
        raise ValueError(f"{base} is not the first ID of a range")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(register / str(number))


def release(instance: str, sandbox: str, base: int, register: Path = REGISTER) -> None:
    """Release a range only if this sandbox still holds it: a late second release must not free another sandbox's
    range."""
    with contextlib.suppress(FileNotFoundError):
        if (register / str((base - FIRST) // RANGE_SIZE)).read_text() == f"{instance} {sandbox}\n":
            give_back(base, register)


def held(instance: str, register: Path = REGISTER) -> dict[str, int]:
    """Return sandbox → first ID for one instance."""
    return {sandbox: base for owner, sandbox, base in _entries(register) if owner == instance}


def sweep(instance: str, living: Collection[str], register: Path = REGISTER) -> list[str]:
    """Release the ranges of this instance's sandboxes that no longer exist; return those sandboxes."""
    gone = [(sandbox, base) for sandbox, base in held(instance, register).items() if sandbox not in living]
    for _, base in gone:
        give_back(base, register)
    return [sandbox for sandbox, _ in gone]


def _enter(path: Path, text: str) -> bool:
    """Write a temporary file and link it, so that an entry never appears without content; link fails if it exists."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        os.close(fd)
        os.unlink(aside)
    return True


def _entries(register: Path) -> Iterator[tuple[str, str, int]]:
    try:
        names = os.listdir(register)
    except FileNotFoundError:
        return
    for name in names:
        if not name.isdigit() or int(name) >= COUNT:
            continue
        try:
            words = (register / name).read_text().split()
        except FileNotFoundError:
            continue
        if len(words) == 2:
            yield words[0], words[1], FIRST + int(name) * RANGE_SIZE


def _delegated() -> Iterator[tuple[int, int]]:
    """Yield ranges that the host gave to its users for their own containers."""
    for file in _SUBORDINATE:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                fields = line.split(":")
                if len(fields) == 3 and fields[1].isdigit() and fields[2].strip().isdigit():
                    yield int(fields[1]), int(fields[2])


def _overlaps(number: int, foreign: list[tuple[int, int]]) -> bool:
    first = FIRST + number * RANGE_SIZE
    return any(start < first + RANGE_SIZE and first < start + count for start, count in foreign)
