"""Finding files of a sandbox by their names, and lines in them."""

from __future__ import annotations

from skerry.client import file_requests as requests
from skerry.client._async.entries import AsyncFileEntries
from skerry.client.file_requests import InsidePath, path_text
from skerry.client.listing import FileList, file_list, real_matches
from skerry.types import Entries, Matches


class AsyncFinding(AsyncFileEntries):
    async def glob(
        self,
        pattern: str,
        path: InsidePath = ".",
        *,
        hidden: bool = False,
        limit: int = 10_000,
        user: str | None = None,
    ) -> FileList:
        """What matches a pattern like `src/**/*.{ts,tsx}`, relative to `path` or absolute, at most `limit` of it.

        Names that begin with a dot are matched by a pattern that does so too, or with `hidden`."""
        sandbox = self._sandbox
        given = path_text(pattern, "pattern")
        request = requests.look(sandbox.id, "glob", path, user, pattern=given, hidden=hidden, limit=limit)
        return file_list(await sandbox.client.value(request, Entries))

    async def search(
        self,
        pattern: str,
        path: InsidePath = ".",
        *,
        glob: str | None = None,
        context: int = 0,
        limit: int = 1000,
        ignore_case: bool = False,
        literal: bool = False,
        hidden: bool = False,
        user: str | None = None,
    ) -> Matches:
        """Lines that match a regular expression (RE2: no look-around, linear time), or with `literal` have a text in
        them, in a file or in all files below a directory.

        `glob` chooses files: by their names, or with a slash in it by their paths. `context` is how many lines around
        each are given too. `.more` says that there are others than these `limit`; `.skipped` how many files could not
        be searched, binary ones among them."""
        sandbox = self._sandbox
        request = requests.look(
            sandbox.id, "search", path, user,
            pattern=pattern, glob=glob, context=context, limit=limit,
            ignore_case=ignore_case, literal=literal, hidden=hidden,
        )  # fmt: skip
        return real_matches(await sandbox.client.value(request, Matches))
