"""Tar archives of image layers. Untrusted ones are read strictly: every number checked, every header limited, one
header in memory.

`skerry.codecs.tar` parses and writes the blocks. `tarfile` reads headers of any length into memory, keeps every entry,
and accepts input that it should reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from skerry.codecs.tar import (
    BLOCK,
    END,
    FIELD,
    EntryKind,
    HeaderBlock,
    TarError,
    header_block,
    padding,
    parse_decimal,
    parse_records,
)
from skerry.errors import InvalidRequest

__all__ = ["END", "ArchiveEntry", "Damaged", "LayerReader", "header", "padding", "sparse"]

MAX_PATH: Final = 4095
MAX_DEPTH: Final = 255
_MAX_META: Final = 1 << 20
_PIECE: Final = 1 << 20
_LATEST: Final = 1 << 33  # of times: the year 2242

_SPARSE: Final = b"GNU.sparse."
_WANTED: Final = frozenset((b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime")) | {
    _SPARSE + name for name in (b"major", b"minor", b"name", b"realsize")
}
_MAX_PIECES: Final = 1_000_000  # of a sparse file
_XATTR: Final = b"SCHILY.xattr."


class Damaged(InvalidRequest):
    """An archive that is truncated, is not an archive, or holds content that an image must not have."""


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One entry of an archive. `path` is clean: relative, no `.` or `..`, no doubled slash; b"" is the root.

    `link` is the target of a symbolic link, unchanged, or the clean path of a hard link's target. `pieces`, of a sparse
    file: (offset, length) of its data, in order.
    """

    path: bytes
    kind: EntryKind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    link: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    pieces: tuple[tuple[int, int], ...] | None = None


class LayerReader:
    """Iterate over the entries in order. `content` returns that of the current entry; unread content is skipped.

    `read(n)` returns n bytes, fewer only at the end of the input. `ended`: the archive's end mark was read.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._left = self._padding = 0
        self.ended = False

    def __iter__(self) -> Iterator[ArchiveEntry]:
        about: dict[bytes, bytes] = {}
        while True:
            for _ in self.content():
                pass
            block = self._read(BLOCK)
            if not block or not any(block):
                self.ended = len(block) == BLOCK
                return
            if len(block) < BLOCK:
                raise Damaged("the archive is truncated in the middle of a header")
            try:
                head = HeaderBlock(block, foreign=True)
                if head.flag in (b"L", b"K", b"x", b"g"):
                    about |= self._meta(head.flag, head.number("size"))
                    continue
                entry = self._entry(head, about)
            except TarError as error:
                raise Damaged(f"this is not a tar archive, or it is damaged: {error}") from None
            about = {}
            yield entry

    def content(self) -> Iterator[bytes]:
        while self._left:
            piece = self._read(min(self._left, _PIECE))
            if not piece:
                raise Damaged("the archive is truncated in the middle of a file")
            self._left -= len(piece)
            yield piece
        if self._padding and len(self._read(self._padding)) < self._padding:
            raise Damaged("the archive is truncated after a file")
        self._padding = 0

    def parts(self, entry: ArchiveEntry) -> Iterator[tuple[int, memoryview]]:
        """Yield the current entry's content with the offset of each part."""
        runs = iter(entry.pieces if entry.pieces is not None else ((0, entry.size),))
        at = left = 0
        for piece in self.content():
            view = memoryview(piece)
            while view:
                while not left:
                    at, left = next(runs)
                part = view[:left]
                yield at, part
                at, left, view = at + len(part), left - len(part), view[len(part) :]

    def _entry(self, head: HeaderBlock, about: dict[bytes, bytes]) -> ArchiveEntry:
        entry = _entry(head, about)
        self._left, self._padding = entry.size, -entry.size % BLOCK
        sparse = {key: value for key, value in about.items() if key.startswith(_SPARSE)}
        return self._with_holes(entry, sparse) if sparse else entry

    def _with_holes(self, entry: ArchiveEntry, records: dict[bytes, bytes]) -> ArchiveEntry:
        if (
            entry.kind != "file"
            or len(records) != 4
            or (records[_SPARSE + b"major"], records[_SPARSE + b"minor"]) != (b"1", b"0")
        ):
            raise _other_holes()
        size, pieces = parse_decimal(records[_SPARSE + b"realsize"]), self._map()
        end = 0
        for at, length in pieces:
            if at < end:
                raise Damaged("the archive has a file with an invalid sparse map")
            end = at + length
        if end > size or sum(length for _, length in pieces) != self._left:
            raise Damaged("the archive has a file with an invalid sparse map")
        return replace(entry, size=size, pieces=pieces)

    def _map(self) -> tuple[tuple[int, int], ...]:
        """Parse the map before the data: decimal numbers, their count first, padded to a block."""
        numbers: list[int] = []
        rest = b""
        wanted = 1
        while len(numbers) < wanted:
            block = self._read(BLOCK)
            if len(block) < BLOCK or self._left < BLOCK:
                raise Damaged("the archive is truncated in a sparse map")
            self._left -= BLOCK
            *lines, rest = (rest + block).split(b"\n")
            numbers += map(parse_decimal, lines)
            wanted = 1 + 2 * numbers[0] if numbers else 1
            if wanted > 1 + 2 * _MAX_PIECES or len(rest) > BLOCK:
                raise Damaged(f"the archive has a file of more than {_MAX_PIECES} data ranges")
        if len(numbers) != wanted:
            raise Damaged("the archive has a file with an invalid sparse map")
        return tuple(zip(numbers[1::2], numbers[2::2], strict=True))

    def _meta(self, flag: bytes, size: int) -> dict[bytes, bytes]:
        if size > _MAX_META:
            raise Damaged(f"a header of the archive is {size} bytes long")
        whole = self._read(size + -size % BLOCK)
        if len(whole) < size + -size % BLOCK:
            raise Damaged("the archive is truncated in the middle of a header")
        content = whole[:size]
        if flag == b"L":
            return {b"path": content.partition(b"\0")[0]}
        if flag == b"K":
            return {b"linkpath": content.partition(b"\0")[0]}
        found = _records(content)
        return found if flag == b"x" else {}  # global headers name a commit or a charset


