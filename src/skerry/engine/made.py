"""Files that a run made or changed, with what they are by their names."""

from __future__ import annotations

import mimetypes
import posixpath
from typing import Final

from msgspec.structs import asdict

from skerry.errors import SandboxUnavailable, SkerryError
from skerry.keeper import Keeper
from skerry.types import MADE_MOST, MadeFile

PATHS_MOST: Final = 256 << 10  # characters of all their paths: a run's end is one small message
_TYPES: Final = {
    ".ipynb": "application/x-ipynb+json", ".jsonl": "application/jsonl", ".parquet": "application/vnd.apache.parquet",
    ".md": "text/markdown", ".toml": "application/toml", ".yaml": "application/yaml", ".yml": "application/yaml",
    ".webp": "image/webp", ".avif": "image/avif", ".ts": "text/typescript", ".go": "text/x-go", ".rs": "text/x-rust",
    ".log": "text/plain", ".sqlite": "application/vnd.sqlite3", ".xlsx":
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}  # fmt: skip
_known = mimetypes.MimeTypes()  # what Python itself knows: not what this host's files say


def media_type(name: str) -> str:
    ending = posixpath.splitext(name)[1].lower()
    if (known := _TYPES.get(ending)) is not None:
        return known
    kind, packed = _known.guess_type(f"x{ending}")
    if packed is not None:
        return {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}.get(
            packed, "application/octet-stream"
        )
    return kind or "application/octet-stream"


async def made(keeper: Keeper, path: str, since: int, user: str | None) -> tuple[tuple[MadeFile, ...], bool]:
    """Below a directory, from a moment of the sandbox's clock on; and whether there are more."""
    try:
        found = await keeper.files.changed(path, since, user=user, limit=MADE_MOST)
    except SandboxUnavailable:
        raise
    except SkerryError:  # the directory is gone, or not to be read
        return (), False
    files: list[MadeFile] = []
    room = PATHS_MOST
    for entry in found.entries[:MADE_MOST]:
        room -= 2 * len(entry.path)
        if room < 0:
            return tuple(files), True
        files.append(MadeFile(**asdict(entry), media_type=media_type(entry.name)))
    return tuple(files), found.more
