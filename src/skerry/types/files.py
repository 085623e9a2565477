"""What lies in a sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.types.values import Answer, PathText, Value, check_path, check_text, check_user

PATTERN_MOST = 1024  # bytes
REPLACED_MOST = 128 << 10
EDIT_MOST = 4 << 20  # bytes of a diff, or of two texts

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


class Lines(Answer, frozen=True, kw_only=True):
    """Lines of a file, without their line breaks, from `start` to `end` (both included, counted from 1; none: `end` is
    before `start`). `more`: the file goes on after them, with line `end + 1`. `cut`: there is one line only, and this
    is the beginning of it. What is not UTF-8 is replaced, and `raw` has the bytes of them all."""

    lines: list[str]
    start: int
    end: int
    more: bool
    cut: bool = False
    raw: bytes | None = None

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class Match(Answer, frozen=True, kw_only=True):
    """A line that a search found, with the lines around it. `line` counts from 1; `cut`: it is longer than `text`,
    which is the part with the match. What is not UTF-8 is replaced."""

    path: str
    line: int
    text: str
    cut: bool = False
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    raw_path: bytes | None = None


class Matches(Answer, frozen=True, kw_only=True):
    """What a search found. `more`: there are others beyond the bound; `skipped`: so many files and directories could
    not be searched (unreadable, binary, lines too long), so that nothing found is not taken for nothing there."""

    matches: list[Match]
    more: bool
    searched: int
    skipped: int = 0


class SearchRequest(Value, frozen=True, kw_only=True):
    """What a search looks for. `pattern` is a regular expression (RE2: linear time, no look-around), or with `literal`
    a text; `glob` chooses files, by their names or, with a slash in it, by their paths from `path` on."""

    pattern: str
    path: PathText = "."
    glob: PathText | None = None
    context: Annotated[int, Meta(ge=0, le=100)] = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    ignore_case: bool = False
    literal: bool = False
    hidden: bool = False
    user: str | None = None

    def __post_init__(self) -> None:
        if not self.pattern or len(self.pattern.encode("utf-8", "replace")) > PATTERN_MOST:
            raise InvalidRequest(f"pattern: it is empty, or longer than {PATTERN_MOST} bytes")
        check_text("pattern", self.pattern)
        check_path("path", self.path)
        if self.glob is not None:
            check_path("glob", self.glob)
        check_user(self.user)


class Replaced(Answer, frozen=True, kw_only=True):
    """A text was replaced `count` times; `lines` are where the first twenty of them were."""

    count: int
    lines: tuple[int, ...] = ()


class ReplaceRequest(Value, frozen=True, kw_only=True):
    """`old` is replaced by `new`, and has to be there exactly `count` times (None: at least once). Either may be given
    as bytes instead."""

    old: str | None = None
    new: str | None = None
    old_base64: bytes | None = None
    new_base64: bytes | None = None
    count: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = 1

    def __post_init__(self) -> None:
        for name, text, raw in (("old", self.old, self.old_base64), ("new", self.new, self.new_base64)):
            if (text is None) == (raw is None):
                raise InvalidRequest(f"{name}: give it as a text or as base64", hint=f"{name} or {name}_base64")
            if text is not None:
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise InvalidRequest(f"{name}: not valid Unicode") from None
        if not 0 < len(self.before) <= REPLACED_MOST:
            raise InvalidRequest(f"old: it is empty, or longer than {REPLACED_MOST >> 10} KiB")

    @property
    def before(self) -> bytes:
        return (self.old or "").encode() if self.old_base64 is None else self.old_base64

    @property
    def after(self) -> bytes:
        return (self.new or "").encode() if self.new_base64 is None else self.new_base64


class PatchedFile(Answer, frozen=True, kw_only=True):
    """What a diff did to one file. `offsets`: how many lines each hunk was from where it said."""

    path: str
    action: Literal["created", "changed", "deleted"]
    added: int
    removed: int
    offsets: tuple[int, ...] = ()
    raw_path: bytes | None = None


class Patched(Answer, frozen=True, kw_only=True):
    files: list[PatchedFile]
