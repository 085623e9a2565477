"""What was accepted, and what an apply did, as wishes for a plan. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from skerry.client.applying.plan import Side, Wish
from skerry.client.applying.record import Entry, Record
from skerry.errors import SandboxUnavailable
from skerry.types.review import OBJECT_ID, Accepted, AcceptedFile
from skerry.types.values import real_path

FILES_MOST: Final = 100_000
BYTES_MOST: Final = 8 << 30
_MODES: Final = {"100644": ("file", False), "100755": ("file", True), "120000": ("link", False)}
_POINTER = re.compile(rb"skerry large file\nsha256 ([0-9a-f]{64})\nsize ([0-9]{1,18})\n")
LINK_MOST: Final = 4095


def path_of(file: AcceptedFile) -> bytes:
    return real_path(file.path, file.raw_path).encode("utf-8", "surrogateescape")


def source_of(file: AcceptedFile) -> bytes | None:
    if file.kind != "renamed" or file.old_path is None:
        return None
    return real_path(file.old_path, file.raw_old_path).encode("utf-8", "surrogateescape")


def pointer(data: bytes) -> tuple[str, int] | None:
    """The hash and size that stand in the ledger for a large file."""
    match = _POINTER.fullmatch(data)
    return (match[1].decode(), int(match[2])) if match else None


def check(accepted: Accepted) -> None:
    """What a server says is looked at before anything is fetched."""
    if len(accepted.files) > FILES_MOST:
        raise SandboxUnavailable(f"more than {FILES_MOST} files at once")
    if sum((file.old_size or 0) + (file.new_size or 0) for file in accepted.files) > BYTES_MOST:
        raise SandboxUnavailable(f"more than {BYTES_MOST >> 30} GiB at once")
    seen: set[bytes] = set()
    for file in accepted.files:
        for path in (path_of(file), source_of(file)):
            if path in seen:
                raise SandboxUnavailable("the server named a path twice")
            if path is not None:
                seen.add(path)


def wishes(accepted: Accepted, large: Mapping[str, tuple[str, int]] = {}, hashes: Mapping[str, str] = {}) -> list[Wish]:
    """`large`: the object that a large file's content became here, and its size, by its sha256. `hashes`: the sha256
    that an object which stands for a large file tells."""
    made = []
    for file in accepted.files:
        new = side(file.new_mode, file.new_oid, file.new_size)
        if new is not None and file.large and file.sha256 is not None and file.sha256 in large:
            oid, size = large[file.sha256]
            new = replace(new, oid=oid, size=size)
        base = side(file.old_mode, file.old_oid, file.old_size)
        if base is not None and base.oid in hashes:
            base = replace(base, sha256=hashes[base.oid])
        made.append(Wish(path_of(file), base, new, source_of(file)))
    return made


def sizes_of(accepted: Accepted) -> dict[str, int]:
    """Of each object that is told, but those that stand for large files."""
    found = {}
    for file in accepted.files:
        for oid, size in ((file.old_oid, file.old_size), (file.new_oid, file.new_size)):
            if oid is not None and size is not None:
                found[oid] = size
    return found


def large_sides(accepted: Accepted) -> Iterator[tuple[AcceptedFile, str, bool]]:
    """Objects that may stand for a large file, and whether that is the new one."""
    for file in accepted.files:
        if file.large:
            if file.old_oid is not None:
                yield file, file.old_oid, False
            if file.new_oid is not None and file.sha256 is not None:
                yield file, file.new_oid, True


def side(mode: str | None, oid: str | None, size: int | None) -> Side | None:
    if mode is None and oid is None:
        return None
    if mode not in _MODES or oid is None or not OBJECT_ID.fullmatch(oid) or size is None or size < 0:
        raise SandboxUnavailable(f"the server named a file of mode {mode!r}, and no such thing lands")
    kind, executable = _MODES[mode]
    if kind == "link":
        if not 0 < size <= LINK_MOST:
            raise SandboxUnavailable("the server named a link that can't be one")
        return Side("link", oid, size)
    return Side("file", oid, size, executable)


def backwards(record: Record) -> list[Wish]:
    """What takes an apply back."""
    return [Wish(change.path, _of(change.after), _of(change.before)) for change in record.changes]


def _of(entry: Entry | None) -> Side | None:
    if entry is None:
        return None
    return Side(entry.kind, entry.oid, entry.size, entry.executable, entry.mode)
