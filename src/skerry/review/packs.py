"""A pack of git objects, written piece by piece, and the scratch repository that it is made in.

Why not `git fast-import`: it looks through a directory from its beginning for every file (100,000 in one took 39 s
here), takes twice as long for each object, and leaves what it had begun wherever it is stopped. The format is small
and fixed. `git index-pack` reads all of it again: it refuses what does not add up, and two contents that were made to
have one name. Only of the first commit, for which somebody waits and whose content the user brought, the index is
written here.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from skerry.errors import InvalidRequest
from skerry.review.git import SECONDS, Git

Kind = Literal["commit", "tree", "blob"]
SCRATCH: Final = "incoming-"
_KINDS: Final = {"commit": 1, "tree": 2, "blob": 3}
_LEVEL: Final = 1
_BUFFER: Final = 256 << 10
_HEAD: Final = 12  # bytes
_FAR: Final = 1 << 31


class Pack:
    """Objects on their way into a pack. An object that is in it already is not written again. `stored`: so many bytes
    of content are not compressed, which takes longer than all else about a small file."""

    def __init__(self, path: Path, stored: int = 0) -> None:
        self.path = path
        self._stored = stored
        self.objects: dict[bytes, tuple[int, int]] = {}  # its place in the file, and the checksum of what is there
        self._file = open(path, "xb+", buffering=_BUFFER)  # noqa: SIM115 - closed by `finish` or `close`
        self._file.write(b"PACK" + struct.pack(">II", 2, 0))
        self._at = _HEAD
        self._trailer = b""

    def add(self, kind: Kind, data: bytes) -> bytes:
        name = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
        name.update(data)
        oid = name.digest()
        if oid not in self.objects:
            level = 0 if len(data) <= self._stored else _LEVEL
            self._stored -= len(data) if not level else 0
            entry = _header(_KINDS[kind], len(data)) + zlib.compress(data, level)
            self.objects[oid] = (self._at, zlib.crc32(entry))
            self._file.write(entry)
            self._at += len(entry)
        return oid

    def add_pieces(self, pieces: Iterable[bytes], size: int) -> bytes:
        """A blob of `size` bytes; whoever gives more or fewer is refused."""
        name = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        came, deflate = 0, zlib.compressobj(_LEVEL)
        head = _header(_KINDS["blob"], size)
        self._file.write(head)
        end, checksum = self._at + len(head), zlib.crc32(head)
        for piece in itertools.chain(pieces, (None,)):
            if piece is not None:
                came += len(piece)
                if came > size:
                    break
                name.update(piece)
            packed = deflate.flush() if piece is None else deflate.compress(piece)
            self._file.write(packed)
            end, checksum = end + len(packed), zlib.crc32(packed, checksum)
        if came != size:
            raise InvalidRequest(f"a file of {size} bytes came with {'more' if came > size else came}")
        oid = name.digest()
        if oid in self.objects:
            self._file.seek(self._at)
            self._file.truncate()
        else:
            self.objects[oid] = (self._at, checksum)
            self._at = end
        return oid

    def finish(self) -> None:
        """Whole and on the platter."""
        self._file.seek(8)
        self._file.write(struct.pack(">I", len(self.objects)))
        self._file.flush()
        self._file.seek(0)
        trailer = hashlib.sha1(usedforsecurity=False)
        while piece := self._file.read(1 << 20):
            trailer.update(piece)
        self._trailer = trailer.digest()
        self._file.write(self._trailer)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def write_index(self) -> None:
        """What `git index-pack` would write (version 2), once it is finished: the names in order, behind a table of how
        many begin with which byte, then checksums and places, those beyond 2 GiB in a table of their own."""
        names = sorted(self.objects)
        begins = Counter(name[0] for name in names)
        fanout = itertools.accumulate(begins[byte] for byte in range(256))
        far = [at for name in names if (at := self.objects[name][0]) >= _FAR]
        beyond = iter(range(len(far)))
        near = [at if at < _FAR else _FAR | next(beyond) for at, _ in map(self.objects.__getitem__, names)]
        checksums = [self.objects[name][1] for name in names]
        table = b"".join([
            b"\xfftOc", struct.pack(">257I", 2, *fanout), *names, struct.pack(f">{len(names)}I", *checksums),
            struct.pack(f">{len(names)}I", *near), struct.pack(f">{len(far)}Q", *far), self._trailer,
        ])  # fmt: skip
        with open(self.path.with_suffix(".idx"), "xb") as file:
            file.write(table + hashlib.sha1(table, usedforsecurity=False).digest())
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o400)

    def close(self) -> None:
        self._file.close()


class Scratch:
    """A repository beside the ledger that sees the ledger's objects, and whose own are none of the ledger's until
    `keep` moves them over. A killed server leaves it behind; the next one to open the ledger removes it."""

    def __init__(self, place: Path, ledger: Path) -> None:
        self._place, self._ledger = place, ledger
        self._packs = place / "objects" / "pack"
        self.git = Git(place)

    @property
    def pack(self) -> Path:
        return self._packs / "pack-new.pack"

    def index(self, pack: Path, held: tuple[int, ...] = (), seconds: float = SECONDS) -> None:
        self.git.run("index-pack", "-o", str(pack.with_suffix(".idx")), str(pack), held=held, seconds=seconds)

    @property
    def arriving(self) -> Path:
        return self._place / "arriving"

    def indexes(self) -> list[Path]:
        return sorted(self._packs.glob("pack-*.idx"))

    def shallow(self, commits: Iterable[str]) -> None:
        """Commits whose parents are nowhere here."""
        (self._place / "shallow").write_text("".join(f"{commit}\n" for commit in sorted(commits)))

    def keep(self) -> None:
        """Packs before their indexes: a pack that has none is nobody's."""
        target = self._ledger / "objects" / "pack"
        for pack in sorted(self._packs.glob("pack-*.pack")):
            with open(pack, "rb") as file:
                file.seek(-20, os.SEEK_END)
                name = f"pack-{file.read(20).hex()}"
            os.chmod(pack, 0o400)
            os.rename(pack, target / f"{name}.pack")
            os.rename(pack.with_suffix(".idx"), target / f"{name}.idx")
        sync(target)


@contextmanager
def scratch(ledger: Path) -> Iterator[Scratch]:
    place = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=ledger))
    try:
        for directory in ("objects", "objects/info", "objects/pack", "refs"):
            (place / directory).mkdir(mode=0o700)
        (place / "HEAD").write_text("ref: refs/heads/main\n")
        (place / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
        (place / "objects" / "info" / "alternates").write_text("../../objects\n")
        yield Scratch(place, ledger)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, text: str) -> None:
    """All of it or nothing, and on the platter."""
    new = path.with_name(f"{path.name}.lock")  # git's own name for it: what is left behind is swept like git's
    try:
        with open(new, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new)
        raise
    sync(path.parent)


def _header(kind: int, size: int) -> bytes:
    out, byte, size = bytearray(), kind << 4 | size & 15, size >> 4
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    out.append(byte)
    return bytes(out)
