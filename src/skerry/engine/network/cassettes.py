"""The cassettes of sandboxes: one file each, which the worker writes while it records and reads while it replays.

The worker parses hostile bytes, so that a cassette is checked whenever it is read here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from skerry.codecs import cassette as codec
from skerry.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from skerry.types import CassetteInfo, readable_size

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class CassetteStore:
    """`host.cassettes`. `directory` is created with mode 0700 together with the first file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, sandbox_id: str) -> int:
        """Return a descriptor of the sandbox's cassette, which is created if needed. The caller closes it."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._directory / sandbox_id, _FLAGS, 0o600)

    def export(self, sandbox_id: str) -> Iterator[bytes]:
        """Yield the complete exchanges of the sandbox's cassette. Raise NotFound if it has none, Conflict if the file
        is damaged."""
        with _opened(self._directory / sandbox_id, sandbox_id) as (read, journal):
            yield from codec.export(read, journal)

    def info(self, sandbox_id: str) -> CassetteInfo:
        """Describe the sandbox's cassette. Raise as `export` does."""
        with _opened(self._directory / sandbox_id, sandbox_id) as (_, journal):
            return _describe(journal)

    async def receive(self, sandbox_id: str, body: AsyncIterator[bytes]) -> CassetteDraft:
        """Store a cassette beside the sandbox's own and check it. Raise InvalidRequest if it is not one."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        draft = CassetteDraft(
            self._directory / f"{sandbox_id}.{secrets.token_hex(4)}.new", self._directory / sandbox_id
        )
        try:
            await draft.fill(body)
        except BaseException:
            draft.discard()
            raise
        return draft

    def keep(self, sandbox_id: str, path: Path) -> None:
        """Keep the cassette under another name of the same file system, for example after the sandbox's deletion."""
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.link(self._directory / sandbox_id, path)

    def content(self, sandbox_id: str, kept: Path) -> bytes | None:
        """Return the sandbox's cassette as `export` does, or the `kept` one; None if neither exists or can be read."""
        for path in (self._directory / sandbox_id, kept):
            with contextlib.suppress(NotFound, Conflict), _opened(path, sandbox_id) as (read, journal):
                return b"".join(codec.export(read, journal))
        return None

    def copy(self, source: str, sandbox_id: str) -> None:
        """Give a fork a copy, with the marks of used exchanges: it continues where its source is."""
        draft = self._directory / f"{sandbox_id}.new"
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._directory / source, draft, follow_symlinks=False)
            os.rename(draft, self._directory / sandbox_id)

    def remove(self, sandbox_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._directory / sandbox_id)

    def sweep(self, known: Iterable[str]) -> None:
        """Remove the cassettes of deleted sandboxes, and half-written files."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._directory)) - set(known):
                self.remove(name)


class CassetteDraft:
    """A received cassette. `commit` makes it the sandbox's; otherwise `discard` it."""

    def __init__(self, draft: Path, path: Path) -> None:
        self._draft, self._path = draft, path
        self.info = CassetteInfo()

    async def fill(self, body: AsyncIterator[bytes]) -> None:
        fd = os.open(self._draft, _FLAGS | os.O_TRUNC, 0o600)
        try:
            size = 0
            async for piece in body:
                size += len(piece)
                if size > codec.MAX_SIZE:
                    raise QuotaExceeded(f"the cassette is larger than {readable_size(codec.MAX_SIZE)}")
                os.write(fd, piece)
            self.info = await asyncio.to_thread(_checked, fd, size)
        finally:
            os.close(fd)

    def commit(self) -> None:
        os.rename(self._draft, self._path)

    def discard(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._draft)


@contextlib.contextmanager
def _opened(path: Path, sandbox_id: str) -> Iterator[tuple[codec.Read, codec.CassetteContent]]:
    """Yield an open cassette and its content."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(
            f"{sandbox_id} has no cassette", hint='Network(cassette="record") or --record-network records one'
        ) from None
    try:
        read = _reader(fd)
        yield read, codec.scan(read)
    except codec.DamagedCassette as error:
        raise Conflict(
            f"the cassette of {sandbox_id} is damaged: {error}", hint="record it again in a new sandbox"
        ) from error
    finally:
        os.close(fd)


def _reader(fd: int) -> codec.Read:
    return lambda offset, size: os.pread(fd, size, offset)


def _checked(fd: int, size: int) -> CassetteInfo:
    """Check a received cassette and make it durable."""
    try:
        journal = codec.scan(_reader(fd))
    except codec.DamagedCassette as error:
        raise InvalidRequest(f"the cassette cannot be used: {error}") from error
    if journal.end != size or not size:
        raise InvalidRequest("the cassette cannot be used: it is incomplete")
    os.fsync(fd)
    return _describe(journal)


def _describe(journal: codec.CassetteContent) -> CassetteInfo:
    complete = journal.complete()
    return CassetteInfo(
        exchanges=len(complete), size=sum(one.length for one in complete), omitted=len(journal.omitted),
        full=journal.full,
    )  # fmt: skip
