"""What lies where in a sandbox: looked at, listed, moved, copied and changed by its keeper with a user's rights."""

from __future__ import annotations

import posixpath
from typing import Final

import msgspec

from skerry.keeper.failures import KeeperLied
from skerry.keeper.trees import Trees
from skerry.keeper.values import File, Listing
from skerry.types import Entries as Listed
from skerry.types import FileInfo, real_path, told_path

MAX_LISTING: Final = 32 << 20
DEEPEST: Final = 1 << 20
MOST_ENTRIES: Final = 100_000
MOST_CHANGED: Final = 10_000

file = msgspec.json.Decoder(File)
_listing = msgspec.json.Decoder(Listing)
_nothing = msgspec.json.Decoder(dict[str, int])


class Entries(Trees):
    """Entries by their paths; a link stands for itself unless it is said otherwise."""

    async def stat(self, path: str, user: str | None = None, *, follow: bool = False) -> FileInfo:
        return info(await self._channel.call(file, "GET", "/v1/files/stat", query(path, user, follow=follow)), path)

    async def list(self, path: str, user: str | None = None, *, depth: int = 1, hidden: bool = True) -> Listed:
        """What lies below a directory, by name, and a directory before what is in it."""
        return await self._listed(path, query(path, user, depth=depth, hidden=hidden))

    async def glob(
        self, pattern: str, path: str, user: str | None = None, *, hidden: bool = False, limit: int = MOST_ENTRIES
    ) -> Listed:
        """What matches a pattern, below a directory; with an absolute pattern, below the root."""
        if pattern.startswith("/"):
            path, pattern = "/", pattern.lstrip("/")
        return await self._listed(path, query(path, user, depth=DEEPEST, hidden=hidden, glob=pattern, limit=limit))

    async def _listed(self, path: str, wish: dict[str, str]) -> Listed:
        found = await self._channel.ask(_listing, "GET", "/v1/files/list", wish, limit=MAX_LISTING)
        entries = [info(entry, join(path, entry.below)) for entry in found.entries]
        return Listed(entries=entries, more=found.more, skipped=found.skipped)

    async def changed(self, path: str, since: int, user: str | None = None, limit: int = MOST_CHANGED) -> Listed:
        """Regular files below a directory that were changed at `since` (ns) or later, by the clock of the turn that
        began then. Directories that only tools write to are passed over; `more`: not all were looked at, or told."""
        wish = query(path, user, since=since, limit=limit)
        found = await self._channel.ask(_listing, "GET", "/v1/files/changed", wish, limit=MAX_LISTING)
        if len(found.entries) > limit or any(entry.type != "file" for entry in found.entries):
            raise KeeperLied("the keeper lists more than was asked for")
        entries = [info(entry, join(path, entry.below)) for entry in found.entries]
        return Listed(entries=entries, more=found.more, skipped=found.skipped)

    async def mkdir(
        self, path: str, parents: bool = False, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        wish = query(path, user, parents=parents, mode=octal(mode))
        return info(await self._channel.call(file, "POST", "/v1/files/mkdir", wish), path)

    async def remove(self, path: str, recursive: bool = False, user: str | None = None) -> None:
        await self._channel.ask(_nothing, "DELETE", "/v1/files", query(path, user, recursive=recursive))

    async def move(
        self, path: str, to: str, user: str | None = None, *, overwrite: bool = False, parents: bool = False
    ) -> FileInfo:
        """Renames; where that can't be done, copies and removes."""
        wish = query(path, user, to=to, overwrite=overwrite, parents=parents)
        return info(await self._channel.ask(file, "POST", "/v1/files/move", wish), to)

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
        """Copies a file, or a directory with all that is in it; whole or not at all."""
        wish = query(path, user, to=to, recursive=recursive, overwrite=overwrite, parents=parents)
        return info(await self._channel.ask(file, "POST", "/v1/files/copy", wish), to)

    async def chmod(self, path: str, mode: int, user: str | None = None, *, recursive: bool = False) -> None:
        wish = query(path, user, mode=octal(mode), recursive=recursive)
        await self._channel.ask(_nothing, "POST", "/v1/files/chmod", wish)

    async def chown(self, path: str, owner: str, user: str | None = None, *, recursive: bool = False) -> None:
        """`owner` is "user", "user:group" or ":group", names or numbers."""
        wish = query(path, user, owner=owner, recursive=recursive)
        await self._channel.ask(_nothing, "POST", "/v1/files/chown", wish)

    async def link(self, target: str, path: str, user: str | None = None, *, hard: bool = False) -> FileInfo:
        return info(
            await self._channel.call(file, "POST", "/v1/files/link", query(path, user, to=target, hard=hard)), path
        )


def query(path: str, user: str | None, **more: str | int | bool | None) -> dict[str, str]:
    """The arguments of a call, as the keeper reads them: what is False or None is left out."""
    given = {name: value for name, value in {**more, "user": user}.items() if value is not None and value is not False}
    return {"path": path} | {name: "1" if value is True else str(value) for name, value in given.items()}


def octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


def join(above: str, below: str) -> str:
    return below if above == "." else posixpath.join(above, below)


def info(file: File, path: str) -> FileInfo:
    """The keeper's word for what is at a path; the path itself is the host's."""
    told, raw_path = told_path(path)
    target, raw_target = (None, None) if file.target is None else told_path(real_path(file.target, file.raw_target))
    return FileInfo(
        name=told_path(path.rstrip("/").rpartition("/")[2])[0] or "/",
        path=told,
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
