"""Packs of git objects, written object by object in a scratch repository.

`git fast-import` is not used: it scans a directory from its start for every file (100,000 files in one took 39 s here),
takes twice as long for each object, and leaves partial data wherever it is stopped. The pack format is small and fixed.
`git index-pack` reads the pack again and rejects inconsistencies and hash collisions. Only for the first commit, which
the user waits for and whose content comes from the user, the index is written here.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import struct
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.review.ledger import diff
from skerry.review.ledger.git import TIMEOUT_S, LedgerGit, LedgerGitError

Kind = Literal["commit", "tree", "blob"]
SCRATCH: Final = "incoming-"
_KINDS: Final = {"commit": 1, "tree": 2, "blob": 3}
_LEVEL: Final = 1
_BUFFER: Final = 256 << 10
_HEAD: Final = 12  # bytes
_FAR: Final = 1 << 31


class Pack:
    """A pack that is being written. Objects already in it are not written again. `stored`: bytes of content to store
    without compression, which takes longer than everything else about a small file."""

    def __init__(self, path: Path, stored: int = 0) -> None:
        self.path = path
        self._stored = stored
        self.objects: dict[bytes, tuple[int, int]] = {}  # offset in the file and checksum of the entry
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
        """Add a blob of exactly `size` bytes; raise InvalidRequest if the pieces hold more or fewer."""
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
            raise InvalidRequest(f"expected {size} bytes of data, got {'more' if came > size else came}")
        oid = name.digest()
        if oid in self.objects:
            self._file.seek(self._at)
            self._file.truncate()
        else:
            self.objects[oid] = (self._at, checksum)
            self._at = end
        return oid

    def finish(self) -> None:
        """Complete the pack and sync it to disk."""
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
        """Write the same index as `git index-pack` (version 2) for a finished pack: sorted names after a table of
        counts by first byte, then checksums and offsets, with offsets beyond 2 GiB in a second table."""
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
    """A repository beside the ledger that reads the ledger's objects and keeps new ones apart until `keep` moves them.
    A killed server leaves it behind; the next open of the ledger removes it."""

    def __init__(self, place: Path, ledger: Path) -> None:
        self._place, self._ledger = place, ledger
        self._packs = place / "objects" / "pack"
        self.git = LedgerGit(place)

    @property
    def pack(self) -> Path:
        return self._packs / "pack-new.pack"

    def index(self, pack: Path, held: tuple[int, ...] = (), seconds: float = TIMEOUT_S) -> None:
        self.git.run("index-pack", "-o", str(pack.with_suffix(".idx")), str(pack), held=held, seconds=seconds)

    @property
    def arriving(self) -> Path:
        return self._place / "arriving"

    def indexes(self) -> list[Path]:
        return sorted(self._packs.glob("pack-*.idx"))

    def shallow(self, commits: Iterable[str]) -> None:
        """Declare commits that have no parents here."""
        (self._place / "shallow").write_text("".join(f"{commit}\n" for commit in sorted(commits)))

    def keep(self) -> None:
        """Move the packs into the ledger, each before its index: git ignores a pack without an index."""
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
    """Replace a file atomically and sync it to disk."""
    new = path.with_name(f"{path.name}.lock")  # git's name for it, so that leftovers are swept with git's
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


# Maintenance of a ledger: locks, leftovers of killed writers, and joining packs before there are many.
#
# Every commit makes one pack. Joining them geometrically (`git repack --geometric`) rewrites only the small ones, so
# that a ledger of n commits has about log(n) packs, and each object is rewritten about log(n) times.

JOIN_LATER_ABOVE: Final = 40  # packs: joined in the background
JOIN_NOW_ABOVE: Final = 200  # packs: joined by the next commit before it returns
_MAX_LOOSE: Final = 1000
_LOCK_TIMEOUT_S: Final = 600.0
_REPACK_TIMEOUT_S: Final = 1800.0
_MAX_READER_AGE_S: Final = 3600.0


@contextmanager
def held(path: Path, timeout: float) -> Iterator[int]:
    """Hold a lock that child processes share if they get its fd."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + timeout
        while not _taken(fd):
            if time.monotonic() >= until:
                raise Conflict(f"another process is using the ledger at {path.parent}")
            time.sleep(0.005)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def locked(repo: Path, timeout: float = _LOCK_TIMEOUT_S) -> Iterator[int]:
    """Hold the lock for joining  It is separate from the writers' lock, which is held only briefly."""
    with held(repo / "care.lock", timeout) as fd:
        yield fd


def disk_size(repo: Path) -> int:
    total = 0
    pending = [str(repo)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def sweep(repo: Path) -> None:
    """Remove leftovers; call with the writers' lock held. A git of a killed server may still be joining packs: leave
    its files alone."""
    for path in repo.glob(f"{SCRATCH}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in repo.glob(f"{diff.SCRATCH}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _MAX_READER_AGE_S:
                shutil.rmtree(path, ignore_errors=True)
    for path in [*repo.glob("refs/**/*.lock"), *repo.glob("*.lock"), *repo.glob("info/*.lock")]:
        if path.name not in ("writer.lock", "care.lock"):
            path.unlink(missing_ok=True)
    with suppress(Conflict), locked(repo, 0):
        for path in [*repo.glob("objects/*/tmp_obj_*"), *_unfinished(repo / "objects" / "pack")]:
            path.unlink(missing_ok=True)


class PackMaintenance:
    """Joins packs in a background thread, so that no commit waits for it."""

    def __init__(self, repo: Path, git: LedgerGit) -> None:
        self._repo, self._git = repo, git
        self._thread: threading.Thread | None = None

    def after_commit(self) -> None:
        """Check after each commit. If joining fails, for example on a full disk, the commit is still valid."""
        count = _pack_count(self._repo)
        if count > JOIN_NOW_ABOVE:
            self._maintain()
        elif count > JOIN_LATER_ABOVE and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._maintain, name="ledger-care", daemon=True)
            self._thread.start()

    def _maintain(self) -> None:
        with suppress(SkerryError, OSError):
            maintain(self._repo, self._git)


def maintain(repo: Path, git: LedgerGit) -> bool:
    if _pack_count(repo) <= JOIN_LATER_ABOVE and _loose(repo) <= _MAX_LOOSE:
        return False
    try:
        with locked(repo, 0) as lock:
            try:
                git.run("repack", "--geometric=2", "-d", "-q", held=(lock,), seconds=_REPACK_TIMEOUT_S)
            except LedgerGitError as failed:
                if "geometric" not in failed.message:
                    raise
                git.run("repack", "-a", "-d", "-k", "-q", held=(lock,), seconds=_REPACK_TIMEOUT_S)  # git before 2.32
    except Conflict:
        return False  # another process does it
    return True


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pack_count(repo: Path) -> int:
    return sum(name.endswith(".pack") for name in os.listdir(repo / "objects" / "pack"))


def _loose(repo: Path) -> int:
    found = 0
    for name in os.listdir(repo / "objects"):
        if len(name) == 2:
            found += len(os.listdir(repo / "objects" / name))
    return found


def _unfinished(directory: Path) -> Iterator[Path]:
    """Yield temporary files, packs without an index, and files whose pack is gone."""
    names = set(os.listdir(directory))
    for name in names:
        stem, _, kind = name.rpartition(".")
        whole = f"{stem}.pack" in names and (kind != "pack" or f"{stem}.idx" in names)
        if not name.startswith("pack-") or not whole:
            yield directory / name
