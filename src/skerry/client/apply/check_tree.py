"""The workspace of a fork with exactly the accepted changes, for a check. Pure, except for the files that are written
for the upload."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from skerry.client.apply.content import Contents
from skerry.client.apply.plan import Side, display_path
from skerry.client.apply.targets import path_of, side, source_of
from skerry.client.host.posix import DIRECTORY, NEW_FILE
from skerry.errors import Conflict
from skerry.types.paths import refused
from skerry.types.review import PatchSet, Review
from skerry.types.values import decode_path

CheckFiles = Mapping[bytes, Side | None]
CHECK_TIMEOUT = 3600.0  # seconds for a check


def files_to_check(review: Review, accepted: PatchSet) -> CheckFiles:
    """Return the side for each path with different content in the fork; None: the path must not exist."""
    if review.truncated:
        raise Conflict("too many changes to check", hint="reject some of them, or apply without a check")
    now: dict[bytes, Side | None] = {}
    then: dict[bytes, Side | None] = {}
    large = {file.new_oid for file in review.files if file.large} | {
        file.old_oid for file in review.files if file.large
    }
    for change in review.files:
        path = _bytes(change.path, change.raw_path)
        source = _bytes(change.old_path, change.raw_old_path) if change.old_path is not None else path
        now[source] = None
        then.setdefault(path, None)
        now[path] = side(change.new_mode, change.new_oid, change.new_size)
        then[source] = side(change.old_mode, change.old_oid, change.old_size)
    for file in accepted.files:
        source_path = source_of(file)
        if source_path is not None:
            then[source_path] = None
        then[path_of(file)] = side(file.new_mode, file.new_oid, file.new_size)
    different = {path: one for path, one in then.items() if path not in now or now[path] != one}
    for path, one in different.items():
        if refused(path) is not None or (one is not None and one.oid in large):
            raise Conflict(
                f"{display_path(path)}: its previous content is not stored, so it cannot be checked",
                hint="accept or undo that change inside, or apply without a check",
            )
    return different


def _bytes(path: str, raw: bytes | None) -> bytes:
    return decode_path(path, raw).encode("utf-8", "surrogateescape")


def write_files(directory: Path, files: CheckFiles, contents: Contents) -> None:
    """Write the files into a new directory of Skerry, where no name can lead out."""
    root = os.open(directory, DIRECTORY)
    try:
        for path, one in files.items():
            if one is not None:
                _write_file(root, path, one, contents)
    finally:
        os.close(root)


def _write_file(root: int, path: bytes, one: Side, contents: Contents) -> None:
    *above, name = path.split(b"/")
    at = os.dup(root)
    try:
        for part in above:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            below = os.open(part, DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        if one.kind == "link":
            os.symlink(contents.read(one.oid), name, dir_fd=at)
            return
        with open(os.open(name, NEW_FILE, 0o755 if one.executable else 0o644, dir_fd=at), "wb") as file:
            for piece in contents.pieces(one.oid):
                file.write(piece)
    finally:
        os.close(at)
