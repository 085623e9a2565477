"""Editing files of a sandbox where they are."""

from __future__ import annotations

from skerry.client import file_requests as requests
from skerry.client._async.finding import AsyncFinding
from skerry.client.file_requests import InsidePath
from skerry.client.listing import real_patched
from skerry.types import Patched, Replaced


class AsyncEditing(AsyncFinding):
    async def replace(
        self,
        path: InsidePath,
        old: str | bytes,
        new: str | bytes,
        count: int | None = 1,
        *,
        user: str | None = None,
    ) -> Replaced:
        """Replace a text in a file. It has to be there exactly `count` times (None: at least once), else nothing is
        changed and a `Conflict` says how often it is there, and in which lines.

        What another writes meanwhile is never lost: the edit is made again on what is there then, or refused."""
        sandbox = self._sandbox
        return await sandbox.client.value(requests.replace(sandbox.id, path, old, new, count, user), Replaced)

    async def patch(self, path: InsidePath, diff: str | bytes, *, user: str | None = None) -> Patched:
        """Apply a unified diff to a file, or to the files that it names below a directory: all of it or nothing.

        What a hunk says has to be there as it is, at its line or at one place nearby; else a `Conflict` says which
        hunk and what differs. Files are created and deleted where the diff says /dev/null."""
        sandbox = self._sandbox
        return real_patched(await sandbox.client.value(requests.patch(sandbox.id, path, diff, user), Patched))