def _entry(head: HeaderBlock, about: dict[bytes, bytes]) -> ArchiveEntry:
    kind, size = head.kind, head.number("size")
    raw = about.get(_SPARSE + b"name", about.get(b"path"))
    if raw is None:
        raw = head.name
    if kind == "file" and raw.endswith(b"/"):
        kind = "directory"  # archives older than POSIX mark directories this way
    path, link = clean(raw), about.get(b"linkpath", head.link)
    if kind == "hard link":
        link = clean(link)
    elif kind == "link" and not 0 < len(link) <= MAX_PATH:
        raise Damaged(f"the archive has a link without a target: {path[:80]!r}")
    if not path and kind != "directory":
        raise Damaged("the archive has an entry without a name")
    if b"size" in about:
        size = parse_decimal(about[b"size"])
    return ArchiveEntry(
        path=path, kind=kind, link=link,
        mode=head.number("mode") & 0o7777,
        uid=parse_decimal(about[b"uid"]) if b"uid" in about else head.number("uid"),
        gid=parse_decimal(about[b"gid"]) if b"gid" in about else head.number("gid"),
        size=size if kind == "file" else 0,
        mtime_ns=_time(about[b"mtime"]) if b"mtime" in about else min(head.number("mtime"), _LATEST) * 10**9,
        xattrs={name[len(_XATTR) :]: value for name, value in about.items() if name.startswith(_XATTR)},
    )  # fmt: skip


def _other_holes() -> Damaged:
    return Damaged(
        "the archive has sparse files in an old format", hint="create it without `--sparse`, or with --posix"
    )


def clean(raw: bytes) -> bytes:
    """Return a path relative to the root of the archive; reject a path that leads upwards."""
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts or b"\0" in raw:
        raise Damaged(f"the archive has a path that leads out of it: {raw[:200]!r}")
    if len(raw) > MAX_PATH or len(parts) > MAX_DEPTH or any(len(part) > 255 for part in parts):
        raise Damaged(f"the archive has a path that is too long: {raw[:80]!r}…")
    return b"/".join(parts)


