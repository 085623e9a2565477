"""Changes and content of a tracked directory, as the keeper reports them. Every line is checked."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from skerry.codecs.frames import take
from skerry.errors import file_error
from skerry.keeper import frames, http1
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError
from skerry.keeper.lines import LineReader
from skerry.keeper.transport import JSON, MAX_JSON, UPGRADE, Transport, decode, encode, failure
from skerry.keeper.values import ErrorDetail

MAX_ENTRIES: Final = 500_000
MAX_BYTES: Final = (64 << 20) + (2 << 20)  # of all paths and targets; the keeper checks after each batch
_WAIT_S: Final = 25.0
_AT_ONCE: Final = 1000  # paths per call
_MAX_CONTENT: Final = 1 << 30  # bytes of one file
_PIECE: Final = 8 << 10  # smallest average piece: many tiny pieces would take more memory than the file
_PATH: Final = re.compile(rb"(?!\.{1,2}(?:/|\Z))[^/\0]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[^/\0]{1,255})*")
_MAX_DEPTH: Final = 1025

EntryType = Literal["file", "link", "directory", "other", "gone", "ignored", "git"]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Bytes = Annotated[bytes, Meta(max_length=4096)]


class TrackedEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The entry at a path relative to the tracked directory.

    `other`: not readable (a socket, a device, a mount, a directory too deep). `gone`: the path does not exist, nor does
    any path below it. `ignored`: excluded by the rules, with everything below. `git`: a `.git` below the root.
    `written`: the content may differ although all other fields are unchanged (it was written through a mapping, or
    within one tick of the clock) and must be read. The numbers of `gone`, `ignored` and `git` entries have no meaning.
    """

    path: _Bytes
    type: EntryType
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0
    size: _Count = 0
    inode: Annotated[int, Meta(ge=0)] = 0
    ctime_ns: int = 0
    written: bool = False
    target: _Bytes | None = None


class TrackedContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content at a path. `entry` describes the file that was opened. `pieces` has the bytes of a file; a file over
    the limit has a `sha256` instead. `unsteady`: the file changed during every attempt to read it. `error`: the
    keeper's reason why it cannot be read."""

    entry: TrackedEntry
    pieces: tuple[bytes, ...] = ()
    sha256: str | None = None
    unsteady: bool = False
    error: str | None = None

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


class _ScanHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: Annotated[int, Meta(ge=1, lt=1 << 53)]
    full: bool
    git: bool


class _ScanEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: _Count


class _ReadHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: TrackedEntry
    bytes: bool
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None
    unsteady: bool
    error: Annotated[str, Meta(max_length=1024)] | None


class _ReadEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    again: bool
    unsteady: bool
    error: Annotated[str, Meta(max_length=1024)] | None


class _ReadSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: _Count
    error: ErrorDetail | None


class _TrackerStarted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tracker: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class _WaitResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    changed: bool


_begun = msgspec.json.Decoder(_TrackerStarted)
_waited = msgspec.json.Decoder(_WaitResult)
_no_result = msgspec.json.Decoder(dict[str, int])
_head = msgspec.json.Decoder(_ScanHead)
_entries = msgspec.json.Decoder(list[TrackedEntry])
_end = msgspec.json.Decoder(_ScanEnd)
_read = msgspec.json.Decoder(_ReadHead)
_ended = msgspec.json.Decoder(_ReadEnd)
_all_read = msgspec.json.Decoder(_ReadSummary)


def _checked(entry: TrackedEntry) -> TrackedEntry:
    if not _PATH.fullmatch(entry.path) or entry.path.count(b"/") >= _MAX_DEPTH:
        raise KeeperProtocolError("the keeper reported a path outside the tracked directory")
    if (entry.type == "link") != (entry.target is not None):
        raise KeeperProtocolError("the keeper reported a link without a target")
    if entry.inode >> 64 or not -(1 << 63) <= entry.ctime_ns < 1 << 63:
        raise KeeperProtocolError("the keeper reported a file with impossible numbers")
    return entry


