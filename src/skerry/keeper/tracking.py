"""What changed below a directory of a sandbox, as its keeper tells it, and what is in it. Every line is checked."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from skerry.errors import file_failure
from skerry.keeper import frames, messages
from skerry.keeper.channel import MAX_JSON, Channel, decode, encode, failure
from skerry.keeper.connection import Connection
from skerry.keeper.failures import KeeperLied
from skerry.keeper.values import Failure

MOST_ENTRIES: Final = 500_000
MOST_BYTES: Final = (64 << 20) + (2 << 20)  # of all paths and targets; the keeper looks after each batch
_LINE: Final = 1 << 20
_WAITS_S: Final = 25.0
_AT_ONCE: Final = 1000  # paths of one call
_LARGEST: Final = 1 << 30  # of a content, in bytes
_PIECE: Final = 8 << 10  # of a file, on average: many small ones would take more memory than the file
_UPGRADE: Final = "Connection: Upgrade\r\nUpgrade: skerry-frames\r\nContent-Type: application/json\r\n"
_PATH: Final = re.compile(rb"(?!\.{1,2}(?:/|\Z))[^/\0]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[^/\0]{1,255})*")
_DEEPEST: Final = 1025

EntryType = Literal["file", "link", "directory", "other", "gone", "ignored", "git"]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Bytes = Annotated[bytes, Meta(max_length=4096)]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What is at a path, relative to the tracked directory. `other`: nothing that can be read (a socket, a device, a
    mount, a directory too deep). `gone`: nothing is there, also not below. `ignored`: the rules leave it out, with all
    below. `git`: a `.git` below the root. `written`: its content may be another, even if all else is as it was before
    (it was written through a mapping, or within one tick of the clock): it has to be read. Of `gone`, `ignored` and
    `git` ones the numbers mean nothing."""

    path: _Bytes
    type: EntryType
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0
    size: _Count = 0
    inode: Annotated[int, Meta(ge=0)] = 0
    ctime_ns: int = 0
    written: bool = False
    target: _Bytes | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What is at a path when it is read: `entry` is of the very file that was opened. A file has its bytes in `pieces`;
    one over the limit has none, and a `sha256`. `unsteady`: it changed each time while it was read. `error`: why it
    can't be read, in the keeper's words."""

    entry: Entry
    pieces: tuple[bytes, ...] = ()
    sha256: str | None = None
    unsteady: bool = False
    error: str | None = None

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seq: Annotated[int, Meta(ge=1, lt=1 << 53)]
    full: bool
    git: bool


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: _Count


class _Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: Entry
    bytes: bool
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None
    unsteady: bool
    error: Annotated[str, Meta(max_length=1024)] | None


class _Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    again: bool
    unsteady: bool
    error: Annotated[str, Meta(max_length=1024)] | None


class _AllRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: _Count
    error: Failure | None


class _Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tracker: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class _Waited(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    changed: bool


_begun = msgspec.json.Decoder(_Begun)
_waited = msgspec.json.Decoder(_Waited)
_nothing = msgspec.json.Decoder(dict[str, int])
_head = msgspec.json.Decoder(_Head)
_entries = msgspec.json.Decoder(list[Entry])
_end = msgspec.json.Decoder(_End)
_read = msgspec.json.Decoder(_Read)
_ended = msgspec.json.Decoder(_Ended)
_all_read = msgspec.json.Decoder(_AllRead)


def _checked(entry: Entry) -> Entry:
    if not _PATH.fullmatch(entry.path) or entry.path.count(b"/") >= _DEEPEST:
        raise KeeperLied("the keeper told of a path that leads elsewhere")
    if (entry.type == "link") != (entry.target is not None):
        raise KeeperLied("the keeper told of a link that leads nowhere")
    if entry.inode >> 64 or not -(1 << 63) <= entry.ctime_ns < 1 << 63:
        raise KeeperLied("the keeper told of a file with impossible numbers")
    return entry


class Scan:
    """`async for entry in scan`, to its end: only then is it whole, and may `seq` be given to the next one.

    With `full`, what is not among the entries is gone. Else they are what something happened to since, to be taken in
    their order: a `gone` takes all below it along, and of a directory that came, or came back, a `gone` is followed by
    the directory and all that is in it. `git`: refs of the project's own repository changed."""

    def __init__(self, channel: Channel, connection: Connection, head: messages.Head) -> None:
        if head.length is not None:
            raise KeeperLied("the keeper's scan has a length")
        self.seq = 0
        self.full = False
        self.git = False
        self._channel = channel
        self._connection = connection
        self._pieces = connection.body(head)
        self._line = bytearray()
        self._ready: list[Entry] = []
        self._count = 0
        self._bytes = 0
        self._over = False

    async def begin(self) -> None:
        told = decode(_head, await self._next())
        self.seq, self.full, self.git = told.seq, told.full, told.git

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        try:
            while not self._ready:
                if self._over:
                    raise StopAsyncIteration
                await self._take()
            entry = _checked(self._ready.pop())
            self._bytes += len(entry.path) + len(entry.target or b"")
            if self._bytes > MOST_BYTES:
                raise KeeperLied("the keeper told of too many long names")
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
            if not self._ready or self._count > MOST_ENTRIES:
                raise KeeperLied("the keeper told of too much at once, or of nothing")
            return
        if decode(_end, line).count != self._count:
            raise KeeperLied("the keeper told of another number of entries")
        if self._line.strip() or await self._channel.within(anext(self._pieces, None)) is not None:
            raise KeeperLied("the keeper's scan goes on after its end")
        self._over = True
        self._channel.keep(self._connection)

    async def _next(self) -> bytes:
        """The next line; while it works, the keeper sends a blank now and then. An error is the last."""
        while True:
            while (end := self._line.find(b"\n")) < 0:
                if len(self._line) > _LINE:
                    raise KeeperLied("the keeper sent a line without end")
                piece = await self._channel.within(anext(self._pieces, None))
                if piece is None:
                    if self._line.strip().startswith(b'{"error":'):
                        raise failure(bytes(self._line))
                    raise KeeperLied("the keeper's scan ended too early")
                self._line += piece
            line = bytes(self._line[:end]).strip()
            del self._line[: end + 1]
            if line:
                return line

    async def aclose(self) -> None:
        if not self._over:
            self._connection.close()


