"""A fork's workspace as it would be with what was accepted, and nothing else. Pure, but for the files that are laid
out to be brought there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from skerry.client.applying.content import Contents
from skerry.client.applying.plan import Side, shown
from skerry.client.applying.tree import DIRECTORY
from skerry.client.applying.wishes import path_of, side, source_of
from skerry.errors import Conflict
from skerry.types.paths import refused
from skerry.types.review import Accepted, Review
from skerry.types.values import real_path

Wanted = Mapping[bytes, Side | None]
WITHIN = 3600.0  # seconds that a check may take
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def wanted(review: Review, accepted: Accepted) -> Wanted:
    """What is to be at each path whose content in the fork is another one; None: nothing."""
    if review.truncated:
        raise Conflict("there are too many changes to check", hint="reject some of them, or apply without a check")
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
                f"{shown(path)}: its content before is not kept, so a check could not be of what lands",
                hint="accept or undo that change inside, or apply without a check",
            )
    return different


def _bytes(path: str, raw: bytes | None) -> bytes:
    return real_path(path, raw).encode("utf-8", "surrogateescape")


def lay_out(directory: Path, files: Wanted, contents: Contents) -> None:
    """In a new directory of ours: no name in it can lead out."""
    root = os.open(directory, DIRECTORY)
    try:
        for path, one in files.items():
            if one is not None:
                _lay(root, path, one, contents)
    finally:
        os.close(root)


def _lay(root: int, path: bytes, one: Side, contents: Contents) -> None:
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
        with open(os.open(name, _NEW, 0o755 if one.executable else 0o644, dir_fd=at), "wb") as file:
            for piece in contents.pieces(one.oid):
                file.write(piece)
    finally:
        os.close(at)