class TrackerScan:
    """`async for entry in scan`. The scan is complete only at its end; then `seq` may be passed to the next scan.

    With `full`, a path that is not among the entries is gone. Otherwise the entries are the changes in order: `gone`
    includes everything below it, and for a new or restored directory `gone` is followed by the directory and its
    content. `git`: refs of the project's own repository changed."""

    def __init__(self, transport: Transport, connection: KeeperConnection, head: http1.Head) -> None:
        if head.length is not None:
            raise KeeperProtocolError("the keeper's scan has a length")
        self.seq = 0
        self.full = False
        self.git = False
        self._transport = transport
        self._connection = connection
        self._lines = LineReader(connection.body(head), blank=False)  # the keeper sends blanks while it scans
        self._ready: list[TrackedEntry] = []
        self._count = 0
        self._bytes = 0
        self._over = False

    async def read_header(self) -> None:
        head = decode(_head, await self._next())
        self.seq, self.full, self.git = head.seq, head.full, head.git

    def __aiter__(self) -> AsyncIterator[TrackedEntry]:
        return self

    async def __anext__(self) -> TrackedEntry:
        try:
            while not self._ready:
                if self._over:
                    raise StopAsyncIteration
                await self._take()
            entry = _checked(self._ready.pop())
            self._bytes += len(entry.path) + len(entry.target or b"")
            if self._bytes > MAX_BYTES:
                raise KeeperProtocolError("the keeper reported too many long names")
            return entry
        except StopAsyncIteration:
            raise
        except BaseException:
            self._connection.close()
            raise

    async def _take(self) -> None:
        line = await self._next()
        if line.startswith(b"["):
            self._ready = decode(_entries, line)
            self._ready.reverse()
            self._count += len(self._ready)
            if not self._ready or self._count > MAX_ENTRIES:
                raise KeeperProtocolError("the keeper reported too many entries, or an empty batch")
            return
        if decode(_end, line).count != self._count:
            raise KeeperProtocolError("the keeper reported a wrong number of entries")
        if not await self._lines.finished(self._transport.in_time):
            raise KeeperProtocolError("the keeper's scan continues after its end")
        self._over = True
        self._transport.release(self._connection)

    async def _next(self) -> bytes:
        """Return the next line. While the keeper works, it sends a blank now and then. An error is the last line."""
        line = await self._lines.next(self._transport.in_time)
        if line is not None:
            return line.strip()  # after the blanks
        if self._lines.rest.strip().startswith(b'{"error":'):
            raise failure(self._lines.rest)
        raise KeeperProtocolError("the keeper's scan ended too early")

    async def aclose(self) -> None:
        if not self._over:
            self._connection.close()


