"""Tar: the one place that parses and writes header blocks and PAX records, and the archives between server and client.

Written by hand because `tarfile` takes three times as long for a small file, and accepts invalid archives. Pure.
`skerry.images.archive.tar` reads and writes layers of images with the same blocks: it pulls its input, and supports
owners, extended attributes and sparse files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from skerry.errors import SkerryError

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
FIELD: Final = 100  # bytes for a name, and for the target of a link
MAX_NAME: Final = 32 << 10
_MAX_META: Final = 64 << 10
_MAX_LINK: Final = 4095
_SPACES: Final = sum(b"        ")  # in place of the checksum while it is computed
_POSIX: Final = b"ustar\x0000"
_GNU: Final = b"ustar  \0"
_AFTER_MAGIC: Final = bytes(247)

Field = Literal["mode", "uid", "gid", "size", "mtime"]
_FIELDS: Final[dict[Field, slice]] = {
    "mode": slice(100, 108), "uid": slice(108, 116), "gid": slice(116, 124), "size": slice(124, 136),
    "mtime": slice(136, 148),
}  # fmt: skip
_CHECKSUM: Final = slice(148, 156)

EntryKind = Literal["file", "directory", "link", "hard link", "fifo", "device"]
_KINDS: Final[dict[bytes, EntryKind]] = {
    b"0": "file", b"\0": "file", b"7": "file", b"1": "hard link", b"2": "link", b"5": "directory",
    b"3": "device", b"4": "device", b"6": "fifo",
}  # fmt: skip


class TarError(ValueError):
    """A header or a record is invalid; the message is a clause for the caller's error."""


# -- reading blocks ----------------------------------------------------------------------------------------------------