class Tracking:
    """One directory of a sandbox can be tracked."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._large = _LARGEST

    async def begin(
        self, root: str, ignore: Sequence[tuple[str, Sequence[str]]], tracked: Sequence[str], large: int
    ) -> str:
        """Tracks a directory; returns the tracker's name. What was tracked before is no longer. `ignore`: lines of
        gitignore files under the directory that they count in, the weaker first; `tracked`: what counts in spite of
        them; files over `large` bytes are told by their hash."""
        body = {
            "root": os.fsencode(root),
            "ignore": [
                {"base": os.fsencode(base), "lines": [os.fsencode(one) for one in lines]} for base, lines in ignore
            ],
            "tracked": [os.fsencode(path) for path in tracked],
            "large": large,
        }
        self._large = min(large, _LARGEST)
        return (await self._channel.call(_begun, "PUT", "/v1/track", body=body)).tracker

    async def end(self, tracker: str) -> None:
        await self._channel.call(_nothing, "DELETE", "/v1/track", {"tracker": tracker})

    async def scan(self, tracker: str, since: int) -> Scan:
        """What happened after `since`, which is a scan's `seq`, or 0: then all that is there."""
        query = {"tracker": tracker, "since": str(since)}
        connection = await self._channel.within(self._channel.open())
        try:
            await self._channel.within(connection.send(messages.request("GET", "/v1/track/scan", query)))
            head = await self._channel.within(connection.head())
            if head.status == 200:
                scan = Scan(self._channel, connection, head)
                await scan.begin()
                if scan.seq < since and not scan.full:
                    raise KeeperLied("the keeper went back in time")
                return scan
            text = await self._channel.within(connection.whole(head, MAX_JSON))
        except BaseException:
            connection.close()
            raise
        self._channel.keep(connection)
        raise failure(text)

    async def wait(self, tracker: str, since: int, quiet_ms: int, most_ms: int) -> bool:
        """Until something happened after `since` and nothing more did for `quiet_ms`, or until `most_ms` after the
        first of it; False: nothing did for 25 s, or somebody else began to wait."""
        query = {"tracker": tracker, "since": str(since), "quiet_ms": str(quiet_ms), "most_ms": str(most_ms)}
        return (await self._channel.call(_waited, "GET", "/v1/track/wait", query, takes_s=_WAITS_S)).changed

    async def read(self, tracker: str, paths: Sequence[bytes]) -> AsyncGenerator[Content, None]:
        """What is at each path, in their order."""
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

    async def _reading(self, tracker: str, paths: Sequence[bytes]) -> _Reading:
        body = encode({"tracker": tracker, "paths": list(paths)})
        async with self._channel.exchange() as connection:
            await connection.send(messages.request("POST", "/v1/track/read", headers=_UPGRADE, body=body))
            head = await connection.head()
            text = b"" if head.status == 101 else await connection.whole(head, MAX_JSON)
        if head.status == 101:
            return _Reading(self._channel, connection, self._large)
        self._channel.keep(connection)
        if head.status < 400:
            raise KeeperLied(f"the keeper answered a read with {head.status}")
        raise failure(text)