class Tracker:
    """Track one directory of a sandbox."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._large = _MAX_CONTENT

    async def start(
        self, root: str, ignore: Sequence[tuple[str, Sequence[str]]], tracked: Sequence[str], large: int
    ) -> str:
        """Track a directory and return the tracker's name. An earlier tracker ends. `ignore`: lines of gitignore files
        by the directory that they apply to, the weaker first; `tracked`: paths that count in spite of them; files over
        `large` bytes are reported by their hash."""
        body = {
            "root": os.fsencode(root),
            "ignore": [
                {"base": os.fsencode(base), "lines": [os.fsencode(one) for one in lines]} for base, lines in ignore
            ],
            "tracked": [os.fsencode(path) for path in tracked],
            "large": large,
        }
        self._large = min(large, _MAX_CONTENT)
        return (await self._transport.call(_begun, "PUT", "/v1/track", body=body)).tracker

    async def end(self, tracker: str) -> None:
        await self._transport.call(_no_result, "DELETE", "/v1/track", {"tracker": tracker})

    async def scan(self, tracker: str, since: int) -> TrackerScan:
        """Scan the changes after `since`, the `seq` of an earlier scan, or all entries if it is 0."""
        query = {"tracker": tracker, "since": str(since)}
        connection = await self._transport.in_time(self._transport.acquire())
        try:
            await self._transport.in_time(connection.send(http1.request("GET", "/v1/track/scan", query)))
            head = await self._transport.in_time(connection.head())
            if head.status == 200:
                scan = TrackerScan(self._transport, connection, head)
                await scan.read_header()
                if scan.seq < since and not scan.full:
                    raise KeeperProtocolError("the keeper reported an earlier position than requested")
                return scan
            text = await self._transport.in_time(connection.whole(head, MAX_JSON))
        except BaseException:
            connection.close()
            raise
        self._transport.release(connection)
        raise failure(text)

    async def wait(self, tracker: str, since: int, quiet_ms: int, most_ms: int) -> bool:
        """Wait for a change after `since` and then until `quiet_ms` pass without another, at most `most_ms` after the
        first. Return False if nothing changed for 25 s, or another call began to wait."""
        query = {"tracker": tracker, "since": str(since), "quiet_ms": str(quiet_ms), "max_ms": str(most_ms)}
        return (await self._transport.call(_waited, "GET", "/v1/track/wait", query, takes_s=_WAIT_S)).changed

    async def read(self, tracker: str, paths: Sequence[bytes]) -> AsyncGenerator[TrackedContent, None]:
        """Yield the content at each path, in order."""
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            reading = await self._reading(tracker, some)
            try:
                for path in some:
                    yield await reading.content(path)
                await reading.end(len(some))
            except BaseException:
                reading.close()
                raise

    async def _reading(self, tracker: str, paths: Sequence[bytes]) -> _ContentReader:
        body = encode({"tracker": tracker, "paths": list(paths)})
        async with self._transport.exchange() as connection:
            await connection.send(http1.request("POST", "/v1/track/read", headers=UPGRADE + JSON, body=body))
            head = await connection.head()
            text = b"" if head.status == 101 else await connection.whole(head, MAX_JSON)
        if head.status == 101:
            return _ContentReader(self._transport, connection, self._large)
        self._transport.release(connection)
        if head.status < 400:
            raise KeeperProtocolError(f"the keeper answered a read request with {head.status}")
        raise failure(text)


class _ContentReader:
    def __init__(self, transport: Transport, connection: KeeperConnection, large: int) -> None:
        self._transport = transport
        self._connection = connection
        self._large = large

    async def content(self, path: bytes) -> TrackedContent:
        tries = 0
        while True:
            found = decode(_read, await self._of(frames.STARTED))
            entry = _checked(found.entry)
            tries += 1
            if entry.path != path or entry.type in ("ignored", "git") or tries > 3:
                raise KeeperProtocolError("the keeper read another file than requested")
            if not found.bytes:
                if entry.type == "file" and found.error is None and found.sha256 is None:
                    raise KeeperProtocolError("the keeper omitted the content of a file")
                return TrackedContent(entry=entry, sha256=found.sha256, unsteady=found.unsteady, error=found.error)
            if entry.type != "file" or entry.size > self._large or found.sha256 is not None:
                raise KeeperProtocolError("the keeper sent unexpected content")
            pieces, ended = await self._pieces(entry.size)
            if not ended.again:
                whole = sum(map(len, pieces)) == entry.size
                if not whole and not ended.unsteady and ended.error is None:
                    raise KeeperProtocolError("the keeper truncated a file")
                return TrackedContent(entry=entry, pieces=pieces, unsteady=ended.unsteady, error=ended.error)

    async def _pieces(self, size: int) -> tuple[tuple[bytes, ...], _ReadEnd]:
        pieces: list[bytes] = []
        most = 16 + size // _PIECE
        while True:
            kind, payload = await self._frame()
            if kind == frames.PAUSE:
                return tuple(pieces), decode(_ended, payload)
            size -= len(payload)
            if kind != frames.STDOUT or size < 0 or len(pieces) == most:
                raise KeeperProtocolError("the keeper sent more bytes than the file has")
            pieces.append(payload)

    async def end(self, count: int) -> None:
        found = decode(_all_read, await self._of(frames.EXIT))
        if found.count != count and found.error is None:
            raise KeeperProtocolError("the keeper read a wrong number of files")
        self._transport.release(self._connection)

    async def _of(self, wanted: int) -> bytes:
        kind, payload = await self._frame()
        while kind == frames.STARTED and payload == b"{}":  # the keeper is still working
            kind, payload = await self._frame()
        if kind == frames.EXIT and wanted != kind:
            error = decode(_all_read, payload).error
            if error is not None:
                raise file_error(error.errno, error.path or "", error.message)
        if kind != wanted:
            raise KeeperProtocolError(f"the keeper sent a frame of type {kind} in a read")
        return payload

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := take(self._connection.buffer, frames.RUN)) is None:
            await self._transport.in_time(self._connection.more())
        return frame

    def close(self) -> None:
        self._connection.close()
