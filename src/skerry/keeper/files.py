"""Files in a sandbox, through its keeper. The keeper acts with the permissions of a user of the sandbox, so denials
come from the kernel."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final

import msgspec

from skerry.errors import InvalidRequest
from skerry.keeper import http1
from skerry.keeper.archive import ArchiveStream, TransferSummary
from skerry.keeper.connection import KeeperConnection
from skerry.keeper.errors import KeeperProtocolError, KeeperTimeout
from skerry.keeper.transport import MAX_JSON, UPGRADE, Transport, failure
from skerry.keeper.values import (
    FileChecksum,
    FileEntry,
    FileListing,
    MatchingLines,
    PatchedEntries,
    Replacement,
    TextLines,
)
from skerry.keeper.watch import ChangeStream, watch_error
from skerry.types import (
    Entries,
    FileInfo,
    FileLines,
    PatchedFile,
    PatchResult,
    ReplaceResult,
    SearchMatch,
    SearchRequest,
    SearchResult,
    TransferResult,
    decode_path,
    encode_path,
)

MAX_LISTING: Final = 32 << 20
MAX_DEPTH: Final = 1 << 20
MAX_ENTRIES: Final = 100_000
MAX_CHANGED: Final = 10_000
MAX_LINES: Final = 16 << 20  # 1 MiB of text with every byte escaped, and once more as bytes
MAX_MATCHES: Final = 64 << 20
MAX_PATCHED: Final = 16 << 20

_checksum = msgspec.json.Decoder(FileChecksum)
_file = msgspec.json.Decoder(FileEntry)
_lines = msgspec.json.Decoder(TextLines)
_listing = msgspec.json.Decoder(FileListing)
_no_result = msgspec.json.Decoder(dict[str, int])
_patched = msgspec.json.Decoder(PatchedEntries)
_replaced = msgspec.json.Decoder(Replacement)
_search = msgspec.json.Decoder(MatchingLines)
_unpacked = msgspec.json.Decoder(TransferSummary)


class FileContent:
    """`async for piece in content`. `size` is the size of the whole file; a part may be shorter than requested, never
    longer. `beyond`: the range starts after the end. A file that reports size 0 is read to its end: files in /proc
    report 0."""

    def __init__(self, transport: Transport, connection: KeeperConnection, head: http1.Head, limit: int | None) -> None:
        self.size = head.total
        self.part = head.status == 206
        self.beyond = head.status == 416
        self._transport = transport
        self._connection = connection
        self._pieces = connection.body(head)
        self._left = 0 if self.beyond else limit

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout(self._transport.timeout):
                piece = await anext(self._pieces)
        except TimeoutError:
            self._connection.close()
            raise KeeperTimeout("the keeper stopped in the middle of a file") from None
        except StopAsyncIteration:
            self._transport.release(self._connection)
            raise
        except BaseException:
            self._connection.close()
            raise
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                self._connection.close()
                raise KeeperProtocolError("the keeper sent more of a file than was requested")
        return piece

    async def read(self, limit: int) -> bytes:
        """Return the whole content. Raise `InvalidRequest` if it is larger than the limit."""
        parts = bytearray()
        async for piece in self:
            parts += piece
            if len(parts) > limit:
                await self.aclose()
                raise InvalidRequest(f"the file is larger than {limit} bytes")
        return bytes(parts)

    async def aclose(self) -> None:
        self._connection.close()


class Files:
    """`keeper.files`.

    `user` None means the configured user. Relative paths start at the configured cwd. Links are not followed unless a
    method says so. An edit is applied completely or not at all, and never over a concurrent write."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # -- content

    async def read(
        self, path: str, start: int | None = None, end: int | None = None, user: str | None = None
    ) -> FileContent:
        """Open a regular file's content from `start` up to, not including, `end`."""
        headers, limit = _range(start, end)
        async with self._transport.exchange() as connection:
            await connection.send(http1.request("GET", "/v1/files", _query(path, user), headers=headers))
            head = await connection.head()
            if head.status in (200, 206, 416):
                return FileContent(self._transport, connection, head, limit if head.status == 206 else None)
            text = await connection.whole(head, MAX_JSON)
        self._transport.release(connection)
        raise failure(text)

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        mode: int | None = None,
        user: str | None = None,
        parents: bool = False,
        owner: str | None = None,
        size: int | None = None,
        attributes: dict[str, str] | None = None,
    ) -> FileInfo:
        """Replace a file atomically. An existing file keeps its owner and mode unless others are given. `attributes`:
        the extended attributes of the new file; it has no others."""
        given = msgspec.json.encode(attributes).decode() if attributes else None
        query = _query(path, user, mode=_octal(mode), parents=parents, owner=owner, attributes=given)
        return _info(await self._transport.upload(_file, "/v1/files", query, content, size), path)

    async def append(
        self, path: str, content: bytes | AsyncIterable[bytes], user: str | None = None, *, parents: bool = False
    ) -> FileInfo:
        """Append to a file as the content arrives. Create the file if it does not exist."""
        query = _query(path, user, append=True, parents=parents)
        return _info(await self._transport.upload(_file, "/v1/files", query, content), path)

    async def checksum(self, path: str, algorithm: str, user: str | None = None) -> str:
        query = _query(path, user, algorithm=algorithm)
        return (await self._transport.call_slow(_checksum, "GET", "/v1/files/checksum", query)).checksum

    async def lines(self, path: str, start: int, end: int | None, user: str | None = None) -> FileLines:
        """Return lines `start` to `end`, as many as fit into a response."""
        query = _query(path, user, start=start, end=end)
        found = await self._transport.call_slow(_lines, "GET", "/v1/files/lines", query, limit=MAX_LINES)
        return FileLines(
            lines=found.text.split("\n") if found.count else [],
            start=found.start,
            end=found.start + found.count - 1,
            more=found.more,
            cut=found.cut,
            raw=found.raw,
        )

    async def replace(
        self, path: str, old: bytes, new: bytes, count: int | None, user: str | None = None
    ) -> ReplaceResult:
        """Replace `old` by `new`. `old` must occur `count` times; None: at least once."""
        query = _query(path, user, split=len(old), count=count)
        done = await self._transport.call_slow(_replaced, "POST", "/v1/files/replace", query, body=old + new)
        return ReplaceResult(count=done.count, lines=done.lines)

    async def patch(self, path: str, diff: bytes, user: str | None = None) -> PatchResult:
        """Apply a unified diff to a file, or to the files that it names below a directory."""
        query = _query(path, user)
        done = await self._transport.call_slow(_patched, "POST", "/v1/files/patch", query, body=diff, limit=MAX_PATCHED)
        files = []
        for one in done.files:
            shown, raw = encode_path(_join(path, one.below) if one.below else path)
            files.append(
                PatchedFile(
                    path=shown,
                    action=one.action,
                    added=one.added,
                    removed=one.removed,
                    offsets=one.offsets,
                    raw_path=raw,
                )
            )
        return PatchResult(files=files)

    # -- entries

    async def stat(self, path: str, user: str | None = None, *, follow: bool = False) -> FileInfo:
        query = _query(path, user, follow=follow)
        return _info(await self._transport.call(_file, "GET", "/v1/files/stat", query), path)

    async def list(self, path: str, user: str | None = None, *, depth: int = 1, hidden: bool = True) -> Entries:
        """List the entries below a directory by name, a directory before its entries."""
        return await self._entries(path, "/v1/files/list", _query(path, user, depth=depth, hidden=hidden))

    async def attributes(self, path: str, user: str | None = None, depth: int = 0) -> dict[str, dict[str, str]]:
        """Return the extended attributes of a path, or of the entries below it, by path."""
        if depth == 0:
            query = _query(path, user, attributes=True)
            found = await self._transport.call(_file, "GET", "/v1/files/stat", query)
            return {path: found.attributes} if found.attributes else {}
        query = _query(path, user, depth=depth, hidden=True, attributes=True)
        listing = await self._transport.call_slow(_listing, "GET", "/v1/files/list", query, limit=MAX_LISTING)
        return {_join(path, entry.below): entry.attributes for entry in listing.entries if entry.attributes}

    async def glob(
        self, pattern: str, path: str, user: str | None = None, *, hidden: bool = False, limit: int = MAX_ENTRIES
    ) -> Entries:
        """List the entries below a directory that match a pattern; an absolute pattern starts at the root."""
        if pattern.startswith("/"):
            path, pattern = "/", pattern.lstrip("/")
        query = _query(path, user, depth=MAX_DEPTH, hidden=hidden, glob=pattern, limit=limit)
        return await self._entries(path, "/v1/files/list", query)

    async def changed(self, path: str, since: int, user: str | None = None, limit: int = MAX_CHANGED) -> Entries:
        """List regular files below a directory that changed at `since` (ns) or later, by the clock of the exchange that
        started then. Directories that only tools write to are skipped; `more`: the list is incomplete."""
        found = await self._entries(path, "/v1/files/changed", _query(path, user, since=since, limit=limit))
        if len(found.entries) > limit or any(entry.type != "file" for entry in found.entries):
            raise KeeperProtocolError("the keeper listed more files than were requested")
        return found

    async def _entries(self, path: str, route: str, query: dict[str, str]) -> Entries:
        found = await self._transport.call_slow(_listing, "GET", route, query, limit=MAX_LISTING)
        entries = [_info(entry, _join(path, entry.below)) for entry in found.entries]
        return Entries(entries=entries, more=found.more, skipped=found.skipped)

    async def search(self, request: SearchRequest) -> SearchResult:
        query = _query(
            request.path,
            request.user,
            pattern=request.pattern,
            glob=request.glob,
            context=request.context,
            limit=request.limit,
            ignore_case=request.ignore_case,
            literal=request.literal,
            hidden=request.hidden,
        )
        found = await self._transport.call_slow(_search, "GET", "/v1/files/search", query, limit=MAX_MATCHES)
        matches = []
        for one in found.matches:
            path, raw = encode_path(_join(request.path, one.below) if one.below else request.path)
            matches.append(
                SearchMatch(
                    path=path,
                    line=one.line,
                    text=one.text,
                    cut=one.cut,
                    before=one.before,
                    after=one.after,
                    raw_path=raw,
                )
            )
        return SearchResult(matches=matches, more=found.more, searched=found.searched, skipped=found.skipped)

    async def mkdir(
        self, path: str, parents: bool = False, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        query = _query(path, user, parents=parents, mode=_octal(mode))
        return _info(await self._transport.call(_file, "POST", "/v1/files/mkdir", query), path)

    async def remove(self, path: str, recursive: bool = False, user: str | None = None) -> None:
        await self._transport.call_slow(_no_result, "DELETE", "/v1/files", _query(path, user, recursive=recursive))

    async def move(
        self, path: str, to: str, user: str | None = None, *, overwrite: bool = False, parents: bool = False
    ) -> FileInfo:
        """Rename; across file systems, copy and remove."""
        query = _query(path, user, to=to, overwrite=overwrite, parents=parents)
        return _info(await self._transport.call_slow(_file, "POST", "/v1/files/move", query), to)

    async def copy(
        self,
        path: str,
        to: str,
        user: str | None = None,
        *,
        recursive: bool = False,
        overwrite: bool = False,
        parents: bool = False,
    ) -> FileInfo:
        """Copy a file, or a directory with its content; completely or not at all."""
        query = _query(path, user, to=to, recursive=recursive, overwrite=overwrite, parents=parents)
        return _info(await self._transport.call_slow(_file, "POST", "/v1/files/copy", query), to)

    async def chmod(self, path: str, mode: int, user: str | None = None, *, recursive: bool = False) -> None:
        query = _query(path, user, mode=_octal(mode), recursive=recursive)
        await self._transport.call_slow(_no_result, "POST", "/v1/files/chmod", query)

    async def chown(self, path: str, owner: str, user: str | None = None, *, recursive: bool = False) -> None:
        """Change the owner: "user", "user:group" or ":group", names or numbers."""
        query = _query(path, user, owner=owner, recursive=recursive)
        await self._transport.call_slow(_no_result, "POST", "/v1/files/chown", query)

    async def link(self, target: str, path: str, user: str | None = None, *, hard: bool = False) -> FileInfo:
        query = _query(path, user, to=target, hard=hard)
        return _info(await self._transport.call(_file, "POST", "/v1/files/link", query), path)

    # -- directories

    async def pack(self, path: str, exclude: Sequence[str] = (), user: str | None = None) -> ArchiveStream:
        """Pack a directory into an archive, without the entries that match `exclude`."""
        query = [("path", path), *(("exclude", one) for one in exclude)]
        if user is not None:
            query.append(("user", user))
        async with self._transport.exchange() as connection:
            await connection.send(http1.request("GET", "/v1/files/tree", query, headers=UPGRADE))
            head = await connection.head()
            if head.status == 101:
                archive = ArchiveStream(self._transport, connection)
                await archive.read_header()
                return archive
            text = await connection.whole(head, MAX_JSON)
        self._transport.release(connection)
        if head.status < 400:
            raise KeeperProtocolError(f"the keeper answered an archive request with {head.status}")
        raise failure(text)

    async def unpack(self, path: str, archive: AsyncIterable[bytes], user: str | None = None) -> TransferResult:
        """Unpack an archive below a directory. Create the directory if it does not exist."""
        query = {"path": path} if user is None else {"path": path, "user": user}
        return (await self._transport.upload(_unpacked, "/v1/files/tree", query, archive)).result()

    async def watch(
        self,
        path: str,
        *,
        recursive: bool = True,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        since: str | None = None,
        user: str | None = None,
    ) -> ChangeStream:
        """Stream changes below a directory, from now on or from a token on."""
        query = [("path", path), ("recursive", "1" if recursive else "0")]
        query += [("include", one) for one in include] + [("exclude", one) for one in exclude]
        query += [(name, value) for name, value in (("since", since), ("user", user)) if value is not None]
        async with self._transport.exchange() as connection:
            await connection.send(http1.request("GET", "/v1/files/watch", query))
            head = await connection.head()
            text = await connection.whole(head, MAX_JSON) if head.status != 200 else b""
        if head.status != 200:
            self._transport.release(connection)
            raise watch_error(text)
        try:
            changes = ChangeStream(connection, head, path)
            await changes.read_header(self._transport)
        except BaseException:
            connection.close()
            raise
        return changes


def _range(start: int | None, end: int | None) -> tuple[str, int | None]:
    if start is None and end is None:
        return "", None
    first = start or 0
    if first < 0 or (end is not None and end <= first):
        raise InvalidRequest(f"the range from {start} to {end} is empty or negative")
    if end is None:
        return f"Range: bytes={first}-\r\n", None
    return f"Range: bytes={first}-{end - 1}\r\n", end - first


def _query(path: str, user: str | None, **more: str | int | bool | None) -> dict[str, str]:
    """Return the arguments of a call as the keeper parses them; False and None are left out."""
    given = {name: value for name, value in {**more, "user": user}.items() if value is not None and value is not False}
    return {"path": path} | {name: "1" if value is True else str(value) for name, value in given.items()}


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


def _join(above: str, below: str) -> str:
    return below if above == "." else posixpath.join(above, below)


def _info(file: FileEntry, path: str) -> FileInfo:
    """Combine the keeper's description of an entry with its path, which the host knows."""
    shown, raw_path = encode_path(path)
    target, raw_target = (None, None) if file.target is None else encode_path(decode_path(file.target, file.raw_target))
    return FileInfo(
        name=encode_path(path.rstrip("/").rpartition("/")[2])[0] or "/",
        path=shown,
        type=file.type,
        size=file.size,
        mode=file.mode,
        uid=file.uid,
        gid=file.gid,
        mtime=file.mtime,
        target=target,
        raw_path=raw_path,
        raw_target=raw_target,
    )