class _Reading:
    def __init__(self, channel: Channel, connection: Connection, large: int) -> None:
        self._channel = channel
        self._connection = connection
        self._large = large

    async def content(self, path: bytes) -> Content:
        tries = 0
        while True:
            told = decode(_read, await self._of(frames.STARTED))
            entry = _checked(told.entry)
            tries += 1
            if entry.path != path or entry.type in ("ignored", "git") or tries > 3:
                raise KeeperLied("the keeper read another file than it was asked for")
            if not told.bytes:
                if entry.type == "file" and told.error is None and told.sha256 is None:
                    raise KeeperLied("the keeper left a file's content out")
                return Content(entry=entry, sha256=told.sha256, unsteady=told.unsteady, error=told.error)
            if entry.type != "file" or entry.size > self._large or told.sha256 is not None:
                raise KeeperLied("the keeper sends a content where none belongs")
            pieces, ended = await self._pieces(entry.size)
            if not ended.again:
                whole = sum(map(len, pieces)) == entry.size
                if not whole and not ended.unsteady and ended.error is None:
                    raise KeeperLied("the keeper cut a file short")
                return Content(entry=entry, pieces=pieces, unsteady=ended.unsteady, error=ended.error)

    async def _pieces(self, size: int) -> tuple[tuple[bytes, ...], _Ended]:
        pieces: list[bytes] = []
        most = 16 + size // _PIECE
        while True:
            kind, payload = await self._frame()
            if kind == frames.PAUSE:
                return tuple(pieces), decode(_ended, payload)
            size -= len(payload)
            if kind != frames.STDOUT or size < 0 or len(pieces) == most:
                raise KeeperLied("the keeper sent more than there is of a file")
            pieces.append(payload)

    async def end(self, count: int) -> None:
        told = decode(_all_read, await self._of(frames.EXIT))
        if told.count != count and told.error is None:
            raise KeeperLied("the keeper read another number of files")
        self._channel.keep(self._connection)

    async def _of(self, wanted: int) -> bytes:
        kind, payload = await self._frame()
        while kind == frames.STARTED and payload == b"{}":  # it is still at work
            kind, payload = await self._frame()
        if kind == frames.EXIT and wanted != kind:
            said: Any = decode(_all_read, payload).error
            if said is not None:
                raise file_failure(said.errno, said.path or "", said.message)
        if kind != wanted:
            raise KeeperLied(f"the keeper sent a frame of type {kind} in a read")
        return payload

    async def _frame(self) -> tuple[int, bytes]:
        while (frame := frames.decode(self._connection.buffer)) is None:
            await self._channel.within(self._connection.more())
        return frame

    def close(self) -> None:
        self._connection.close()