class HeaderBlock:
    """One header with a valid checksum. Its numbers are parsed on access: an extended header may replace invalid ones.

    `foreign`: it may come from any program, some of which leave other bytes after the NUL that ends a number."""

    __slots__ = ("_block", "_foreign", "flag")

    def __init__(self, block: bytes, *, foreign: bool = False) -> None:
        self._block, self._foreign = block, foreign
        self.flag = block[156:157]
        if self._octal(_CHECKSUM) != sum(block) - sum(block[_CHECKSUM]) + _SPACES:
            raise TarError("a header is invalid")

    @property
    def kind(self) -> EntryKind:
        kind = _KINDS.get(self.flag)
        if kind is None:
            raise TarError(f"it has an entry of the unknown kind {self.flag!r}")
        return kind

    @property
    def name(self) -> bytes:
        name = self._block[:FIELD].partition(b"\0")[0]
        prefix = self._block[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix and self._block[257:263] == _POSIX[:6] else name

    @property
    def link(self) -> bytes:
        return self._block[157:257].partition(b"\0")[0]

    def is_binary(self, field: Field) -> bool:
        return self._block[_FIELDS[field]][0] >= 0x80

    def number(self, field: Field, *, binary: bool = True) -> int:
        """Parse octal, or GNU's binary form."""
        if not binary or not self.is_binary(field):
            return self._octal(_FIELDS[field])
        raw = self._block[_FIELDS[field]]
        number = int.from_bytes(raw[1:])
        if raw[0] != 0x80 or number >= 1 << 62:
            raise TarError("a number is out of range")
        return number

    def _octal(self, field: slice) -> int:
        raw = self._block[field]
        digits = (raw.partition(b"\0")[0] if self._foreign else raw).strip(b" \0")
        if digits.strip(b"01234567"):
            raise TarError("a number is invalid")
        return int(digits, 8) if digits else 0


def parse_decimal(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise TarError("a number is invalid")
    return int(value)


def parse_records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Parse an extended header of PAX: `length key=value\\n`, repeated."""
    at = 0
    while at < len(content):
        digits, space, _ = content[at : at + 12].partition(b" ")
        length = parse_decimal(digits) if space else 0
        key, equals, value = content[at + len(digits) + 1 : at + length].partition(b"=")
        if not equals or value[-1:] != b"\n" or at + length > len(content):
            raise TarError("a record is invalid")
        yield key, value[:-1]
        at += length


# -- writing blocks ----------------------------------------------------------------------------------------------------


def header_block(
    name: bytes, flag: bytes, mode: int, size: int, mtime: int, link: bytes, *,
    uid: int = 0, gid: int = 0, posix: bool = False,
) -> bytes:  # fmt: skip
    """Return one block; a longer name or target is truncated. A size above 8 GiB is in GNU's binary form."""
    numbers = b"%07o\0%07o\0%07o\0" % (mode, uid, gid) + _encode(size) + _encode(max(0, mtime))
    before = name[:FIELD].ljust(FIELD, b"\0") + numbers
    after = flag + link[:FIELD].ljust(FIELD, b"\0") + (_POSIX if posix else _GNU) + _AFTER_MAGIC
    return before + b"%06o\0 " % (sum(before) + _SPACES + sum(after)) + after


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def _encode(value: int) -> bytes:
    return b"%011o\0" % value if value < 1 << 33 else b"\x80" + value.to_bytes(11)


# -- archives between server and client --------------------------------------------------------------------------------

Kind = Literal["file", "directory", "link", "hard link", "other"]
_FLAGS: Final[dict[Kind, bytes]] = {"file": b"0", "hard link": b"1", "link": b"2", "directory": b"5"}


class Malformed(SkerryError):
    """The data is not an archive in the expected format."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the archive from the sandbox cannot be read: {why}", hint="is the server of the same version?"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of an archive. `name` is clean: no leading slash, no `.` or `..`; b"" is the archive's root."""

    name: bytes
    kind: Kind
    mode: int = 0o644
    size: int = 0
    mtime: int = 0
    link: bytes = b""


def header(entry: Entry) -> bytes:
    """Return the header of an entry, with GNU long names if they are needed."""
    name = entry.name + b"/" if entry.kind == "directory" else entry.name
    long = b""
    if len(name) > FIELD:
        long += _long(b"L", name)
    if len(entry.link) > FIELD:
        long += _long(b"K", entry.link)
    return long + header_block(name, _FLAGS[entry.kind], entry.mode, entry.size, entry.mtime, entry.link)


def _long(flag: bytes, value: bytes) -> bytes:
    return header_block(b"././@LongLink", flag, 0o644, len(value) + 1, 0, b"") + value + b"\0" + padding(len(value) + 1)


class Reader:
    """Bytes in as they come; out come entries, each followed by its content in pieces. Holds one header at most."""

    def __init__(self) -> None:
        self.ended = False
        self._held = bytearray()
        self._left = 0  # bytes of content that belong to the entry
        self._padding = 0
        self._about: dict[str, bytes] = {}

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        held = self._held
        held += data
        while not self.ended:
            if self._left and held:
                piece = bytes(memoryview(held)[: self._left])
                del held[: len(piece)]
                self._left -= len(piece)
                yield piece
            if self._left:
                return
            skipped = min(self._padding, len(held))
            del held[:skipped]
            self._padding -= skipped
            if self._padding or (entry := self._next()) is None:
                break
            if isinstance(entry, Entry):
                yield entry
        if self.ended:
            held.clear()

    def _next(self) -> Entry | bool | None:
        """The next entry; True: something about it; None: there is not enough yet, or the end."""
        held = self._held
        if len(held) < BLOCK:
            return None
        block = bytes(held[:BLOCK])
        if not any(block):
            self.ended = True
            return None
        try:
            head = HeaderBlock(block)
            if head.flag in (b"L", b"K", b"x", b"g"):
                return self._meta(head.flag, head.number("size"))
            del held[:BLOCK]
            about, self._about = self._about, {}
            entry = _entry(head, about)
        except TarError as error:
            raise Malformed(str(error)) from None
        if entry.kind == "file":
            self._left, self._padding = entry.size, -entry.size % BLOCK
        return entry

    def _meta(self, flag: bytes, size: int) -> bool | None:
        if size > _MAX_META:
            raise Malformed("it has a header that is too long")
        whole = BLOCK + size + -size % BLOCK
        if len(self._held) < whole:
            return None
        content = bytes(self._held[BLOCK : BLOCK + size])
        del self._held[:whole]
        if flag == b"L":
            self._about["path"] = content.partition(b"\0")[0]
        elif flag == b"K":
            self._about["linkpath"] = content.partition(b"\0")[0]
        elif flag == b"x":
            self._about |= _records(content)
        return True


def _entry(head: HeaderBlock, about: dict[str, bytes]) -> Entry:
    size, found = head.number("size"), head.kind
    kind: Kind = "other" if found == "fifo" or found == "device" else found
    name = clean(about.get("path", head.name))
    link = about.get("linkpath", head.link)
    if kind == "hard link":
        link = clean(link)
    elif kind == "link" and not 0 < len(link) <= _MAX_LINK:
        raise Malformed("it has a link to nowhere")
    if not name and kind != "directory":
        raise Malformed("it has an entry without a name")
    if "size" in about:
        size = parse_decimal(about["size"])
    mtime = 0 if head.is_binary("mtime") else head.number("mtime")
    return Entry(name, kind, head.number("mode", binary=False) & 0o7777, size if kind == "file" else 0, mtime, link)


def clean(name: bytes) -> bytes:
    """Return a normalized path. Raise `Malformed` if the path leads out of the archive."""
    if name[:1] == b"/" or len(name) > MAX_NAME or b"\0" in name:
        raise Malformed(f"it has the name {name[:200]!r}")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts or any(len(part) > 255 for part in parts):
        raise Malformed(f"it has the name {name[:200]!r}")
    return b"/".join(parts)


def _records(content: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in parse_records(content):
        if key.startswith(b"GNU.sparse."):
            raise TarError("a record is invalid")
        if key in (b"path", b"linkpath", b"size"):
            found[key.decode()] = value
    return found
