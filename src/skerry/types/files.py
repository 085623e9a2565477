"""What lies in a sandbox."""

from __future__ import annotations

from typing import Literal

from skerry.types.values import Answer

FileType = Literal["file", "directory", "link", "fifo", "socket", "device", "other"]


class FileInfo(Answer, frozen=True, kw_only=True):
    """One entry of a directory, or one path's stat. Unless asked for, links are not followed; `target` says where one
    points.

    On the wire a path that is not UTF-8 is lossy, and `raw_path` has its bytes; the same for `target`. The SDK puts
    them into `path`, `name` and `target` as Python does (`os.fsdecode`), so that what was listed can be read."""

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None
    raw_path: bytes | None = None
    raw_target: bytes | None = None


class Entries(Answer, frozen=True, kw_only=True):
    """What lies below a directory. `more`: there are others beyond the bound; `skipped`: so many directories below
    could not be read."""

    entries: list[FileInfo]
    more: bool
    skipped: int = 0


class Skipped(Answer, frozen=True, kw_only=True):
    """One thing that a transfer left out, and why. `path` is relative to what was transferred."""

    path: str
    reason: str
    raw_path: bytes | None = None


class Transfer(Answer, frozen=True, kw_only=True):
    """What an upload or a download moved. `links` are symbolic ones; a hard link counts as a file. `skipped` has the
    first ones that were left out, `more` is the number of the others."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()
    more: int = 0


class FileEvent(Answer, frozen=True, kw_only=True):
    """A change below a watched path. `moved` has where to in `to`. `overflow`: changes were missed, look again at all.
    `token` is for asking later what happened since."""

    type: Literal["created", "modified", "moved", "removed", "overflow"]
    path: str
    token: str
    to: str | None = None
    directory: bool = False
    raw_path: bytes | None = None
    raw_to: bytes | None = None


class Match(Answer, frozen=True, kw_only=True):
    """A line that a search found, with the lines around it. `line` counts from 1."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    raw_path: bytes | None = None


class Matches(Answer, frozen=True, kw_only=True):
    """What a search found. `more`: there are others beyond the bound; `skipped`: files that could not be searched
    (unreadable, binary or too large), so that nothing found is not taken for nothing there."""

    matches: list[Match]
    more: bool
    searched: int
    skipped: int = 0
