"""Tar archives as they are written: POSIX's form, with its extended headers where a value does not fit. Pure.

Read by GNU tar, Docker, containers/image and everything else that reads layers of images.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
FILE, HARD_LINK, LINK, DIRECTORY, FIFO = b"0", b"1", b"2", b"5", b"6"
_FIELD: Final = 100
_MAGIC: Final = b"ustar\x0000"
_TAIL: Final = bytes(247)
_SPACES: Final = b"        "
_ID_MOST: Final = 8**7 - 1
_SIZE_MOST: Final = 8**11 - 1


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
    """What stands before an entry's content. `more`: records of its extended header."""
    records = [*more]
    if len(name) > _FIELD:
        records.append((b"path", name))
    if len(link) > _FIELD:
        records.append((b"linkpath", link))
    for key, number, most in ((b"uid", uid, _ID_MOST), (b"gid", gid, _ID_MOST), (b"size", size, _SIZE_MOST)):
        if number > most:
            records.append((key, b"%d" % number))
    seconds, rest = divmod(mtime_ns, 10**9)
    if rest or not 0 <= seconds <= _SIZE_MOST:
        records.append((b"mtime", _time(mtime_ns)))
    fields = (mode, min(uid, _ID_MOST), min(gid, _ID_MOST), min(size, _SIZE_MOST), min(max(0, seconds), _SIZE_MOST))
    return (_extended(name, records) if records else b"") + _block(name, kind, fields, link)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def sparse(name: bytes, size: int, pieces: list[tuple[int, int]]) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Of a file with holes, in GNU's form 1.0: the name that it goes under, the map that stands before its data, and
    the records that tell."""
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
    short = b"PaxHeaders/" + name.rstrip(b"/").rpartition(b"/")[2][: _FIELD - 11]
    return _block(short, b"x", (0o644, 0, 0, len(content), 0), b"") + content + padding(len(content))


def _record(key: bytes, value: bytes) -> bytes:
    """Its length counts its own digits."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%s" % (length, rest)


def _block(name: bytes, kind: bytes, fields: tuple[int, int, int, int, int], link: bytes) -> bytes:
    before = name[:_FIELD].ljust(_FIELD, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % fields
    after = kind + link[:_FIELD].ljust(_FIELD, b"\0") + _MAGIC + _TAIL
    return before + b"%06o\0 " % (sum(before) + sum(_SPACES) + sum(after)) + after


def _time(ns: int) -> bytes:
    sign, (seconds, rest) = (b"-", divmod(-ns, 10**9)) if ns < 0 else (b"", divmod(ns, 10**9))
    return b"%s%d.%09d" % (sign, seconds, rest)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
