"""Our headers are valid tar, and invalid tar is rejected."""

from __future__ import annotations

import io
import subprocess
import tarfile
from itertools import islice
from pathlib import Path

import pytest

from skerry.codecs.tar import (
    END,
    Entry,
    Malformed,
    Reader,
    TarError,
    clean,
    header,
    header_block,
    padding,
    parse_records,
)
from skerry.images.archive.tar import Damaged, LayerReader

ENTRIES = (
    Entry(b"d", "directory", 0o755, 0, 1_000_000_000),
    Entry(b"d/" + b"long-" * 40 + b"/\xff\n'", "file", 0o640, 700, 1_234_567_890),
    Entry(b"n" * 100, "file", 0o600, 0, 0),
    Entry("ü".encode(), "link", 0o777, 0, 5, b"../" + b"t" * 300),
    Entry(b"h", "hard link", 0o644, 0, 5, b"d/" + b"long-" * 40 + b"/\xff\n'"),
)


def written(entries: tuple[Entry, ...] = ENTRIES) -> bytes:
    return b"".join(header(one) + b"x" * one.size + padding(one.size) for one in entries) + END


def read(data: bytes, size: int = 1 << 20) -> list[Entry]:
    reader, found, content = Reader(), [], 0
    for start in range(0, len(data), size):
        for one in reader.feed(data[start : start + size]):
            if isinstance(one, Entry):
                assert content == 0, "an entry came before the content of the last was whole"
                found.append(one)
                content = one.size
            else:
                assert one, "an empty piece"
                content -= len(one)
    assert (reader.ended, content) == (True, 0)
    return found


@pytest.mark.parametrize("size", [1 << 20, 1000, 513, 512, 7, 1])
def test_written_archive_is_read_in_pieces_of_any_size(size: int) -> None:
    assert read(written(), size) == list(ENTRIES)


def test_python_tarfile_reads_a_written_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(written())) as tar:
        found = tar.getmembers()
    assert [one.name.encode("utf-8", "surrogateescape") for one in found] == [one.name for one in ENTRIES]
    assert [one.mode for one in found] == [one.mode for one in ENTRIES]
    assert [one.mtime for one in found] == [one.mtime for one in ENTRIES]
    assert [one.linkname.encode("utf-8", "surrogateescape") for one in found] == [one.link for one in ENTRIES]


def test_gnu_tar_reads_a_written_archive(tmp_path: Path) -> None:
    subprocess.run(["tar", "x", "--warning=all", "-C", tmp_path], input=written(), check=True)
    assert (tmp_path / "h").read_bytes() == b"x" * 700
    assert (tmp_path / "h").stat().st_nlink == 2
    assert (tmp_path / "ü").readlink() == Path("../" + "t" * 300)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_of_python_tarfile_is_read(form: int) -> None:
    out = io.BytesIO()
    long = "p/" * (40 if form == tarfile.USTAR_FORMAT else 400) + "n"
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        info = tarfile.TarInfo(long)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("./l")
        link.type, link.linkname = tarfile.SYMTYPE, "t" * 90
        tar.addfile(link)
    assert [(one.name, one.kind, one.size, one.link) for one in read(out.getvalue())] == [
        (long.encode(), "file", 3, b""),
        (b"l", "link", 0, b"t" * 90),
    ]


def test_sizes_beyond_eight_gibibytes_are_written_and_read() -> None:
    huge = Entry(b"huge", "file", 0o644, 1 << 40, 0)
    assert list(Reader().feed(header(huge))) == [huge]
    assert tarfile.TarInfo.frombuf(header(huge), "utf-8", "strict").size == 1 << 40


@pytest.mark.parametrize("name", [b"/a", b"..", b"a/../b", b"../a", b"a/..", b"n" * 256, b"a/" * 20_000, b"a\0b"])
def test_names_that_lead_outside_are_rejected(name: bytes) -> None:
    with pytest.raises(Malformed):
        clean(name)


def test_redundant_dots_and_slashes_are_dropped() -> None:
    assert clean(b"./a//b/./c/") == b"a/b/c"
    assert clean(b"./") == b""


def bent(at: int, value: bytes) -> bytes:
    """A header with a field of our own, and a checksum that fits."""
    block = bytearray(header(Entry(b"f", "file")))
    block[at : at + len(value)] = value
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + END


@pytest.mark.parametrize(
    "data",
    [
        b"junk" * 200,
        header(Entry(b"f", "file"))[:-1] + b"x" + END,
        bent(124, b"9999999"),
        bent(124, b"\x80" + b"\xff" * 11),
        bent(124, b"-0000001"),
        bent(156, b"S"),
        bent(156, b"2"),
        bent(0, b"/etc/passwd"),
        bent(0, b"\0"),
    ],
)
def test_foreign_archive_is_rejected(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(Reader().feed(data))


INVALID_RECORDS = {
    "no space after a record": b"8 path=\n" + b"x" * 20,
    "no length": b" path=a\n",
    "length of zero": b"0 path=a\n",
    "length beyond the header": b"11 path=a\n",
    "no line end": b"9 path=ab",
    "length that is no number": b"+9 path=a\n",
}


@pytest.mark.parametrize("content", INVALID_RECORDS.values(), ids=INVALID_RECORDS)
def test_invalid_record_is_rejected_at_once(content: bytes) -> None:
    with pytest.raises(TarError):
        list(islice(parse_records(content), 3))  # bounded: such a record of a hostile image was once read forever
    archive = header_block(b"x", b"x", 0o644, len(content), 0, b"") + content + padding(len(content)) + END
    with pytest.raises(Malformed):
        list(Reader().feed(archive))
    with pytest.raises(Damaged):
        list(LayerReader(io.BytesIO(archive).read))


def test_endless_header_is_rejected() -> None:
    block = bytearray(header(Entry(b"f", "file", 0, 1 << 20)))
    block[156:157] = b"x"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(Malformed, match="too long"):
        list(Reader().feed(bytes(block)))


def test_data_after_the_end_is_ignored() -> None:
    assert read(written() + b'{"skipped": []}\n') == list(ENTRIES)
