"""Patch sets and journal records as planned changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from skerry.client.apply.journal import ApplyRecord, FileVersion
from skerry.client.apply.plan import PlannedEdit, Side
from skerry.errors import SandboxUnavailable
from skerry.types.review import OBJECT_ID, PatchSet, PatchSetFile
from skerry.types.values import decode_path

MAX_FILES: Final = 100_000
MAX_BYTES: Final = 8 << 30
_MODES: Final = {"100644": ("file", False), "100755": ("file", True), "120000": ("link", False)}
_POINTER = re.compile(rb"skerry large file\nsha256 ([0-9a-f]{64})\nsize ([0-9]{1,18})\n")
MAX_LINK_BYTES: Final = 4095


def path_of(file: PatchSetFile) -> bytes:
    return decode_path(file.path, file.raw_path).encode("utf-8", "surrogateescape")


def source_of(file: PatchSetFile) -> bytes | None:
    if file.kind != "renamed" or file.old_path is None:
        return None
    return decode_path(file.old_path, file.raw_old_path).encode("utf-8", "surrogateescape")


def pointer(data: bytes) -> tuple[str, int] | None:
    """Return the hash and size from the pointer that represents a large file in the ledger."""
    match = _POINTER.fullmatch(data)
    return (match[1].decode(), int(match[2])) if match else None


def check_patch_set(accepted: PatchSet) -> None:
    """Check a patch set from the server before anything is fetched."""
    if len(accepted.files) > MAX_FILES:
        raise SandboxUnavailable(f"more than {MAX_FILES} files at once")
    if sum((file.old_size or 0) + (file.new_size or 0) for file in accepted.files) > MAX_BYTES:
        raise SandboxUnavailable(f"more than {MAX_BYTES >> 30} GiB at once")
    seen: set[bytes] = set()
    for file in accepted.files:
        for path in (path_of(file), source_of(file)):
            if path in seen:
                raise SandboxUnavailable("the server named a path twice")
            if path is not None:
                seen.add(path)


def planned_edits(
    accepted: PatchSet, large: Mapping[str, tuple[str, int]] = {}, hashes: Mapping[str, str] = {}
) -> list[PlannedEdit]:
    """Return the planned changes. `large`: the local object and size of a large file's content, by its sha256.
    `hashes`: the sha256 in the pointer of an object that represents a large file."""
    made = []
    for file in accepted.files:
        new = side(file.new_mode, file.new_oid, file.new_size)
        if new is not None and file.large and file.sha256 is not None and file.sha256 in large:
            oid, size = large[file.sha256]
            new = replace(new, oid=oid, size=size)
        base = side(file.old_mode, file.old_oid, file.old_size)
        if base is not None and base.oid in hashes:
            base = replace(base, sha256=hashes[base.oid])
        made.append(PlannedEdit(path_of(file), base, new, source_of(file)))
    return made


def sizes_of(accepted: PatchSet) -> dict[str, int]:
    """Return the size of each listed object, except pointers to large files."""
    found = {}
    for file in accepted.files:
        for oid, size in ((file.old_oid, file.old_size), (file.new_oid, file.new_size)):
            if oid is not None and size is not None:
                found[oid] = size
    return found


def large_sides(accepted: PatchSet) -> Iterator[tuple[PatchSetFile, str, bool]]:
    """Return the objects that may be pointers to large files, and whether each is the new side."""
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
        raise SandboxUnavailable(f"the server named a file of mode {mode!r}, which cannot be applied")
    kind, executable = _MODES[mode]
    if kind == "link":
        if not 0 < size <= MAX_LINK_BYTES:
            raise SandboxUnavailable("the server named an invalid link")
        return Side("link", oid, size)
    return Side("file", oid, size, executable)


def undo_edits(record: ApplyRecord) -> list[PlannedEdit]:
    """Return the changes that undo an apply."""
    return [PlannedEdit(change.path, _of(change.after), _of(change.before)) for change in record.changes]


def _of(entry: FileVersion | None) -> Side | None:
    if entry is None:
        return None
    return Side(entry.kind, entry.oid, entry.size, entry.executable, entry.mode)