def _time(value: bytes) -> int:
    """Parse PAX: seconds with a fraction, possibly negative."""
    whole, _, fraction = value.partition(b".")
    if whole.startswith(b"-"):
        return 0
    return min(parse_decimal(whole), _LATEST) * 10**9 + parse_decimal(fraction[:9].ljust(9, b"0"))


def _records(content: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for key, value in parse_records(content):
        if key.startswith(_SPARSE) and key not in _WANTED:
            raise _other_holes()
        if key in _WANTED or key.startswith(_XATTR):
            found[key] = value
    return found


# Write tar archives: POSIX's format, with extended headers for values that do not fit. Pure.
#
# Readable by GNU tar, Docker, containers/image and all other readers of image layers.

FILE, HARD_LINK, LINK, DIRECTORY, FIFO = b"0", b"1", b"2", b"5", b"6"
_MAX_ID: Final = 8**7 - 1
_MAX_SIZE: Final = 8**11 - 1


def header(
    name: bytes,
    kind: bytes,
    *,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    size: int = 0,
    mtime_ns: int = 0,
    link: bytes = b"",
    more: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return the header of an entry. `more`: records of its extended header."""
    records = [*more]
    if len(name) > FIELD:
        records.append((b"path", name))
    if len(link) > FIELD:
        records.append((b"linkpath", link))
    for key, number, most in ((b"uid", uid, _MAX_ID), (b"gid", gid, _MAX_ID), (b"size", size, _MAX_SIZE)):
        if number > most:
            records.append((key, b"%d" % number))
    seconds, rest = divmod(mtime_ns, 10**9)
    if rest or not 0 <= seconds <= _MAX_SIZE:
        records.append((b"mtime", _time_record(mtime_ns)))
    block = header_block(
        name, kind, mode, min(size, _MAX_SIZE), min(max(0, seconds), _MAX_SIZE), link,
        uid=min(uid, _MAX_ID), gid=min(gid, _MAX_ID), posix=True,
    )  # fmt: skip
    return (_extended(name, records) if records else b"") + block


def sparse(name: bytes, size: int, pieces: list[tuple[int, int]]) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Return for a sparse file, in GNU's format 1.0: its stored name, the map before its data, and the extended
    records."""
    if not pieces or sum(pieces[-1]) < size:
        pieces = [*pieces, (size, 0)]
    numbers = b"".join(b"%d\n%d\n" % piece for piece in pieces)
    table = b"%d\n%s" % (len(pieces), numbers)
    above, _, last = name.rpartition(b"/")
    records = [
        (b"GNU.sparse.major", b"1"),
        (b"GNU.sparse.minor", b"0"),
        (b"GNU.sparse.name", name),
        (b"GNU.sparse.realsize", b"%d" % size),
    ]
    if not _is_text(name):
        records.insert(0, _BINARY)
    return (above + b"/" if above else b"") + b"GNUSparseFile.0/" + last, table + padding(len(table)), records


_BINARY: Final = (b"hdrcharset", b"BINARY")


def _extended(name: bytes, records: list[tuple[bytes, bytes]]) -> bytes:
    if _BINARY not in records and not all(_is_text(value) for key, value in records if key in (b"path", b"linkpath")):
        records.insert(0, _BINARY)
    content = b"".join(_record(key, value) for key, value in records)
    short = b"PaxHeaders/" + name.rstrip(b"/").rpartition(b"/")[2][: FIELD - 11]
    return header_block(short, b"x", 0o644, len(content), 0, b"", posix=True) + content + padding(len(content))


def _record(key: bytes, value: bytes) -> bytes:
    """The length counts its own digits."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%s" % (length, rest)


def _time_record(ns: int) -> bytes:
    sign, (seconds, rest) = (b"-", divmod(-ns, 10**9)) if ns < 0 else (b"", divmod(ns, 10**9))
    return b"%s%d.%09d" % (sign, seconds, rest)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
