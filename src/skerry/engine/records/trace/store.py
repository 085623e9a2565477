"""The files of one trace: its lines and its blobs.

A line is in the kernel when `append` returns, so a killed server loses at most a part of its last line; nothing is
synced to the disk. Both a full trace and a full disk stop the recording, never the sandbox: omitted steps are counted,
and the next line that is written has their number."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from skerry.codecs.traces import MAX_LINE, MAX_STEPS, MAX_STEPS_SIZE, SHA256, decode_line, encode_line
from skerry.engine.records.trace.mask import SecretMask
from skerry.types import TraceEnd, TraceStart, TraceStep

log = logging.getLogger("skerry.engine")
STEPS: Final = "steps.ndjson"
BLOBS: Final = "blobs"
CASSETTE: Final = "cassette"
_NEW: Final = ".new-"  # prefix of blobs that are being written
_TAIL: Final = 4 * MAX_LINE
_SPARE: Final = 64 << 10  # bytes beyond the bound, for lines about the state of the sandbox
LEFT_OUT: Final = "the trace has reached trace.max_size"
DISK_FULL: Final = "the server's disk is almost full"
MAX_PENDING: Final = 4 << 20


class Hash(Protocol):
    """A hash of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class TraceBounds:
    """`size`: of one trace, lines and blobs. `min_free`: space on the disk that blobs leave free."""

    size: int
    min_free: int


class TraceThreads:
    """The threads of all traces: `files` reads and writes blobs, one at a time. Another one hashes output, which takes
    as long as passing it on; the event loop waits only while MAX_PENDING bytes are not hashed yet."""

    def __init__(self) -> None:
        self.files = ThreadPoolExecutor(1, "trace")
        self._hashes = ThreadPoolExecutor(1, "trace-hash")
        self._jobs: deque[tuple[Future[None], int]] = deque()
        self._pending = 0

    def hash(self, into: Hash, data: bytes) -> Future[None]:
        """Add data to a hash, after the data of earlier calls."""
        while self._jobs and (self._jobs[0][0].done() or self._pending > MAX_PENDING):
            job, size = self._jobs.popleft()
            job.result()
            self._pending -= size
        job = self._hashes.submit(into.update, data)
        self._jobs.append((job, len(data)))
        self._pending += len(data)
        return job

    def close(self) -> None:
        self.files.shutdown()
        self._hashes.shutdown()


