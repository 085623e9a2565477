"""What a server told of files, as Python names them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from skerry.types import Changes, Entries, FileInfo, Matches, Patched, real_path


class FileList(list[FileInfo]):
    """Entries of a directory. `more`: there are others beyond the bound, so this is not all; `skipped`: so many
    directories below could not be read."""

    def __init__(self, entries: Iterable[FileInfo] = (), *, more: bool = False, skipped: int = 0) -> None:
        super().__init__(entries)
        self.more = more
        self.skipped = skipped


def real(info: FileInfo) -> FileInfo:
    """With names that are not UTF-8 as `os.fsdecode` gives them, so that they can be used as paths again."""
    if info.raw_path is None and info.raw_target is None:
        return info
    path = real_path(info.path, info.raw_path)
    target = None if info.target is None else real_path(info.target, info.raw_target)
    return replace(info, path=path, name=path.rstrip("/").rpartition("/")[2] or "/", target=target)


def file_list(told: Entries) -> FileList:
    return FileList(map(real, told.entries), more=told.more, skipped=told.skipped)


def real_matches(told: Matches) -> Matches:
    matches = [replace(one, path=real_path(one.path, one.raw_path)) for one in told.matches]
    return replace(told, matches=matches)


def real_patched(told: Patched) -> Patched:
    return Patched(files=[replace(one, path=real_path(one.path, one.raw_path)) for one in told.files])


def real_changes(told: Changes) -> Changes:
    changes = [replace(one, path=real_path(one.path, one.raw_path), raw_path=None) for one in told.changes]
    return replace(told, changes=tuple(changes))
