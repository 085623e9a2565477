"""Files in a sandbox."""

from __future__ import annotations

import mimetypes
import posixpath
from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from skerry.errors import InvalidRequest
from skerry.types.values import Answer, PathText, Value, check_path, check_text, check_user, is_text

MAX_PATTERN = 1024  # bytes
MAX_REPLACED = 128 << 10
MAX_EDIT = 4 << 20  # bytes of a diff, or of two texts

FileType = Literal["file", "directory", "link", "fifo", "socket", "device", "other"]


class FileInfo(Answer, frozen=True, kw_only=True):
    """One entry of a directory, or the stat of a path. Links are not followed unless requested; `target` is the target
    of a link.

    On the wire a path that is not UTF-8 is lossy, and `raw_path` has its bytes; likewise `target`. The SDK puts the
    bytes into `path`, `name` and `target` as Python does (`os.fsdecode`), so that every listed path can be read."""

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


class Checksum(Answer, frozen=True, kw_only=True):
    """The checksum of a file's content in hexadecimal."""

    checksum: str
    algorithm: str = ""


class Entries(Answer, frozen=True, kw_only=True):
    """The entries below a directory. `more`: the limit was reached; `skipped`: the number of unreadable directories."""

    entries: list[FileInfo]
    more: bool
    skipped: int = 0


class Skipped(Answer, frozen=True, kw_only=True):
    """An entry that a transfer skipped, with the reason. `path` is relative to the transferred directory."""

    path: str
    reason: str
    raw_path: bytes | None = None


class TransferResult(Answer, frozen=True, kw_only=True):
    """The result of an upload or download. `links` counts symbolic links; a hard link counts as a file. `skipped` has
    the first skipped entries, `more` is the number of the others."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()
    more: int = 0


class FileEvent(Answer, frozen=True, kw_only=True):
    """A change below a watched path. `to` is the new path of a `moved` entry. `overflow`: changes were missed; scan
    again. `token`: pass it as `since` to get later events."""

    type: Literal["created", "modified", "moved", "removed", "overflow"]
    path: str
    token: str
    to: str | None = None
    directory: bool = False
    raw_path: bytes | None = None
    raw_to: bytes | None = None


class FileLines(Answer, frozen=True, kw_only=True):
    """Lines of a file without line breaks, from `start` to `end` (inclusive, counted from 1; `end` before `start`: no
    lines). `more`: the file continues with line `end + 1`. `cut`: only the beginning of a single long line is included.
    Bytes that are not UTF-8 are replaced, and `raw` has the bytes of all lines."""

    lines: list[str]
    start: int
    end: int
    more: bool
    cut: bool = False
    raw: bytes | None = None

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class SearchMatch(Answer, frozen=True, kw_only=True):
    """A matching line with its context lines. `line` counts from 1; `cut`: the line is longer than `text`, which has
    the match. Bytes that are not UTF-8 are replaced."""

    path: str
    line: int
    text: str
    cut: bool = False
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    raw_path: bytes | None = None


class SearchResult(Answer, frozen=True, kw_only=True):
    """The result of a search. `more`: the limit was reached; `skipped`: the number of files and directories that could
    not be searched (unreadable, binary, lines too long), so that an empty result is not taken as proof."""

    matches: list[SearchMatch]
    more: bool
    searched: int
    skipped: int = 0


class SearchRequest(Value, frozen=True, kw_only=True):
    """A search. `pattern` is a regular expression (RE2: linear time, no look-around), or with `literal` a text; `glob`
    selects files by name or, with a slash, by path relative to `path`."""

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
        if not self.pattern or len(self.pattern.encode("utf-8", "replace")) > MAX_PATTERN:
            raise InvalidRequest(f"pattern: empty, or longer than {MAX_PATTERN} bytes")
        check_text("pattern", self.pattern)
        check_path("path", self.path)
        if self.glob is not None:
            check_path("glob", self.glob)
        check_user(self.user)


class ReplaceResult(Answer, frozen=True, kw_only=True):
    """A text was replaced `count` times; `lines` has the first twenty line numbers."""

    count: int
    lines: tuple[int, ...] = ()


class ReplaceRequest(Value, frozen=True, kw_only=True):
    """Replace `old` by `new`. `old` must occur exactly `count` times (None: at least once). Either may be given as
    bytes instead."""

    old: str | None = None
    new: str | None = None
    old_base64: bytes | None = None
    new_base64: bytes | None = None
    count: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = 1

    def __post_init__(self) -> None:
        for name, text, raw in (("old", self.old, self.old_base64), ("new", self.new, self.new_base64)):
            if (text is None) == (raw is None):
                raise InvalidRequest(f"{name}: give either text or base64", hint=f"{name} or {name}_base64")
            if text is not None:
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise InvalidRequest(f"{name}: not valid Unicode") from None
        if not 0 < len(self.before) <= MAX_REPLACED:
            raise InvalidRequest(f"old: empty, or longer than {MAX_REPLACED >> 10} KiB")

    @property
    def before(self) -> bytes:
        return (self.old or "").encode() if self.old_base64 is None else self.old_base64

    @property
    def after(self) -> bytes:
        return (self.new or "").encode() if self.new_base64 is None else self.new_base64


class PatchedFile(Answer, frozen=True, kw_only=True):
    """The effect of a diff on one file. `offsets`: the distance in lines of each hunk from its stated position."""

    path: str
    action: Literal["created", "changed", "deleted"]
    added: int
    removed: int
    offsets: tuple[int, ...] = ()
    raw_path: bytes | None = None


class PatchResult(Answer, frozen=True, kw_only=True):
    files: list[PatchedFile]


_MEDIA_TYPES = {
    ".ipynb": "application/x-ipynb+json", ".jsonl": "application/jsonl", ".parquet": "application/vnd.apache.parquet",
    ".md": "text/markdown", ".toml": "application/toml", ".yaml": "application/yaml", ".yml": "application/yaml",
    ".webp": "image/webp", ".avif": "image/avif", ".ts": "text/typescript", ".go": "text/x-go", ".rs": "text/x-rust",
    ".log": "text/plain", ".sqlite": "application/vnd.sqlite3", ".xlsx":
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}  # fmt: skip


def media_type(name: str) -> str:
    """Return the media type of a file by the suffix of its name."""
    ending = posixpath.splitext(name)[1].lower()
    if (known := _MEDIA_TYPES.get(ending)) is not None:
        return known
    kind, packed = _known_types().guess_type(f"x{ending}")
    if packed is not None:
        return {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}.get(
            packed, "application/octet-stream"
        )
    return kind or "application/octet-stream"


@cache
def _known_types() -> mimetypes.MimeTypes:
    return mimetypes.MimeTypes()  # Python's table only, not this host's files


class FileContent(Value, frozen=True, kw_only=True):
    """The content of a file. `encoding`: `utf-8` for text, None for binary data."""

    path: str
    data: bytes
    media_type: str
    encoding: str | None

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def is_binary(self) -> bool:
        return self.encoding is None

    @property
    def text(self) -> str:
        """The content as text. Raise UnicodeDecodeError for binary data that is not UTF-8."""
        return self.data.decode()

    @classmethod
    def of(cls, path: str, data: bytes) -> FileContent:
        """Detect the encoding: text is UTF-8 without NUL characters."""
        encoding = "utf-8" if b"\0" not in data and is_text(data) else None
        kind = media_type(path)
        if kind == "application/octet-stream" and encoding is not None:
            kind = "text/plain"
        return cls(path=path, data=data, media_type=kind, encoding=encoding)