class TraceStore:
    """Used from the event loop's thread; blobs are written in a thread."""

    def __init__(self, place: Path, bounds: TraceBounds, threads: TraceThreads) -> None:
        self.mask = SecretMask()
        self.place, self._bounds, self.threads = place, bounds, threads
        self.last = 0  # the number of the newest step
        self.omitted = 0  # steps that were not written since the last one that was
        self._lines = 0  # bytes
        self._blobs: set[str] = set()
        self._blob_bytes = 0
        self._descriptor: int | None = None
        self._failed = self._full = self._over = False
        self.more = asyncio.Event()  # set, and replaced, when a line was written, or none will follow
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open()
        with contextlib.suppress(FileNotFoundError), os.scandir(place / BLOBS) as entries:
            for entry in entries:
                if SHA256.fullmatch(entry.name):
                    self.adopt(entry.name, entry.stat(follow_symlinks=False).st_size)
                elif entry.name.startswith(_NEW):
                    os.unlink(entry.path)

    @property
    def size(self) -> int:
        return self._lines + self._blob_bytes

    # -- lines --------------------------------------------------------------------------------------------------------

    def newest(self, kinds: Sequence[str]) -> int:
        """Return the place of the newest step of these kinds among the last lines; -1: none. Quotation marks in values
        are escaped, so no value can imitate a kind."""
        descriptor = self._descriptor if self._descriptor is not None else self._open()
        tail = os.pread(descriptor, _TAIL, max(0, self._lines - _TAIL))
        return max(tail.rfind(f'"kind":"{kind}"'.encode()) for kind in kinds)

    def _open(self) -> int:
        """Open the lines for appending. The half line of a killed server is ended: a reader counts it as damaged."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.place / STEPS, flags, 0o600)
        try:
            self._lines = os.fstat(descriptor).st_size
            tail = os.pread(descriptor, _TAIL, max(0, self._lines - _TAIL))
            if tail and not tail.endswith(b"\n"):
                self._lines += os.write(descriptor, b"\n")
            self.last = max(self.last, _last(tail))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def begin(self, step: TraceStep, *, spare: bool = False) -> int:
        """Write the line of a new step and return its number; 0 if it does not fit. `spare`: it may also use
        the space beyond the bound."""
        step = replace(step, n=self.last + 1, omitted=self.omitted)
        line = self._encode(step)
        if not self._fits(len(line), spare):
            self._omit()
            return 0
        if not self._write(line):
            self.omitted += 1
            return 0
        self.last, self.omitted = step.n, 0
        return step.n

    def end(self, line: TraceEnd) -> None:
        """Write the end of a step. Without space for all of it, the outputs are left out."""
        data = self._encode(replace(line, last=self.last))
        if not self._fits(len(data), spare=False):
            short = replace(line, last=self.last, stdout=None, stderr=None, results=None, inputs={}, result={})
            data = self._encode(short)
            if not self._fits(len(data), spare=True):
                return
        self._write(data)

    def _encode(self, line: TraceStep | TraceEnd) -> bytes:
        """Return a line without values of secrets. Asterisks leave its JSON intact, except after half of an escaped
        character: then its texts are left out."""
        data, masked = self.mask.bytes(encode_line(line))
        if not masked:
            return data
        try:
            decode_line(data)
        except ValueError:
            return self.mask.bytes(encode_line(_without_texts(line)))[0]
        return data

    def _fits(self, size: int, spare: bool) -> bool:
        more = _SPARE if spare else 0
        return (
            size <= MAX_LINE
            and self.last < MAX_STEPS
            and self._lines + size <= min(self._bounds.size, MAX_STEPS_SIZE - _SPARE) + more
            and self.size + size <= self._bounds.size + more
        )

    def _omit(self) -> None:
        """Count a step that does not fit. The first one leaves a line, which says so even if no other follows."""
        self.omitted += 1
        if not self._full:
            self._full = True
            note = TraceStep(n=self.last + 1, at=0.0, kind="trace.full", text=LEFT_OUT, event=True)
            self.last += self._write(encode_line(note))

    def _write(self, data: bytes) -> bool:
        """Append whole lines or nothing."""
        try:
            descriptor = self._descriptor if self._descriptor is not None else self._open()
            done = os.write(descriptor, data)
            if done < len(data):  # the disk is full
                os.ftruncate(descriptor, self._lines)
                raise OSError("the disk is full")
        except OSError as error:
            if not self._failed:
                log.error("failed to write a trace", extra={"sandbox": self.place.name, "error": str(error)})
            self._failed = True
            return False
        finally:
            if self._over:  # the end of a command that was killed with its sandbox
                self._release()
        self._failed = False
        self._lines += done
        self._notify()
        return True

    def _notify(self) -> None:
        more, self.more = self.more, asyncio.Event()
        more.set()

    def close(self, *, over: bool = False) -> None:
        """Release the descriptor; a later line opens the file again. `over`: hardly any line follows."""
        self._over = self._over or over
        self._release()
        self._notify()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # -- blobs --------------------------------------------------------------------------------------------------------

    def refusal(self, size: int) -> str | None:
        """Return why a blob of that size is not kept. A quarter of the space is for lines."""
        if self.size + size > self._bounds.size * 3 // 4:
            return LEFT_OUT
        try:
            disk = os.statvfs(self.place)
        except OSError as error:
            return f"it could not be stored: {error.strerror}"
        return DISK_FULL if disk.f_bavail * disk.f_frsize < self._bounds.min_free + size else None

    def put(self, sha256: str, data: bytes) -> str | None:
        """Store a blob in the background. Return why it is not kept, if it is not."""
        if sha256 in self._blobs:
            return None
        if (why := self.refusal(len(data))) is not None:
            return why
        self.adopt(sha256, len(data))
        self.threads.files.submit(_write_blob, self.place / BLOBS, sha256, data)
        return None

    def draft(self) -> BlobDraft:
        """Return a blob that arrives in pieces."""
        return BlobDraft(self, self.place / BLOBS / f"{_NEW}{secrets.token_hex(8)}")

    def adopt(self, sha256: str, size: int) -> None:
        """Count a blob that has its name."""
        if sha256 not in self._blobs:
            self._blobs.add(sha256)
            self._blob_bytes += size


class BlobDraft:
    """A blob that arrives in pieces and gets its name at the end."""

    def __init__(self, store: TraceStore, path: Path) -> None:
        self._store, self._path = store, path
        self._size = 0
        self.left_out: str | None = None

    async def add(self, data: bytes) -> None:
        if self.left_out is not None:
            return
        self.left_out = self._store.refusal(self._size + len(data))
        try:
            if self.left_out is None:
                await asyncio.to_thread(_append, self._path, data)
                self._size += len(data)
            else:
                await asyncio.to_thread(_remove, self._path)
        except OSError as error:
            self.left_out = f"it could not be stored: {error.strerror}"
            await asyncio.to_thread(_remove, self._path)

    async def finish(self, sha256: str) -> str | None:
        """Give the blob its name. Return why it is not kept, if it is not."""
        if self.left_out is None:
            try:
                await asyncio.to_thread(os.rename, self._path, self._path.with_name(sha256))
                self._store.adopt(sha256, self._size)
            except OSError as error:
                self.left_out = f"it could not be stored: {error.strerror}"
        return self.left_out

    async def discard(self) -> None:
        await asyncio.to_thread(_remove, self._path)


def _without_texts(line: TraceStep | TraceEnd) -> TraceStep | TraceEnd:
    if isinstance(line, TraceEnd):
        return replace(line, stdout=None, stderr=None, results=None, inputs={}, error=None, result={}, cwd=None)
    start = replace(line.start, spec={}) if line.start is not None else None
    return replace(line, text="(masked)", params={}, inputs={}, changes=None, start=start)


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _write_blob(directory: Path, sha256: str, data: bytes) -> None:
    """Complete or absent. A reader states that a blob is missing."""
    draft = directory / f"{_NEW}{secrets.token_hex(8)}"
    try:
        _append(draft, data)
        os.rename(draft, directory / sha256)
    except OSError as error:
        log.error("failed to write a blob of a trace", extra={"path": str(directory), "error": str(error)})
        with contextlib.suppress(OSError):
            _remove(draft)


def _last(tail: bytes) -> int:
    """Return the number of the newest step, from the last line that can be read."""
    for data in reversed(tail.split(b"\n")):
        with contextlib.suppress(ValueError):
            line = decode_line(data)
            return line.n if isinstance(line, TraceStep) else line.last
    return 0


# -- reading; in any thread --------------------------------------------------------------------------------------------


def read_start(place: Path) -> TraceStart | None:
    """Return the beginning of a trace, or None."""
    try:
        with open(place / STEPS, "rb") as file:
            line = decode_line(file.readline(MAX_LINE + 1))
    except (OSError, ValueError):
        return None
    return line.start if isinstance(line, TraceStep) else None


def read_lines(place: Path, at: int = 0) -> Iterator[bytes]:
    """Yield pieces of whole lines from the byte `at` on; the last one may be half."""
    with open(place / STEPS, "rb") as file:
        file.seek(at)
        while data := file.read(1 << 20):
            yield data


def read_unended(place: Path, kind: str, last: int) -> dict[str, int]:
    """Return the newest step of each process, of those of this kind with numbers up to `last` that have no end."""
    found: dict[int, str] = {}
    wanted = f'"kind":"{kind}"'.encode()
    with contextlib.suppress(OSError), open(place / STEPS, "rb") as file:
        while data := file.readline(MAX_LINE + 1):
            if wanted not in data and not (found and data.startswith(b'{"of":')):
                continue
            with contextlib.suppress(ValueError):
                line = decode_line(data)
                if isinstance(line, TraceEnd):
                    found.pop(line.of, None)
                elif line.kind == kind and line.process is not None and line.n <= last:
                    found[line.n] = line.process
    return {process: n for n, process in sorted(found.items())}


def read_blob(place: Path, sha256: str) -> bytes | None:
    """Return a blob; None if it is missing or damaged."""
    if not SHA256.fullmatch(sha256):
        return None
    try:
        data = (place / BLOBS / sha256).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def size_of(place: Path) -> int:
    """Return the bytes that a trace takes on disk."""
    total = 0
    with contextlib.suppress(OSError):
        total += (place / STEPS).stat().st_size
        if (place / CASSETTE).exists():
            total += (place / CASSETTE).stat().st_size
        with os.scandir(place / BLOBS) as entries:
            total += sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return total


def remove(place: Path) -> None:
    """Remove a trace: the lines first, without which it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        (place / STEPS).unlink(missing_ok=True)
        shutil.rmtree(place)
