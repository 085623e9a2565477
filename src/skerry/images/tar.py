"""Tar archives of strangers, read strictly: every number checked, every header bounded, one header held at a time.

`tarfile` reads headers of any length into memory, keeps every entry, and takes what it should refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from skerry.errors import InvalidRequest

BLOCK: Final = 512
PATH_MOST: Final = 4095
DEPTH_MOST: Final = 255
_META_MOST: Final = 1 << 20
_PIECE: Final = 1 << 20
_LATEST: Final = 1 << 33  # of times: the year 2242
_SPACES: Final = sum(b"        ")

Kind = Literal["file", "directory", "link", "hard link", "fifo", "device"]
_KINDS: Final[dict[bytes, Kind]] = {
    b"0": "file", b"\0": "file", b"7": "file", b"1": "hard link", b"2": "link", b"5": "directory",
    b"3": "device", b"4": "device", b"6": "fifo",
}  # fmt: skip
_SPARSE: Final = b"GNU.sparse."
_WANTED: Final = frozenset((b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime")) | {
    _SPARSE + name for name in (b"major", b"minor", b"name", b"realsize")
}
_PIECES_MOST: Final = 1_000_000  # of a file with holes
_XATTR: Final = b"SCHILY.xattr."


class Damaged(InvalidRequest):
    """An archive that is cut off, is no archive, or holds what an image must not hold."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of an archive. `path` is clean: relative, no `.` or `..`, no doubled slash; b"" is the root.

    `link` is a symbolic link's text as it came, or a hard link's other name, as clean as `path`. `pieces`, of a file
    with holes: where its data goes, as (offset, length), in order."""

    path: bytes
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    link: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    pieces: tuple[tuple[int, int], ...] | None = None


class Reader:
    """Entries in their order. `content` gives the present one's; what is not read of it is passed over.

    `read(n)` gives n bytes, fewer only at the end of all. `ended`: the archive's own end mark was met.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._left = self._padding = 0
        self.ended = False

    def __iter__(self) -> Iterator[Entry]:
        about: dict[bytes, bytes] = {}
        while True:
            for _ in self.content():
                pass
            block = self._read(BLOCK)
            if not block or not any(block):
                self.ended = len(block) == BLOCK
                return
            flag, size = _checked(block)
            if flag in (b"L", b"K", b"x", b"g"):
                about |= self._meta(flag, size)
                continue
            entry = _entry(block, flag, size, about)
            self._left, self._padding = entry.size, -entry.size % BLOCK
            if any(key.startswith(_SPARSE) for key in about):
                entry = self._with_holes(entry, {key: value for key, value in about.items() if key.startswith(_SPARSE)})
            about = {}
            yield entry

    def content(self) -> Iterator[bytes]:
        while self._left:
            piece = self._read(min(self._left, _PIECE))
            if not piece:
                raise Damaged("the archive breaks off in the middle of a file")
            self._left -= len(piece)
            yield piece
        if self._padding and len(self._read(self._padding)) < self._padding:
            raise Damaged("the archive breaks off after a file")
        self._padding = 0

    def parts(self, entry: Entry) -> Iterator[tuple[int, memoryview]]:
        """The present entry's content, with the place where each part goes."""
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

    def _with_holes(self, entry: Entry, told: dict[bytes, bytes]) -> Entry:
        if (
            entry.kind != "file"
            or len(told) != 4
            or (told[_SPARSE + b"major"], told[_SPARSE + b"minor"]) != (b"1", b"0")
        ):
            raise _other_holes()
        size, pieces = _decimal(told[_SPARSE + b"realsize"]), self._map()
        end = 0
        for at, length in pieces:
            if at < end:
                raise Damaged("the archive has a file whose map is wrong")
            end = at + length
        if end > size or sum(length for _, length in pieces) != self._left:
            raise Damaged("the archive has a file whose map is wrong")
        return replace(entry, size=size, pieces=pieces)

    def _map(self) -> tuple[tuple[int, int], ...]:
        """A table of decimal numbers, their count first, filled up to a block, stands before the data."""
        numbers: list[int] = []
        rest = b""
        wanted = 1
        while len(numbers) < wanted:
            block = self._read(BLOCK)
            if len(block) < BLOCK or self._left < BLOCK:
                raise Damaged("the archive breaks off in a file's map")
            self._left -= BLOCK
            *lines, rest = (rest + block).split(b"\n")
            numbers += map(_decimal, lines)
            wanted = 1 + 2 * numbers[0] if numbers else 1
            if wanted > 1 + 2 * _PIECES_MOST or len(rest) > BLOCK:
                raise Damaged(f"the archive has a file of more than {_PIECES_MOST} pieces")
        if len(numbers) != wanted:
            raise Damaged("the archive has a file whose map is wrong")
        return tuple(zip(numbers[1::2], numbers[2::2], strict=True))

    def _meta(self, flag: bytes, size: int) -> dict[bytes, bytes]:
        if size > _META_MOST:
            raise Damaged(f"a header of the archive is {size} bytes long")
        whole = self._read(size + -size % BLOCK)
        if len(whole) < size + -size % BLOCK:
            raise Damaged("the archive breaks off in the middle of a header")
        content = whole[:size]
        if flag == b"L":
            return {b"path": content.partition(b"\0")[0]}
        if flag == b"K":
            return {b"linkpath": content.partition(b"\0")[0]}
        found = _records(content)
        return found if flag == b"x" else {}  # global ones name a commit or a charset


