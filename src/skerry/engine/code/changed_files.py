"""Files that a run created or changed, with their types by name."""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict

from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Keeper
from skerry.types import MAX_OUTPUT_FILES, OutputFile, media_type

MAX_PATHS: Final = 256 << 10  # characters of all their paths: a run's end is one small message


async def changed_files(keeper: Keeper, path: str, since: int, user: str | None) -> tuple[tuple[OutputFile, ...], bool]:
    """Below a directory, from a moment of the sandbox's clock on; and whether there are more."""
    try:
        found = await keeper.files.changed(path, since, user=user, limit=MAX_OUTPUT_FILES)
    except SandboxUnavailable:
        raise
    except SkerryError:  # the directory is gone, or not readable
        return (), False
    files: list[OutputFile] = []
    room = MAX_PATHS
    for entry in found.entries[:MAX_OUTPUT_FILES]:
        room -= 2 * len(entry.path)
        if room < 0:
            return tuple(files), True
        files.append(OutputFile(**asdict(entry), media_type=media_type(entry.name)))
    return tuple(files), found.more
