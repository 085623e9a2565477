"""File information from a server, with Python's form of names."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from skerry.types import Entries, FileInfo, PatchResult, SearchResult, SnapshotDiff, decode_path


class FileList(list[FileInfo]):
    """Entries of a directory. `more`: the list is incomplete because of the limit; `skipped`: directories that could
    not be read."""

    def __init__(self, entries: Iterable[FileInfo] = (), *, more: bool = False, skipped: int = 0) -> None:
        super().__init__(entries)
        self.more = more
        self.skipped = skipped


def with_decoded_path(info: FileInfo) -> FileInfo:
    """Return the info with names that are not UTF-8 in the form of `os.fsdecode`, so that they can be used as paths."""
    if info.raw_path is None and info.raw_target is None:
        return info
    path = decode_path(info.path, info.raw_path)
    target = None if info.target is None else decode_path(info.target, info.raw_target)
    return replace(info, path=path, name=path.rstrip("/").rpartition("/")[2] or "/", target=target)


def file_list(answer: Entries) -> FileList:
    return FileList(map(with_decoded_path, answer.entries), more=answer.more, skipped=answer.skipped)


def with_decoded_matches(answer: SearchResult) -> SearchResult:
    matches = [replace(one, path=decode_path(one.path, one.raw_path)) for one in answer.matches]
    return replace(answer, matches=matches)


def with_decoded_patch(answer: PatchResult) -> PatchResult:
    return PatchResult(files=[replace(one, path=decode_path(one.path, one.raw_path)) for one in answer.files])


def with_decoded_changes(answer: SnapshotDiff) -> SnapshotDiff:
    changes = [replace(one, path=decode_path(one.path, one.raw_path), raw_path=None) for one in answer.changes]
    return replace(answer, changes=tuple(changes))