def _checked(block: bytes) -> tuple[bytes, int]:
    if len(block) < BLOCK:
        raise Damaged("the archive breaks off in the middle of a header")
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + _SPACES:
        raise Damaged("this is no tar archive, or it is damaged")
    return block[156:157], _number(block[124:136])


def _entry(block: bytes, flag: bytes, size: int, about: dict[bytes, bytes]) -> Entry:
    kind = _KINDS.get(flag)
    if kind is None:
        raise Damaged(f"the archive has an entry of the unknown kind {flag!r}")
    raw = about.get(_SPARSE + b"name", about.get(b"path"))
    if raw is None:
        raw = block[:100].partition(b"\0")[0]
        prefix = block[345:500].partition(b"\0")[0]
        if prefix and block[257:263] == b"ustar\0":
            raw = prefix + b"/" + raw
    if kind == "file" and raw.endswith(b"/"):
        kind = "directory"  # how archives older than POSIX have them
    path, link = clean(raw), about.get(b"linkpath", block[157:257].partition(b"\0")[0])
    if kind == "hard link":
        link = clean(link)
    elif kind == "link" and not 0 < len(link) <= PATH_MOST:
        raise Damaged(f"the archive has a link to nowhere: {path[:80]!r}")
    if not path and kind != "directory":
        raise Damaged("the archive has an entry without a name")
    if b"size" in about:
        size = _decimal(about[b"size"])
    return Entry(
        path=path, kind=kind, link=link,
        mode=_number(block[100:108]) & 0o7777,
        uid=_decimal(about[b"uid"]) if b"uid" in about else _number(block[108:116]),
        gid=_decimal(about[b"gid"]) if b"gid" in about else _number(block[116:124]),
        size=size if kind == "file" else 0,
        mtime_ns=_time(about[b"mtime"]) if b"mtime" in about else min(_number(block[136:148]), _LATEST) * 10**9,
        xattrs={name[len(_XATTR) :]: value for name, value in about.items() if name.startswith(_XATTR)},
    )  # fmt: skip


def _other_holes() -> Damaged:
    return Damaged("the archive has sparse files of an old form", hint="make it without `--sparse`, or with --posix")


def clean(raw: bytes) -> bytes:
    """A path from the root of the archive, whichever way it was written; one that leads upwards is refused."""
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts or b"\0" in raw:
        raise Damaged(f"the archive has a path that leads out of it: {raw[:200]!r}")
    if len(raw) > PATH_MOST or len(parts) > DEPTH_MOST or any(len(part) > 255 for part in parts):
        raise Damaged(f"the archive has a path that is too long: {raw[:80]!r}…")
    return b"/".join(parts)


def _number(raw: bytes) -> int:
    """Octal, or GNU's binary form."""
    if raw[0] & 0x80:
        number = int.from_bytes(raw[1:])
        if raw[0] != 0x80 or number >= 1 << 62:
            raise Damaged("the archive has a number that is out of range")
        return number
    digits = raw.partition(b"\0")[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise Damaged("this is no tar archive, or it is damaged")
    return int(digits, 8) if digits else 0


def _decimal(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Damaged("the archive has a number that is none")
    return int(value)


def _time(value: bytes) -> int:
    """PAX: seconds with a fraction, maybe negative."""
    whole, _, fraction = value.partition(b".")
    if whole.startswith(b"-"):
        return 0
    return min(_decimal(whole), _LATEST) * 10**9 + _decimal(fraction[:9].ljust(9, b"0"))


def _records(content: bytes) -> dict[bytes, bytes]:
    """PAX: `length key=value\\n`, again and again."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 12)
        length = _decimal(content[at:space]) if space > 0 else 0
        key, equals, value = content[space + 1 : at + length].partition(b"=")
        if not equals or value[-1:] != b"\n" or at + length > len(content):
            raise Damaged("the archive has a record that is none")
        if key.startswith(_SPARSE) and key not in _WANTED:
            raise _other_holes()
        if key in _WANTED or key.startswith(_XATTR):
            found[key] = value[:-1]
        at += length
    return found
